r"""Files that change later runs, recognised by name in paths and in the words of commands.

A model under prompt injection may write them to persist: instructions of agents, hooks, startup
files of shells. All searches take time in proportion to the text.
"""

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from os.path import normpath

from metis.tools.hidden_text import HIDDEN
from metis.tools.workspace import Workspace

# The reasons of warnings. Build files such as a Makefile or package.json are not listed: they are
# edited every day, and users would ignore a warning that always appears; besides, they run only
# when the user starts a build.
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
        *(".goosehints", ".rules", "qwen.md", "warp.md", "crush.md", "agent.md", ".replit.md"),
    ),
    _SETTINGS: (
        *(".mcp.json", ".aider.conf.yml", "opencode.json", "opencode.jsonc", ".claude.json"),
    ),
    _SHELL: (
        *(".envrc", ".env", "mise.toml", ".mise.toml", ".tool-versions"),
        *(".bashrc", ".bash_profile", ".bash_login", ".bash_logout", ".bash_aliases", ".profile"),
        *(".zshrc", ".zshenv", ".zprofile", ".zlogin", ".zlogout", ".kshrc", ".cshrc", ".tcshrc"),
        *(".login", "config.fish", ".xprofile", ".xinitrc", ".xsession", ".xsessionrc"),
        *(".bash_completion", ".inputrc", ".pam_environment", ".asdfrc", "profile.ps1"),
        *("microsoft.powershell_profile.ps1", ".tmux.conf", ".screenrc"),
    ),
    _GIT: (
        *(".gitconfig", ".gitmodules", ".gitattributes", ".pre-commit-config.yaml"),
        *("lefthook.yml", ".lefthook.yml"),
    ),
    _CI: (
        *(".gitlab-ci.yml", "jenkinsfile", "azure-pipelines.yml", ".travis.yml", ".drone.yml"),
        *("bitbucket-pipelines.yml", "appveyor.yml", ".appveyor.yml", ".woodpecker.yml"),
        *(".cirrus.yml", "cloudbuild.yaml", "buildspec.yml"),
    ),
    _EDITOR: (
        *(".vimrc", ".nvimrc", ".exrc", ".emacs", "init.el", ".dir-locals.el", "init.lua"),
        *(".gdbinit", ".lldbinit", ".psqlrc", ".sqliterc", ".irbrc", ".rprofile", ".pdbrc"),
    ),
    _PACKAGES: (
        *(".npmrc", ".yarnrc", ".yarnrc.yml", ".pnpmfile.cjs", "bunfig.toml", ".condarc"),
        *("pip.conf", "pip.ini", ".pypirc", "uv.toml", ".gemrc"),
    ),
    _LOGIN: (".netrc", "authorized_keys", "sudoers"),
    _SCHEDULED: ("crontab",),
    _PYTHON: ("sitecustomize.py", "usercustomize.py"),
}
STEERING_NAMES: Mapping[str, str] = {
    name: reason for reason, names in _NAMES_BY_REASON.items() for name in names
}
"""The reasons of warnings by name of a file, in lower case."""

STEERING_DIRECTORIES: Mapping[str, str] = {
    ".metis": _SETTINGS,
    ".claude": _SETTINGS,
    ".cursor": _SETTINGS,
    ".windsurf": _SETTINGS,
    ".clinerules": _INSTRUCTIONS,
    ".roo": _SETTINGS,
    ".continue": _SETTINGS,
    ".opencode": _SETTINGS,
    ".config/opencode": _SETTINGS,
    ".agents": _SETTINGS,
    ".kiro": _SETTINGS,
    ".junie": _SETTINGS,
    ".qwen": _SETTINGS,
    ".codex": _SETTINGS,
    ".gemini": _SETTINGS,
    ".git": _GIT,
    ".config/git": _GIT,
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
    ".config/mise": _SHELL,
    ".config/environment.d": _SHELL,
    ".config/powershell": _SHELL,
    ".bashrc.d": _SHELL,
    "etc/profile.d": _SHELL,
    ".local/bin": _SHELL,
    ".config/nvim": _EDITOR,
    ".emacs.d": _EDITOR,
    ".vim": _EDITOR,
    ".config/pip": _PACKAGES,
    ".config/uv": _PACKAGES,
    ".cargo": _PACKAGES,
    ".ssh": _LOGIN,
    ".aws": _LOGIN,
    ".kube": _LOGIN,
    ".docker": _LOGIN,
    ".gnupg": _LOGIN,
    ".config/systemd": _SCHEDULED,
    ".config/autostart": _SCHEDULED,
    "launchagents": _SCHEDULED,
    "launchdaemons": _SCHEDULED,
    "cron.d": _SCHEDULED,
    "cron.daily": _SCHEDULED,
    "cron.hourly": _SCHEDULED,
    "etc/systemd": _SCHEDULED,
}
"""The reasons of warnings by directory, in lower case, for all files below it."""

