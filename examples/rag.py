"""Answer questions about files: the passages that share most words with the question go along."""

import re
import tempfile
from collections import Counter
from pathlib import Path

import metis

DOCUMENTS = Path(__file__).parent.parent / "docs"
PASSAGES = 3


def passages(directory: Path) -> list[tuple[str, str]]:
    """Return the paragraphs of all files, each with the name of its file."""
    return [
        (path.name, paragraph)
        for path in sorted(directory.glob("*.md"))
        for paragraph in path.read_text(encoding="utf-8").split("\n\n")
    ]


def score(question: str, text: str) -> float:
    """Return how many words of the question a text has; rare, long words count more."""
    words = Counter(re.findall(r"\w+", text.lower()))
    return sum(len(word) for word in re.findall(r"\w+", question.lower()) if word in words)


def ask(session: metis.session.SyncSession, question: str) -> metis.Reply:
    """Send a question with the best passages, each marked with its file."""
    best = sorted(passages(DOCUMENTS), key=lambda pair: -score(question, pair[1]))[:PASSAGES]
    sources = [f'<source file="{name}">\n{text}\n</source>' for name, text in best]
    return session.ask([*sources, question])


with (
    tempfile.TemporaryDirectory() as directory,
    metis.open_sync(f"sqlite:///{directory}/chats.db", metis.Options(simulate=True)) as m,
):
    chat = m.session(system="Answer from the sources only, and name the file.")
    reply = ask(chat, "Which faults can the simulator make?")
    print(reply.text[:200], reply.cost)
