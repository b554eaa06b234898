"""The settings of a user, from options, the environment and a file, and the user's paths."""

from metis.settings.files import SettingsFile, UserPaths
from metis.settings.settings import (
    SETTINGS,
    LoadedSettings,
    Origin,
    Setting,
    Settings,
    check_file,
    find_setting,
    load,
)

__all__ = [
    "SETTINGS",
    "LoadedSettings",
    "Origin",
    "Setting",
    "Settings",
    "SettingsFile",
    "UserPaths",
    "check_file",
    "find_setting",
    "load",
]
