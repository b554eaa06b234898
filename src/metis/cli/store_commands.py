"""Parsers of the commands on stored sessions."""

from pathlib import Path
from typing import IO, Any

import click

from metis.cli.arguments import LAST_SESSION, SESSION, STORE, complete_sessions

# For completion only: plugins may add formats, so the parser accepts any name.
SESSION_FORMATS = (
    *("claude-code", "codex", "gemini-cli", "opencode", "pi", "klaude", "attocode", "gpt2099"),
    *("cline", "cursor", "copilot-cli", "qwen-code", "kimi", "aider", "chatgpt", "claude-ai"),
    *("llm", "open-webui"),
    *("librechat", "pydantic-ai", "langchain", "vercel", "openai-agents", "otel", "atif", "metis"),
)
EXPORT_FORMATS = ("jsonl", "json", "markdown", "html", "openai-finetune", "sharegpt")


def complete_formats(context: click.Context, __: click.Parameter, prefix: str) -> list[str]:
    """Return the names of formats with a prefix."""
    others = EXPORT_FORMATS if context.info_name == "export" else ()
    return [name for name in (*others, *SESSION_FORMATS) if name.startswith(prefix)]


@click.command()
@click.argument("source", metavar="[SESSION|FILE|-]", default="last")
@STORE
def show(source: str, store: str | None) -> int:
    """Print a stored session, or a JSON or JSONL file of messages, as a conversation.

    Without an argument it prints the session that changed last.
    """
    if source != "-" and not Path(source).exists():
        from metis.cli.sessions import print_session

        return print_session(store, source)
    from metis.cli.message_files import print_conversation

    with click.open_file(source, "rb") as file:
        return print_conversation(file)


