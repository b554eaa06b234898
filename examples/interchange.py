"""Read and write the session files of other programs."""

from collections.abc import Iterator

from metis import Role, TextBlock, interchange
from metis.interchange import (
    ForeignConversation,
    ForeignMessage,
    Format,
    LoadedDocument,
    MessageListFormat,
    SessionFormat,
    Source,
    WrittenDocument,
)
from metis.interchange.attocode.messages import AttocodeMessages

data = b'[{"role": "user", "content": "hi", "metadata": {"mood": "calm"}}]'
name = interchange.detect(data)
assert name in interchange.formats()

loaded: LoadedDocument = interchange.load(name, data)
print(loaded.messages[0].content, [str(loss) for loss in loaded.losses])

# What was loaded is written unchanged; another format reports what it cannot hold.
written: WrittenDocument = interchange.dump(name, loaded.entries)
assert written.losses == []
other = interchange.dump("gpt2099-thread", loaded.entries)
print(other.data, [str(loss) for loss in other.losses])

handler: Format = AttocodeMessages()
assert handler.fits(data)


class Notes(MessageListFormat):
    """A format of your own: each line of a file is a prompt; a package adds it as a plugin."""

    name = "notes"
    system = "notes"

    def fits(self, source: Source) -> bool:
        """Return whether the file is one of this format."""
        return source.sample().startswith(b"notes:\n")

    def conversations(self, source: Source) -> Iterator[ForeignConversation]:
        """Yield the conversations of the file."""
        lines = source.read().decode().splitlines()[1:]
        messages = [
            ForeignMessage(role=Role.USER, parts=[TextBlock(line)], key=str(number))
            for number, line in enumerate(lines)
        ]
        yield ForeignConversation(foreign_id=source.identity, messages=messages)


notes: MessageListFormat = Notes()
read_only: SessionFormat = notes
assert not read_only.is_writable
source = Source(None, b"notes:\nbuy milk\nwater the plants\n")
assert notes.fits(source)
(session,) = notes.read(source)
assert [message.role for message in session.messages()] == ["user", "user"]
