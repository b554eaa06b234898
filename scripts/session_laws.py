"""Check the laws S1 to S9 on session files of other programs, and count them by format.

    python scripts/session_laws.py DIRECTORY [--verbose]

S1 same records back; S2 tree, order and time; S3 results; S4 sealed parts; S5 usage once; S6 losses
named; S7 there and back twice; S8 growing files, never changed; S9 shared without secrets.
Each cell is the number of files that satisfy a law, of those that it applies to.
"""

import argparse
import hashlib
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

from metis.canonical import validate_session
from metis.canonical.blocks import TextBlock, ToolUseBlock
from metis.canonical.errors import MetisError, UnknownFormatError
from metis.canonical.message import Message, Role
from metis.interchange.redaction import redact
from metis.interchange.registry import detect_format, session_format
from metis.interchange.session_draft import ForeignSession
from metis.interchange.session_export import write_session
from metis.interchange.session_format import SessionFormat, WriteOptions
from metis.interchange.source import Source
from metis.store.threads import Threads

LAWS = ("S1", "S2", "S3", "S4", "S5", "S6", "S7", "S8", "S9")
SEALS = ("signature", "encrypted_content", "thoughtSignature", "encryptedContent")
SECRET = "sk-ant-api03-" + "Q7x" * 20
_OPTIONS = WriteOptions(foreign_id="0a1b2c3d-4e5f-4061-8071-2a3b4c5d6e7f", cwd="/work/owls")
_CUTS = 7


def facts(messages: Sequence[Message]) -> Counter[str]:
    """Return what the blocks of messages say, without ids and without empty texts."""

    def text_of(block: Any) -> Any:
        inner: Any = getattr(block, "content", None)
        return getattr(block, "text", None) if inner is None else [text_of(one) for one in inner]

    return Counter(
        str((block.name, block.input) if isinstance(block, ToolUseBlock) else text_of(block))
        for message in messages
        for block in message.content
        if block != TextBlock("")
    )


def records(data: bytes) -> list[Any]:
    """Return the records of a file: its lines, or the one document that it is."""
    try:
        return [json.loads(data)]
    except ValueError:
        pass
    lines = [line for line in data.removeprefix(b"\xef\xbb\xbf").splitlines() if line.strip()]
    return [_json_or_bytes(line) for line in lines]


def _json_or_bytes(line: bytes) -> Any:
    try:
        return json.dumps(json.loads(line))
    except ValueError:
        return line


def seals(value: Any) -> Iterator[str]:
    """Yield the sealed parts in JSON."""
    if isinstance(value, dict):
        for key, item in cast("dict[str, Any]", value).items():
            if key in SEALS and isinstance(item, str):
                yield item
            else:
                yield from seals(item)
    elif isinstance(value, list):
        for item in cast("list[Any]", value):
            yield from seals(item)


