"""The built-in tools: files, commands and web pages."""

from metis.tools.builtin.fetch_url import FetchUrl
from metis.tools.builtin.files import EditFile, ReadFile, WriteFile
from metis.tools.builtin.find import Grep, ListFiles
from metis.tools.builtin.run_command import RunCommand

BUILTINS = (ReadFile, WriteFile, EditFile, ListFiles, Grep, RunCommand, FetchUrl)
"""All built-in tools; each can be registered as it is."""

__all__ = [
    "BUILTINS",
    "EditFile",
    "FetchUrl",
    "Grep",
    "ListFiles",
    "ReadFile",
    "RunCommand",
    "WriteFile",
]
