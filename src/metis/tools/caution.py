r"""What is unusual about a tool call, for the person who decides about it.

The checks read text that a model wrote, which may have megabytes and may try to hide: every search
here takes time in proportion to the text. They warn and never allow: a call without a warning is
not thereby safe.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from os.path import normpath
from typing import Any

from metis.canonical.blocks import ToolUseBlock
from metis.canonical.tools import SideEffects, ToolDefinition
from metis.tools.workspace import Workspace

LONG_LINE = 500
"""A line of more characters is marked: its end is easily overlooked."""

# What a terminal obeys, reverses or does not show; tabs and line breaks are usual, and so are
# joiners inside emoji and some scripts, but not beside ASCII.
HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u180e\u200b\u200e\u200f\u2028-\u202e"
    "\u2060-\u206f\u2800\u3164\ufe00-\ufe0d\ufeff\uffa0\ufff9-\ufffb\ud800-\udfff"
    "\U000e0000-\U000e007f\U000e0100-\U000e01ef]"
    "|(?<![^\x00-\x7f])[\u200c\u200d]|[\u200c\u200d](?![^\x00-\x7f])"
)
"""Matches a character that a person does not see."""

# Text after so many spaces may lie outside of what a person looks at.
_SPACES = re.compile(r"\S[ \t\u00a0\u3000]{40}")

_DOWNLOAD = re.compile(
    r"\b(?:curl|wget|fetch|aria2c|invoke-webrequest|invoke-restmethod|iwr|irm|https?://)",
    re.IGNORECASE,
)
_INTERPRETER = (
    r"(?:(?:ba|z|da|k|a|c|tc|fi)?sh|python[\d.]*|perl|ruby|node|bun|deno|php|iex|invoke-expression)"
)
# The part before a program may be long; without a bound each pipe would be searched to the end.
_PIPED_INTO_SHELL = re.compile(
    r"\|&?\s{0,100}(?:(?:(?:[^\s|]{0,100}/)?(?:sudo|env|exec|nohup|time|command|xargs)|-\S{1,40}"
    r"|\w{1,40}=\S{0,100})\s{1,100}){0,10}"
    rf"[\"']?(?:[^\s|]{{0,100}}/)?{_INTERPRETER}(?![\w.-])",
    re.IGNORECASE,
)
_SUBSTITUTED = re.compile(
    r"(?:<\(|\$\(|`)\s{0,100}(?:sudo\s+)?(?:curl|wget|fetch|aria2c)\b", re.IGNORECASE
)
_RUNS_TEXT = re.compile(
    rf"(?:^|[\s;&|(])(?:eval|source|\.|[^\s|]{{0,100}}/?{_INTERPRETER})\s", re.IGNORECASE
)
_DECODER = re.compile(
    r"\b(?:base64|base32|xxd|openssl\s+(?:enc|base64)|gunzip|zcat|rev)\b", re.IGNORECASE
)
_MAKES_EXECUTABLE = re.compile(r"\bchmod\s+(?:-\w+\s+)*(?:[ugoa]*\+\w*x|[0-7]{0,1}[1357][0-7]{2})")

# Files that change what later runs do, and who reads them. Build files such as a Makefile or
# package.json are not here: editing them is everyday work, and a warning that always appears is
# read by nobody; they run only when somebody starts a build.
_INSTRUCTIONS = "models follow its instructions in later runs"
_SETTINGS = "it holds settings of later runs"
_SHELL = "shells run it when they start"
_GIT = "git runs what it names"
_CI = "CI runs it"
_EDITOR = "editors run what it names"
_PACKAGES = "it decides where packages come from"
_LOGIN = "it decides who can log in"
_SCHEDULED = "the system runs it by itself"
_PYTHON = "Python runs it at every start"
_NAMES_BY_REASON: Mapping[str, tuple[str, ...]] = {
    _INSTRUCTIONS: (
        *("agents.md", "agents.override.md", "claude.md", "claude.local.md", "gemini.md"),
        *(".cursorrules", ".windsurfrules", ".clinerules", "copilot-instructions.md"),
    ),
    _SETTINGS: (".mcp.json", ".aider.conf.yml", "opencode.json"),
    _SHELL: (
        *(".envrc", ".env", "mise.toml", ".mise.toml", ".tool-versions"),
        *(".bashrc", ".bash_profile", ".bash_login", ".bash_logout", ".bash_aliases", ".profile"),
        *(".zshrc", ".zshenv", ".zprofile", ".zlogin", ".zlogout", ".kshrc", ".cshrc", ".tcshrc"),
        *(".login", "config.fish", ".xprofile", ".xinitrc", ".xsessionrc"),
    ),
    _GIT: (
        *(".gitconfig", ".gitmodules", ".pre-commit-config.yaml"),
        *("lefthook.yml", ".lefthook.yml"),
    ),
    _CI: (
        *(".gitlab-ci.yml", "jenkinsfile", "azure-pipelines.yml", ".travis.yml", ".drone.yml"),
        *("bitbucket-pipelines.yml", "appveyor.yml", ".appveyor.yml", ".woodpecker.yml"),
        *(".cirrus.yml", "cloudbuild.yaml", "buildspec.yml"),
    ),
    _PACKAGES: (".npmrc", ".yarnrc", ".yarnrc.yml", "pip.conf", ".pypirc"),
    _LOGIN: (".netrc", "authorized_keys", "sudoers"),
    _SCHEDULED: ("crontab",),
    _PYTHON: ("sitecustomize.py", "usercustomize.py"),
}
STEERING_NAMES: Mapping[str, str] = {
    name: reason for reason, names in _NAMES_BY_REASON.items() for name in names
}
"""Names of files, in lower case, and why a change of one matters later."""

STEERING_DIRECTORIES: Mapping[str, str] = {
    ".metis": _SETTINGS,
    ".claude": _SETTINGS,
    ".cursor": _SETTINGS,
    ".codex": _SETTINGS,
    ".gemini": _SETTINGS,
    ".git": _GIT,
    ".githooks": _GIT,
    ".husky": _GIT,
    ".github/workflows": _CI,
    ".github/actions": _CI,
    ".gitea/workflows": _CI,
    ".forgejo/workflows": _CI,
    ".circleci": _CI,
    ".buildkite": _CI,
    ".woodpecker": _CI,
    ".vscode": _EDITOR,
    ".idea": _EDITOR,
    ".devcontainer": _EDITOR,
    ".config/fish": _SHELL,
    ".cargo": _PACKAGES,
    ".ssh": _LOGIN,
    ".config/systemd": _SCHEDULED,
    ".config/autostart": _SCHEDULED,
    "launchagents": _SCHEDULED,
    "launchdaemons": _SCHEDULED,
    "cron.d": _SCHEDULED,
}
"""Directories, in lower case, and why a change of any file below matters later."""

_SHORT_NAMES: Mapping[str, str] = {"git~1": ".git", "metis~1": ".metis", "github~1": ".github"}

# A word of a command that may be a path.
_PATH_WORD = re.compile(r"[\w.~/\\+-]{3,300}")
# Names of arguments that hold a path, in tools of other programs too.
_PATH_ARGUMENT = re.compile(r"path|file|name|target|dest|dir|uri", re.IGNORECASE)
_MAX_NAMED = 4


def cautions(
    call: ToolUseBlock, definition: ToolDefinition, workspace: Workspace | None
) -> list[str]:
    """Return what a person should notice before a call runs, one sentence each."""
    texts = list(_texts(call.input))
    notes = [*_steering_notes(call, definition, workspace)]
    if definition.side_effects is SideEffects.EXECUTE:
        for _, text in texts:
            notes += _command_notes(text)
    notes += _hidden_notes(text for _, text in texts)
    return list(dict.fromkeys(notes))


def steers_later_runs(
    call: ToolUseBlock, definition: ToolDefinition, workspace: Workspace | None
) -> bool:
    """Return whether a call names a file that changes what later runs do."""
    return any(_steering_notes(call, definition, workspace))


def steering_reason(path: str) -> str | None:
    """Return why a change of a file matters later; None for other files.

    >>> steering_reason("src/../.github/workflows/ci.yml")
    'CI runs it'
    >>> steering_reason("src/main.py")
    """
    # Some file systems ignore case, characters that nobody sees, dots at the end, and what follows
    # a colon (a stream of the file); on Windows a directory may have a short name, too.
    path = HIDDEN.sub("", path.replace("\\", "/")).strip()
    parts = normpath(path).casefold().split("/")
    parts = [_SHORT_NAMES.get(part, part.partition(":")[0].rstrip(" .") or part) for part in parts]
    reason = STEERING_NAMES.get(parts[-1])
    if reason is not None:
        return reason
    if parts[-1].endswith(".pth"):
        return _PYTHON
    for index, part in enumerate(parts):
        pair = "/".join(parts[index : index + 2])
        for name in (part, pair):
            if name in STEERING_DIRECTORIES:
                return STEERING_DIRECTORIES[name]
    return None


def _steering_notes(
    call: ToolUseBlock, definition: ToolDefinition, workspace: Workspace | None
) -> Iterator[str]:
    match definition.side_effects:
        # The tools of a server may write files, whatever else they do.
        case SideEffects.WRITE | SideEffects.NETWORK:
            for name, text in _texts(call.input):
                if _PATH_ARGUMENT.search(name):
                    yield from _written_notes(text, workspace)
        case SideEffects.EXECUTE:
            yield from _mentioned_notes(text for _, text in _texts(call.input))
        case _:
            return


def _written_notes(path: str, workspace: Workspace | None) -> Iterator[str]:
    reason = steering_reason(path)
    if reason is None and workspace is not None:
        reason = _linked_reason(path, workspace)
    if reason is not None:
        yield f"writes to {path}: {reason}"


def _linked_reason(path: str, workspace: Workspace) -> str | None:
    """Return why the file behind a link matters; the name of a link says nothing about it."""
    try:
        real = (workspace.root / path).resolve().relative_to(workspace.root)
    except (OSError, ValueError, RuntimeError):
        return None
    return steering_reason(str(real))


def _mentioned_notes(texts: Iterable[str]) -> Iterator[str]:
    mentioned: dict[str, str] = {}
    for text in texts:
        for word in _PATH_WORD.finditer(text):
            reason = steering_reason(word[0])
            if reason is not None:
                mentioned.setdefault(word[0], reason)
                if len(mentioned) >= _MAX_NAMED:
                    break
    yield from (f"names {word}: {reason}" for word, reason in mentioned.items())


def _command_notes(command: str) -> Iterator[str]:
    # A line that ends with a backslash continues.
    text = command.replace("\\\n", " ")
    download = _DOWNLOAD.search(text)
    if download and _PIPED_INTO_SHELL.search(text, download.end()):
        yield "pipes a download into a program that runs it"
    elif _SUBSTITUTED.search(text) and _RUNS_TEXT.search(text):
        yield "runs the text that it downloads"
    elif download and _MAKES_EXECUTABLE.search(text):
        yield "downloads something, and makes a file executable"
    decoder = _DECODER.search(text)
    if decoder and _PIPED_INTO_SHELL.search(text, decoder.end()):
        yield "decodes text and runs it"


def _hidden_notes(texts: Iterable[str]) -> Iterator[str]:
    longest = hidden = 0
    has_spaces = has_blank_lines = False
    for text in texts:
        longest = max(longest, *map(len, text.split("\n")))
        hidden += 0 if text.isascii() and text.isprintable() else _hidden_count(text)
        has_spaces = has_spaces or _SPACES.search(text) is not None
        has_blank_lines = has_blank_lines or "\n" * 20 in text.replace(" ", "").replace("\t", "")
    if hidden:
        characters = (
            "a control or invisible character"
            if hidden == 1
            else (f"{hidden:,} control or invisible characters")
        )
        yield f"contains {characters}, shown in reverse"
    if longest > LONG_LINE:
        yield f"has a line of {longest:,} characters"
    if has_spaces or has_blank_lines:
        yield "has text behind a long blank space"


def _hidden_count(text: str) -> int:
    # A carriage return before a line break is how some systems end lines.
    return sum(1 for _ in HIDDEN.finditer(text.replace("\r\n", "\n")))


def _texts(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Yield every string of the arguments, keys too, with the name of its argument."""
    pending: list[tuple[str, Any]] = [(name, value)]
    while pending:
        place, item = pending.pop()
        if isinstance(item, str):
            yield place, item
        elif isinstance(item, Mapping):
            for key, child in item.items():  # pyright: ignore[reportUnknownVariableType] - JSON
                yield "", str(key)  # pyright: ignore[reportUnknownArgumentType] - JSON
                pending.append((str(key), child))  # pyright: ignore[reportUnknownArgumentType] - JSON
        elif isinstance(item, list | tuple):
            pending += [(place, child) for child in item]  # pyright: ignore[reportUnknownVariableType] - JSON
