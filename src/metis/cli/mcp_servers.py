"""MCP servers of the settings: `metis mcp` lists, adds, removes and tests them."""

import asyncio
import os
import re
from collections.abc import Iterable, Mapping, Sequence

from metis.canonical.errors import InvalidValueError, MetisError, SettingsError
from metis.canonical.urls import check_base_url, shown_address
from metis.cli.config import set_value
from metis.cli.output import echo
from metis.cli.text import count, one_line, screen_width, style, table
from metis.settings import load
from metis.tools.mcp import HttpServer, McpServer, StdioServer

_NAME = re.compile(r"[A-Za-z0-9_-]{1,32}")
_VARIABLE = re.compile(r"\$(\w+)")
_URL_PREFIXES = ("http://", "https://")


def mcp_servers(configured: Mapping[str, Sequence[str]]) -> list[McpServer]:
    """Return the servers of the settings; none is started.

    Raises:
        SettingsError: a server has no command, or names a variable that is not set.
    """
    return [McpServer(name, _address(name, words)) for name, words in configured.items()]


def _address(name: str, words: Sequence[str]) -> StdioServer | HttpServer:
    """Return how to reach a server.

    A variable before the command, such as `$GITHUB_TOKEN`, is passed on to it: servers see no other
    variables of the user.
    """
    setting = f"mcp.{name}"
    if words and words[0].startswith(_URL_PREFIXES):
        headers = [_expand_variables(word, setting).partition(":") for word in words[1:]]
        return HttpServer(words[0], {key.strip(): value.strip() for key, _, value in headers})
    variable_names = [word[1:] for word in words if _VARIABLE.fullmatch(word)]
    command = [word for word in words if not _VARIABLE.fullmatch(word)]
    if not command:
        raise SettingsError("expected a command or a URL", place=setting)
    variables = {name: _expand_variables(f"${name}", setting) for name in variable_names}
    return StdioServer(command[0], tuple(command[1:]), variables)


def _expand_variables(text: str, setting: str) -> str:
    def value(variable: re.Match[str]) -> str:
        if variable[1] not in os.environ:
            raise SettingsError(f"the variable {variable[1]} is not set", place=setting)
        return os.environ[variable[1]]

    return _VARIABLE.sub(value, text)


def add_server(name: str, words: Sequence[str]) -> int:
    """Write a server into the settings file."""
    if not _NAME.fullmatch(name):
        raise InvalidValueError(f"{name!r} is not a valid name; use letters, digits, - and _")
    if words[0].startswith(_URL_PREFIXES):
        check_base_url(words[0])
    return set_value(f"mcp.{name}", tuple(words))


def remove_server(name: str) -> int:
    """Remove a server from the settings file."""
    return set_value(f"mcp.{name}", None)


def print_servers() -> int:
    """Print the servers of the settings; the exit code is 1 if there are none."""
    configured = load().settings.mcp
    if not configured:
        echo("No MCP servers yet; `metis mcp add NAME COMMAND` adds one.", err=True)
        return 1
    rows = [
        (name, one_line(_printable_address(words), screen_width()))
        for name, words in configured.items()
    ]
    for line in table(("name", "command or URL"), rows):
        echo(line)
    return 0


def _printable_address(words: Sequence[str]) -> str:
    """Return the command or URL of a server without headers and login, which may be keys."""
    if words and words[0].startswith(_URL_PREFIXES):
        return shown_address(words[0])
    return " ".join(words)


def test_servers(names: Iterable[str]) -> int:
    """Start servers and print their tools; the exit code is 1 if one cannot be used."""
    configured = load().settings.mcp
    chosen = list(names) or list(configured)
    unknown = [name for name in chosen if name not in configured]
    if unknown or not chosen:
        listed = ", ".join(configured) or "none"
        raise InvalidValueError(f"no MCP server {', '.join(unknown)}; configured: {listed}")
    return asyncio.run(_test({name: configured[name] for name in chosen}))


async def _test(configured: Mapping[str, Sequence[str]]) -> int:
    code = 0
    for name, words in configured.items():
        try:
            (server,) = mcp_servers({name: words})
            try:
                tools = await server.tools()
            finally:
                await server.close()
        except MetisError as error:
            code = 1
            echo(f"{style('✗', fg='red')} {name}: {error}")
            continue
        echo(f"{style('✓', fg='green')} {name}: {count(len(tools), 'tool')}")
        for factory in tools:
            definition = factory().definition
            text = one_line(definition.description, max(screen_width() - 30, 20))
            echo(f"    {definition.name}  {style(text, dim=True)}")
    return code
