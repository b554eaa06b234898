"""What a user has set: by option, in the environment, in a file; and where that is."""

from metis.settings.file import SettingsFile
from metis.settings.places import Places
from metis.settings.setting import SETTINGS, Setting, find_setting
from metis.settings.settings import Loaded, Origin, Settings, check_file, load

__all__ = [
    "SETTINGS",
    "Loaded",
    "Origin",
    "Places",
    "Setting",
    "Settings",
    "SettingsFile",
    "check_file",
    "find_setting",
    "load",
]