@click.group(invoke_without_command=True)
@STORE
@click.option("--limit", default=100, show_default=True, help="Maximum number of sessions.")
@click.option("--tag", metavar="TAG", help="Only sessions with this tag.")
@click.option("--here", "is_here", is_flag=True, help="Only sessions of this directory.")
@click.option(
    "--all", "everywhere", is_flag=True, help="Also sessions of other programs on this machine."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def sessions(  # noqa: PLR0913 - one parameter an option
    context: click.Context,
    store: str | None,
    limit: int,
    *,
    tag: str | None,
    is_here: bool,
    everywhere: bool,
    as_json: bool,
) -> int:
    """List conversations, newest first, with title, model and cost.

    In a pipe each line begins with the full id. With --all it lists the sessions of Claude Code,
    Codex and other programs as well; `metis import` reads them.
    """
    if context.invoked_subcommand is not None:
        return 0
    if everywhere:
        from metis.cli.program_sessions import print_all_sessions

        return print_all_sessions(store, limit, is_here=is_here, as_json=as_json)
    from metis.cli.sessions import print_sessions

    return print_sessions(store, limit, is_here=is_here, as_json=as_json, tag=tag)


@sessions.command("rename")
@SESSION
@click.argument("title", nargs=-1, required=True)
@STORE
def rename_session(session_id: str, title: tuple[str, ...], store: str | None) -> int:
    """Give a session a title."""
    from metis.cli.sessions import rename_session as run

    return run(store, session_id, " ".join(title))


@sessions.command("tag")
@SESSION
@click.argument("tags", nargs=-1)
@click.option("--remove", "is_removal", is_flag=True, help="Remove the tags.")
@STORE
def tag_session(
    session_id: str, tags: tuple[str, ...], store: str | None, *, is_removal: bool
) -> int:
    """Add tags to a session; without any, print those that it has."""
    from metis.cli.sessions import tag_session as run

    return run(store, session_id, tags, is_removal=is_removal)


@sessions.command("delete")
@click.argument("session_ids", metavar="SESSION...", nargs=-1, required=True)
@click.option("-y", "--yes", "is_confirmed", is_flag=True, help="Do not ask for confirmation.")
@STORE
def delete_session(session_ids: tuple[str, ...], store: str | None, *, is_confirmed: bool) -> int:
    """Delete sessions for good."""
    from metis.cli.sessions import delete_sessions

    return delete_sessions(store, session_ids, is_confirmed=is_confirmed)


@click.command()
@SESSION
@STORE
@click.option("--at", metavar="MESSAGE", help="The last message to copy; default: all.")
def fork(session_id: str, store: str | None, at: str | None) -> int:
    """Start a new session as a copy of another, and print its id."""
    from metis.cli.sessions import print_fork

    return print_fork(store, session_id, at)


@click.command()
@click.argument("words", nargs=-1, required=True)
@STORE
@click.option("--session", metavar="SESSION", help="Search in one session only.")
@click.option("--limit", default=20, show_default=True, help="Maximum number of messages.")
def search(words: tuple[str, ...], store: str | None, session: str | None, limit: int) -> int:
    """Search all conversations for messages that contain all words.

    Exits with 1 if there are none.
    """
    from metis.cli.sessions import print_matches

    return print_matches(store, " ".join(words), session, limit)


@click.command()
@STORE
@click.option(
    "-m",
    "--model",
    metavar="MODEL",
    help="Embedding model: an id, or `sim`.",
)
@click.option("--dry-run", "is_dry_run", is_flag=True, help="Only count what would be sent.")
@click.option("--clear", "is_cleared", is_flag=True, help="Delete the vectors instead.")
def embed(store: str | None, model: str | None, *, is_dry_run: bool, is_cleared: bool) -> int:
    """Compute embeddings of all messages, so that `metis similar` finds them by meaning.

    The text of questions and answers is sent to the embedding model; results of tools are not. The
    next run sends only what is new. The vectors are stored in a file next to the SQLite store.
    """
    from metis.cli.embeddings import embed_messages

    return embed_messages(store, model, is_dry_run=is_dry_run, is_cleared=is_cleared)


@click.command()
@click.argument("words", nargs=-1, required=True)
@STORE
@click.option(
    "-m", "--model", metavar="MODEL", help="Embedding model; default: the one of `metis embed`."
)
@click.option("--session", metavar="SESSION", help="Search in one session only.")
@click.option("--limit", default=10, show_default=True, help="Maximum number of messages.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def similar(  # noqa: PLR0913 - one parameter an option
    words: tuple[str, ...],
    store: str | None,
    model: str | None,
    session: str | None,
    limit: int,
    *,
    as_json: bool,
) -> int:
    """Search all conversations by meaning; `metis embed` prepares it.

    Each line has a session, the similarity (1 is identical) and the text. Exits with 1 if nothing
    matches.
    """
    from metis.cli.embeddings import print_similar

    return print_similar(store, " ".join(words), model, session, limit, as_json=as_json)


@click.command()
@LAST_SESSION
@STORE
@click.option(
    "--format",
    "format_name",
    metavar="FORMAT",
    default="jsonl",
    show_default=True,
    shell_complete=complete_formats,
    help="jsonl loses nothing and can be re-imported; json, markdown, html, openai-finetune, "
    "sharegpt; or a program, such as claude-code or codex.",
)
@click.option("-o", "--output", "target", type=click.File("wb"), default="-", help="Output file.")
@click.option("--share", is_flag=True, help="Remove keys, mail addresses and home directories.")
@click.option("--json", "as_json", is_flag=True, help="Print the path and the losses as JSON.")
def export(  # noqa: PLR0913 - one parameter an option
    session_id: str,
    store: str | None,
    format_name: str,
    target: IO[bytes],
    *,
    share: bool,
    as_json: bool,
) -> int:
    """Export a session: JSONL (can be re-imported), Markdown, HTML, or for another program.

    Without an argument it exports the session that changed last. What a format cannot hold is
    listed on standard error, one part a line.
    """
    from metis.cli.transfer import write_export

    return write_export(store, session_id, format_name, target, share=share, as_json=as_json)


@click.command(name="import")
@click.argument("paths", metavar="[PATH]...", nargs=-1)
@STORE
@click.option(
    "--format",
    "format_name",
    metavar="FORMAT",
    shell_complete=complete_formats,
    help="Format of the files; default: recognised from their content.",
)
@click.option("--new-ids", is_flag=True, help="Import a copy beside a session of the same id.")
@click.option("--watch", is_flag=True, help="Keep running, and add what the programs write.")
@click.option("--json", "as_json", is_flag=True, help="Print a line of JSON for each session.")
def import_session(  # noqa: PLR0913 - one parameter an option
    paths: tuple[str, ...],
    store: str | None,
    format_name: str | None,
    *,
    new_ids: bool,
    watch: bool,
    as_json: bool,
) -> int:
    """Import sessions from files or directories, and print their ids.

    Reads what `metis export` wrote, and the session files of other programs: Claude Code, Codex and
    more. Without PATH it offers the sessions on this machine. Importing a file again adds only what
    is new. What cannot be imported is listed on standard error.
    """
    from metis.cli.transfer import read_import

    if not paths:
        from metis.cli.program_sessions import choose_files

        paths = tuple(choose_files())
    return read_import(
        store, paths, format_name=format_name, new_ids=new_ids, watch=watch, as_json=as_json
    )


@click.command()
@click.argument("target", metavar="claude|codex|gemini|opencode|pi|metis", required=False)
@click.argument("session", metavar="[SESSION]", required=False, shell_complete=complete_sessions)
@STORE
@click.option(
    "--home",
    type=click.Path(path_type=Path, file_okay=False),
    help="Home directory of the program; default: yours.",
)
@click.option(
    "--cwd",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of the session; default: this one.",
)
@click.option("--map-tools", is_flag=True, help="Rename calls to the tools of the program.")
@click.option("--go", "run", is_flag=True, help="Run the command that resumes the session.")
@click.option("--json", "as_json", is_flag=True, help="Print path, command and losses as JSON.")
def handoff(store: str | None, **options: Any) -> int:
    """Continue a session in another program, and print the command that resumes it.

    Without SESSION it is the newest session of this folder in any program. What the program will
    not see is listed on standard error. The next handoff imports what was added there.
    """
    from metis.cli.handoff import HandoffOptions, hand_over

    if not options["target"]:
        raise click.UsageError(
            "name the program that is to continue: claude, codex, gemini, opencode, pi or metis, "
            "such as `metis handoff codex`"
        )
    return hand_over(store, HandoffOptions(**options))


@click.group(name="store")
def maintenance() -> None:
    """Check, back up, clean and upgrade the database."""


@maintenance.command()
@STORE
def check(store: str | None) -> int:
    """Check the database for corruption and inconsistencies.

    Exits with 1 if there are problems.
    """
    from metis.cli.sessions import print_check

    return print_check(store)


@maintenance.command()
@click.argument("target", metavar="FILE", type=click.Path(path_type=Path))
@STORE
def repair(target: Path, store: str | None) -> int:
    """Save what can be read of a damaged database into a new file.

    The damaged file is not changed. What is lost is listed, one part a line.
    """
    from metis.cli.sessions import repair_store

    return repair_store(store, target)


@maintenance.command()
@click.argument("target", metavar="FILE", type=click.Path(path_type=Path))
@STORE
def backup(target: Path, store: str | None) -> int:
    """Copy the database to a new file; it can stay in use."""
    from metis.cli.sessions import write_backup

    return write_backup(store, target)


@maintenance.command()
@STORE
@click.option("--sessions", type=float, metavar="DAYS", help="Sessions unchanged for DAYS days.")
@click.option("--events", type=float, metavar="DAYS", help="Events older than DAYS days.")
@click.option("--raw", type=float, metavar="DAYS", help="Raw provider data older than DAYS days.")
@click.option("--raw-bytes", type=int, help="Raw provider data larger than this.")
@click.option("--apply", is_flag=True, help="Delete; without it, only list what would be deleted.")
def sweep(  # noqa: PLR0913 - one parameter an option
    store: str | None,
    sessions: float | None,
    events: float | None,
    raw: float | None,
    raw_bytes: int | None,
    *,
    apply: bool,
) -> int:
    """Delete old or large data."""
    from metis.cli.sessions import days_ago, print_sweep
    from metis.store import Policy

    policy = Policy(
        sessions_before=days_ago(sessions),
        events_before=days_ago(events),
        raw_before=days_ago(raw),
        raw_bytes=raw_bytes,
    )
    return print_sweep(store, policy, is_dry_run=not apply)


@maintenance.command()
@STORE
def migrate(store: str | None) -> int:
    """Upgrade the schema of the database, as opening it does."""
    from metis.cli.sessions import print_migration

    return print_migration(store)


@click.command()
@STORE
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port; 0 picks a free one.")
@click.option("--open", "opens_browser", is_flag=True, help="Open the browser.")
def web(store: str | None, port: int, *, opens_browser: bool) -> int:
    """Look at conversations, requests, losses and cost in a browser."""
    from metis.cli.web import run_web

    return run_web(store, port, opens_browser=opens_browser)