_ALL_NAMES = (*STEERING_NAMES.items(), *STEERING_DIRECTORIES.items())
_SHORT_NAMES: Mapping[str, str] = {"git~1": ".git", "metis~1": ".metis", "github~1": ".github"}


def steering_reason(path: str) -> str | None:
    """Return why a change of a file affects later runs; None if it does not.

    >>> steering_reason("src/../.github/workflows/ci.yml")
    'CI runs it'
    >>> steering_reason("src/main.py")
    """
    # Some file systems ignore case, invisible characters, trailing dots, and the part after a colon
    # (an alternate stream of the file); on Windows a directory may also have a short name.
    path = HIDDEN.sub("", path.replace("\\", "/")).strip()
    parts = normpath(path).casefold().split("/")
    parts = [_SHORT_NAMES.get(part, part.partition(":")[0].rstrip(" .") or part) for part in parts]
    name = ".env" if parts[-1].startswith(".env.") else parts[-1]
    reason = STEERING_NAMES.get(name)
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


# A word of a command that may be a path, or a pattern of paths.
_PATH_WORD = re.compile(r"[\w.~/\\+*?\[\]{},-]{3,300}")
_PATTERN = re.compile(r"[*?\[{]")
_BRACES = re.compile(r"\{([^{}]{1,200})\}")
_MAX_NAMED = 4
_MAX_CHECKED = 2_000_000
"""How many characters of a command are searched, which takes about a second."""
# Each pattern is compared with every name, so that their number is bounded.
_MAX_PATTERNS = 50
_MAX_PARTS = 8
_MAX_ALTERNATIVES = 20
_MAX_LINKS = 2_000
"""How many words of one command are looked up as links; each takes some microseconds."""
# The minimum number of letters before the suffix of a pattern: `*.md` matches any text file.
_MIN_LETTERS = 2
_PATTERN_SIGNS = re.compile(r"\[[^\]]{0,100}\]|[*?\[\]]")


def written_notes(path: str, workspace: Workspace | None) -> Iterator[str]:
    """Yield a note if the file that is written affects later runs."""
    reason = steering_reason(path)
    if reason is None and workspace is not None:
        reason = _linked_reason(path, workspace)
    if reason is not None:
        yield f"writes to {path}: {reason}"


def _linked_reason(path: str, workspace: Workspace) -> str | None:
    """Return why a change of the file behind a link affects later runs; None if it does not."""
    try:
        real = (workspace.root / path).resolve().relative_to(workspace.root)
    except (OSError, ValueError, RuntimeError):
        return None
    return steering_reason(str(real))


def mentioned_notes(texts: Iterable[str], workspace: Workspace | None) -> Iterator[str]:
    """Yield a note for each file in the words of commands that affects later runs."""
    mentioned: dict[str, str] = {}
    lookups = patterns = 0
    for text in texts:
        checked: set[str] = set()
        for match in _PATH_WORD.finditer(text, 0, _MAX_CHECKED):
            word = match[0]
            if word in checked:
                continue
            checked.add(word)
            if _PATTERN.search(word) and patterns < _MAX_PATTERNS:
                patterns += 1
                reason = _pattern_reason(word)
            else:
                reason = steering_reason(word)
            if reason is None and workspace is not None and lookups < _MAX_LINKS:
                lookups += 1
                reason = _reason_behind_link(word, workspace)
            if reason is not None:
                mentioned.setdefault(word, reason)
                if len(mentioned) >= _MAX_NAMED:
                    break
    yield from (f"names {word}: {reason}" for word, reason in mentioned.items())


def _reason_behind_link(word: str, workspace: Workspace) -> str | None:
    # Most words are not files: `lexists` on the first name is faster than resolving the path.
    first, _, _ = word.partition("/")
    is_path = first and first not in (".", "..", "~")
    if is_path and not os.path.lexists(workspace.root / first):
        return None
    return _linked_reason(word, workspace)


def _pattern_reason(word: str) -> str | None:
    """Return the reason of a file that a shell pattern may match; None if there is none."""
    for alternative in _alternatives(word):
        reason = steering_reason(alternative) if not _PATTERN.search(alternative) else None
        if reason is not None:
            return reason
        for part in normpath(alternative.casefold()).split("/")[-_MAX_PARTS:]:
            stem = part.rpartition(".")[0] or part
            if _PATTERN.search(part) and len(_PATTERN_SIGNS.sub("", stem)) >= _MIN_LETTERS:
                for name, name_reason in _ALL_NAMES:
                    if fnmatchcase(name, part):
                        return name_reason
    return None


def _alternatives(word: str) -> list[str]:
    """Return the expansions of the first braces of a word."""
    braces = _BRACES.search(word)
    if braces is None:
        return [word]
    before, after = word[: braces.start()], word[braces.end() :]
    return [before + part + after for part in braces[1].split(",")[:_MAX_ALTERNATIVES]]
