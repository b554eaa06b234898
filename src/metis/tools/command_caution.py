r"""Warnings about shell commands that run text which they download or decode.

A command is parsed approximately as a shell would: quotes and backslashes are removed, variables
that it sets are substituted, and it is split into simple commands. So obfuscated forms are
recognised (`c'u'rl … | $X`); in doubt there is a warning. Text beyond the limits below is not
checked, and a note states that.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice, pairwise
from typing import NamedTuple

MAX_CHECKED = 300_000
"""How many characters of a command are read; longer ones are marked."""
# The text comes from a model and may be made to take long, so that every count is bounded.
_MAX_COMMANDS = 2_000
_MAX_OPERATORS = 20_000
_MAX_WORDS = 200
_MAX_VARIABLES = 100
_MAX_REPLACED = 1_000
_MAX_OUTPUTS = 50
_MAX_NAMED = 20
_WRAPPED_WORDS = 12
"""How many words after `sudo` and such may be its options: `sudo -u root nice -n 5 sh`."""

_QUOTES = re.compile(r"\\\n|\\\r\n|[\"'\\]|\$[@*]|\$\{[@*]\}")
_FIELD_SEPARATOR = re.compile(r"\$\{?IFS\b[^\s}]{0,20}\}?")
_ASSIGNMENT = re.compile(r"(?<![\w$])([A-Za-z_]\w{0,40})=([^\s;&|()<>`]{1,60})")
_VARIABLE = re.compile(r"\$(?:([A-Za-z_]\w{0,40})|\{([A-Za-z_]\w{0,40})[^\s{}]{0,40}\})")
_OPERATOR = re.compile(r"\$\(|[<>]\(|(?<![<>])&&?|\|&?|;|\n|[()`]|(?<!\S)[{}](?!\S)")
_REDIRECTION = re.compile(r"(<{1,3}&?|>{1,2}&?)")
_PIPES = frozenset({"|", "|&", ">("})
_KEYWORDS = frozenset({"do", "then", "else", "elif", "if", "while", "until", "!", "time", "{"})
_WRAPPERS = frozenset(
    {
        *("sudo", "doas", "env", "exec", "nohup", "command", "builtin", "xargs", "busybox", "nice"),
        *("timeout", "stdbuf", "setsid", "unbuffer", "ionice", "chroot", "su", "script", "toybox"),
    }
)
_DOWNLOADERS = frozenset(
    {
        *("curl", "wget", "fetch", "aria2c", "invoke-webrequest", "invoke-restmethod", "iwr"),
        *("irm", "nc", "ncat", "netcat", "socat", "ftp", "tftp", "lftp", "scp", "http", "https"),
        *("xh", "lynx", "w3m", "axel", "bitsadmin", "certutil", "telnet"),
    }
)
_ADDRESS = re.compile(r"https?://|ftp://|/dev/(?:tcp|udp)/", re.IGNORECASE)
_SHELL_NAME = re.compile(r"(?:(?:ba|z|da|k|mk|a|c|tc|fi|pw)?sh|cmd|powershell)(?:\.exe)?")
_INTERPRETER_NAME = re.compile(
    r"(?:python|pypy|perl|ruby|node|bun|deno|php|lua|osascript|tclsh)[\d.]{0,8}(?:\.exe)?"
    r"|iex|invoke-expression"
)
_RUNS_TEXT = frozenset({"eval", "source", "."})
_DECODERS = frozenset(
    {
        *("base64", "base32", "basenc", "xxd", "gunzip", "zcat", "uudecode", "rev", "openssl"),
        *("unxz", "xzcat", "bzcat", "zstdcat"),
    }
)
_OUTPUT_OPTION = re.compile(r"(?:-o|-O|--output|--output-document|-OutFile|>{1,2})=?(.{0,200})")
_UNKNOWN_PROGRAM = re.compile(r"[$*?\[]")
_RUNS_IN_CODE = re.compile(r"\b(?:exec|eval|system|popen|spawn)\w{0,10}\s{0,5}\(")
_CODE_OPTIONS = frozenset({"-c", "-e", "-r", "--eval"})
_MAKES_EXECUTABLE = re.compile(r"[ugoa]*\+\w*x\w*|[0-7]?[1357][0-7]{2}")

# Settings of git that name a program, or replace an address.
_GIT_KEY = re.compile(
    r"core\.(?:hookspath|pager|editor|sshcommand|fsmonitor|askpass|gitproxy|worktree|attributesfile)"
    r"|(?:alias|pager|include|includeif|credential|protocol|http|https|gpg|init|url)\..{1,300}"
    r"|.{1,200}\.(?:clean|smudge|process|textconv|command|cmd|driver|program|helper|external"
    r"|insteadof|pushinsteadof|proxy|receivepack|uploadpack|editor|packobjectshook|url)",
    re.IGNORECASE,
)
_SETS_PACKAGES = "it decides where packages come from"
_RUNS_LATER = "the system runs it by itself"
_SETTING_COMMANDS: Mapping[tuple[str, str], str] = {
    **{(name, "config"): _SETS_PACKAGES for name in ("npm", "pnpm", "yarn", "pip", "pip3", "bun")},
    **{("systemctl", verb): _RUNS_LATER for verb in ("enable", "link", "edit", "reenable")},
    **{("launchctl", verb): _RUNS_LATER for verb in ("load", "bootstrap", "enable", "submit")},
}
_LATER_PROGRAMS: Mapping[str, str] = {
    "at": _RUNS_LATER,
    "batch": _RUNS_LATER,
    "schtasks": _RUNS_LATER,
    "ssh-copy-id": "it decides who can log in",
    "chsh": "shells run it when they start",
    "update-alternatives": "it decides which programs run",
}
_READS_ONLY = frozenset({"get", "list", "ls", "debug", "--get", "--list", "-l", "--get-all"})


class _Command(NamedTuple):
    """A simple command: the operator before it, whether it is a substitution, and its words."""

    operator: str
    is_substituted: bool
    words: Sequence[str]

    @property
    def program(self) -> str:
        return _base_name(self.words[0])

    @property
    def is_shell(self) -> bool:
        return _SHELL_NAME.fullmatch(self.program) is not None

    @property
    def runs_text(self) -> bool:
        """Whether the program can run text as code; true for a program in an unknown variable."""
        program = self.program
        return (
            self.is_shell
            or program in _RUNS_TEXT
            or _UNKNOWN_PROGRAM.search(program) is not None
            or (_INTERPRETER_NAME.fullmatch(program) is not None and "json.tool" not in self.words)
        )

    @property
    def has_script(self) -> bool:
        """Whether the command names a script file, so that it does not run its input."""
        arguments = pairwise(self.words)
        names = (
            word for before, word in arguments if word[0] not in "-<>" and before[0] not in "<>"
        )
        return next(names, None) is not None and "-s" not in self.words

    @property
    def is_download(self) -> bool:
        return self.program in _DOWNLOADERS or any(map(_ADDRESS.search, self.words))


def command_notes(command: str) -> Iterator[str]:
    """Yield the warnings about a command, one sentence each."""
    commands, is_whole = _commands(plain_text(command))
    if not is_whole or len(command) > MAX_CHECKED:
        yield "is too long to be checked as a whole"
    downloads = [number for number, one in enumerate(commands) if one.is_download]
    decoders = [number for number, one in enumerate(commands) if one.program in _DECODERS]
    is_piped = bool(downloads) and any(
        one.operator in _PIPES and one.runs_text for one in commands[downloads[0] + 1 :]
    )
    if is_piped:
        yield "pipes a download into a program that runs it"
    elif _is_run(commands, downloads) or (downloads and _runs_in_code(commands, command)):
        yield "runs the text that it downloads"
    if downloads and any(map(_makes_executable, commands[downloads[0] :])):
        yield "downloads something, and makes a file executable"
    if _is_run(commands, decoders) or (
        decoders
        and any(one.operator in _PIPES and one.runs_text for one in commands[decoders[0] + 1 :])
    ):
        yield "decodes text and runs it"
    elif not is_piped and any(
        one.operator in _PIPES and one.is_shell and not one.has_script for one in commands
    ):
        yield "runs text that another program writes"


def setting_notes(command: str) -> Iterator[str]:
    """Yield a note for each command that changes later runs without naming a file."""
    return islice(dict.fromkeys(_settings(command)), _MAX_NAMED)


def _settings(command: str) -> Iterator[str]:
    named = 0
    for one in _commands(plain_text(command))[0]:
        program, words = one.program, one.words[1:]
        if not _READS_ONLY.isdisjoint(words):
            continue
        if program == "git" and "config" in words:
            named += 1
            if named > _MAX_NAMED:
                return  # the pattern of keys is slow, so that few commands are checked
            keys = [word for word in words if _GIT_KEY.fullmatch(word.partition("=")[0][:300])]
            if keys:
                yield f"sets {keys[0][:80]}: git runs what it names"
            continue
        pairs = ((program, word) for word in words)
        reason = next((_SETTING_COMMANDS[pair] for pair in pairs if pair in _SETTING_COMMANDS), "")
        reason = reason or _LATER_PROGRAMS.get(program, "")
        if reason:
            yield f"uses {program}: {reason}"


def plain_text(command: str) -> str:
    """Return a command without quotes and backslashes, with its variables substituted."""
    text = _QUOTES.sub(lambda match: " " if "\n" in match[0] else "", command[:MAX_CHECKED])
    text = _FIELD_SEPARATOR.sub(" ", text)
    values: dict[str, str] = {}
    for match in _ASSIGNMENT.finditer(text):
        values[match[1]] = match[2]
        if len(values) >= _MAX_VARIABLES:
            break

    def value_of(match: re.Match[str]) -> str:
        name: str = match[1] or match[2]
        return values.get(name, f"${name}")

    return _VARIABLE.sub(value_of, text, count=_MAX_REPLACED)


def _commands(text: str) -> tuple[list[_Command], bool]:
    """Split a command at its operators; return simple commands, and whether these are all."""
    commands: list[_Command] = []
    position, operator = 0, ""
    open_brackets: list[bool] = []
    depth = 0
    is_in_backticks = False
    operators = ((match.start(), match.end(), match[0]) for match in _OPERATOR.finditer(text))
    ends = chain(operators, [(len(text), len(text), "")])
    for start, end, following in islice(ends, _MAX_OPERATORS):
        words = _words(text[position:start])
        if not words and operator in _PIPES and following in ("$(", "`"):
            words = ["$"]  # the name of the program is the output of another one
        if words:
            commands.append(_Command(operator, depth > 0 or is_in_backticks, words))
            if len(commands) >= _MAX_COMMANDS:
                return commands, False
        # A group after a pipe reads the piped text.
        is_group = not words and operator in _PIPES and following in ("(", "{", "\n")
        position, operator = end, operator if is_group else following
        if following in ("$(", "<(", ">(", "("):
            open_brackets.append(following in ("$(", "<("))
            depth += open_brackets[-1]
        elif following == ")" and open_brackets:
            depth -= open_brackets.pop()
        elif following == "`":
            is_in_backticks = not is_in_backticks
    return commands, next(ends, None) is None


def _words(text: str) -> list[str]:
    """Return the words of a simple command, without keywords, assignments and wrappers."""
    words = _REDIRECTION.sub(r" \1 ", text).split(None, _MAX_WORDS)[:_MAX_WORDS]
    start = 0
    while start < len(words) and (
        words[start] in _KEYWORDS or _ASSIGNMENT.fullmatch(words[start]) is not None
    ):
        start += 1
    words = words[start:]
    if words and _base_name(words[0]) in _WRAPPERS:
        for number, word in enumerate(words[1:_WRAPPED_WORDS], 1):
            name = _base_name(word)
            one = _Command("", False, [word])  # noqa: FBT003 - a part that has a name
            if one.runs_text or name in _DOWNLOADERS or name in _DECODERS:
                return words[number:]
    return words


def _base_name(word: str) -> str:
    return word.rpartition("/")[2].casefold() or word


def _is_run(commands: Sequence[_Command], sources: Sequence[int]) -> bool:
    """Return whether the output of some commands is run: by a substitution, or as a file."""
    if not sources:
        return False
    first = sources[0]
    if any(commands[number].is_substituted for number in sources):
        return any(one.runs_text for one in commands)
    later = commands[first + 1 :]
    if any(one.program == "eval" or (one.runs_text and _reads_channel(one)) for one in later):
        return True
    outputs = set(_outputs(commands, sources))
    return any(
        _base_name(word) in outputs
        for one in later
        for word in (one.words[1:] if one.runs_text else one.words[:1])
    )


def _reads_channel(one: _Command) -> bool:
    """Return whether a program reads a descriptor that the command opened: `sh <&3`."""
    return "<&" in one.words and not one.has_script


def _outputs(commands: Sequence[_Command], sources: Sequence[int]) -> Iterator[str]:
    """Yield the names of the files to which commands write."""
    for number in sources[:_MAX_OUTPUTS]:
        words = list(commands[number].words)
        is_named = False
        for word, following in zip(words, [*words[1:], ""], strict=True):
            option = _OUTPUT_OPTION.fullmatch(word)
            if option is not None and _base_name(option[1] or following) not in ("-", ""):
                is_named = True
                yield _base_name(option[1] or following)
        if not is_named or "-O" in words:
            yield from (_base_name(word) for word in words if _ADDRESS.search(word))
        for one in commands[number + 1 : number + 4]:
            if one.operator in _PIPES:
                yield from (_base_name(word) for word in one.words if one.program == "tee")
                yield from (_base_name(b) for a, b in pairwise(one.words) if a in (">", ">>"))


def _runs_in_code(commands: Sequence[_Command], command: str) -> bool:
    """Return whether inline code of the command calls a function that runs text."""
    has_code = any(
        _INTERPRETER_NAME.fullmatch(one.program) and _CODE_OPTIONS & set(one.words)
        for one in commands
    )
    return has_code and _RUNS_IN_CODE.search(command) is not None


def _makes_executable(one: _Command) -> bool:
    return one.program == "chmod" and any(map(_MAKES_EXECUTABLE.fullmatch, one.words[1:]))
