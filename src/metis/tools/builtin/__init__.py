"""The built-in tools: files, commands and pages."""

from metis.tools.builtin.edit_file import EditFile
from metis.tools.builtin.fetch_url import FetchUrl
from metis.tools.builtin.grep import Grep
from metis.tools.builtin.list_files import ListFiles
from metis.tools.builtin.read_file import ReadFile
from metis.tools.builtin.run_command import RunCommand
from metis.tools.builtin.write_file import WriteFile

BUILTINS = (ReadFile, WriteFile, EditFile, ListFiles, Grep, RunCommand, FetchUrl)
"""All of them; each can be registered as it is."""

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