class SessionFile:
    """A file with its sessions, and the laws that it can be checked for."""

    def __init__(self, path: Path, form: SessionFormat) -> None:
        self.path = path
        self.form = form
        self.digest = hashlib.sha256(path.read_bytes()).digest()
        self.sessions = list(form.read(Source(path)))

    @property
    def is_exact(self) -> bool:
        """Whether the program's own form is written, not an export of its directories."""
        if not self.form.is_writable:
            return False
        # opencode's directories and the output of a run are written as the export of a session.
        return self.form.name != "opencode" or b'"messages"' in self.path.read_bytes()

    def s1(self) -> bool | None:
        """Written again, every record is as it was."""
        if not self.is_exact:
            return None
        data = self.path.read_bytes()
        written = self.form.write(self.sessions[0].entries, WriteOptions())
        return records(written.data) == records(data) and not written.losses

    def s2(self) -> bool:
        """Messages obey the rules of a session, and reading again gives the same ids."""
        again = list(self.form.read(Source(self.path)))
        return all(
            validate_session(one.messages()) == [] and one.entries == two.entries
            for one, two in zip(self.sessions, again, strict=True)
        )

    def s3(self) -> bool:
        """Every call has a result or a loss."""
        for session in self.sessions:
            messages = session.messages()
            answered = {m.metadata.parent_tool_use_id for m in messages if m.role is Role.TOOL}
            calls = [b.id for m in messages for b in m.content if isinstance(b, ToolUseBlock)]
            losses = sum(loss.block_type == "tool_use" for loss in session.losses)
            if losses < sum(call not in answered for call in calls):
                return False
        return True

    def s4(self) -> bool | None:
        """Sealed parts of the file are in what is written, bit for bit."""
        if not self.form.is_writable:
            return None
        expected = Counter(seals([_parsed(one) for one in records(self.path.read_bytes())]))
        if not expected:
            return None
        written = self.form.write(self.sessions[0].entries, _OPTIONS)
        return expected == Counter(seals([_parsed(one) for one in records(written.data)]))

    def s5(self) -> bool | None:
        """Usage is counted once for a response."""
        ids = [
            (session.session_id, message.metadata.response_id)
            for session in self.sessions
            for message in session.messages()
            if message.metadata.usage is not None
        ]
        named = [one for one in ids if one[1] is not None]
        return len(named) == len(set(named)) if ids else None

    def s6(self) -> bool | None:
        """Another program gets every block, or a loss names its message."""
        results = [self._is_named(session) for session in self.sessions if session.messages()]
        return all(results) if results else None

    def _is_named(self, session: ForeignSession) -> bool:
        target = session_format("codex" if self.form.name == "claude-code" else "claude-code")
        written = target.write(session.entries, _OPTIONS)
        (back,) = target.read(Source(None, written.data))
        named = {loss.message_id for loss in written.losses}
        sent = facts(back.messages())
        return all(
            message.id in named or facts([message]).keys() <= sent.keys()
            for message in session.messages()
        )

    def s7(self) -> bool | None:
        """The second way there and back loses no block that the first did not."""
        if not self.form.is_writable or not self.sessions[0].messages():
            return None
        other = session_format("codex" if self.form.name == "claude-code" else "claude-code")
        entries: Any = list(self.sessions[0].entries)
        sent: list[Counter[str]] = []
        for form in (other, self.form, other, self.form):
            written = write_session(form, entries, _OPTIONS)
            (session,) = form.read(Source(None, written.data))
            entries = list(session.entries)
            sent.append(facts(Threads(entries).path()))
        return sent[3] == sent[1]

    def s8(self) -> bool:
        """A file that is cut off anywhere is read up to there, and no file is changed."""
        data = self.path.read_bytes()
        if self.path.suffix == ".jsonl":
            for number in range(1, _CUTS):
                cut = data[: len(data) * number // _CUTS]
                list(self.form.read(Source(None, cut)))
        return hashlib.sha256(data).digest() == self.digest

    def s9(self) -> bool:
        """A secret in the file is stored as it is, and is not in what is shared."""
        line = f"key {SECRET} of owl@example.org in /home/owl\n".encode()
        shared, listed = redact(self.path.read_bytes() + line, ["/home/owl"])
        is_clean = not any(word in shared for word in (SECRET.encode(), b"owl@example.org"))
        return is_clean and b"/home/owl" not in shared and len(listed) > 0


def _parsed(record: Any) -> Any:
    if not isinstance(record, str | bytes):
        return record
    try:
        return json.loads(record)
    except ValueError:
        return None


def check(file: SessionFile) -> dict[str, bool | None]:
    """Return which laws a file satisfies; None for those that do not apply to it."""
    laws: dict[str, Callable[[], bool | None]] = {law: getattr(file, law.lower()) for law in LAWS}
    return {law: holds() for law, holds in laws.items()}


def session_files(directory: Path) -> Iterator[SessionFile]:
    """Yield the files of a directory that are sessions of a program that is read."""
    for path in sorted(path for path in directory.rglob("*") if path.is_file()):
        try:
            form = detect_format(Source(path))
        except (UnknownFormatError, OSError):
            continue
        yield SessionFile(path, form)


def main(words: Sequence[str]) -> int:
    """Print the table; return 1 if a law is broken."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--verbose", action="store_true", help="name the files that break a law")
    options = parser.parse_args(words)
    kept: Counter[tuple[str, str]] = Counter()
    applied: Counter[tuple[str, str]] = Counter()
    files: Counter[str] = Counter()
    broken: list[str] = []
    for file in session_files(options.directory):
        name = file.form.name
        files[name] += 1
        try:
            verdicts = check(file)
        except MetisError as error:
            broken.append(f"{file.path}: {error}")
            continue
        for law, holds in verdicts.items():
            applied[name, law] += holds is not None
            kept[name, law] += holds is True
            if holds is False:
                broken.append(f"{file.path}: {law}")
    print(f"{'format':14} files  " + "  ".join(f"{law:>7}" for law in LAWS))
    for name in sorted(files):
        cells = [
            f"{kept[name, law]}/{applied[name, law]}" if applied[name, law] else "-" for law in LAWS
        ]
        print(f"{name:14} {files[name]:5}  " + "  ".join(f"{cell:>7}" for cell in cells))
    for line in broken if options.verbose else ():
        print(line)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
