"""Read and write the session files of other programs."""

from metis import interchange
from metis.interchange import Format, LoadedDocument, WrittenDocument
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
