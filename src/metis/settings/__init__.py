"""What a user has set: by option, in the environment, in a file; and where that is."""

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
