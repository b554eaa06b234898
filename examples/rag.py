"""Answer questions about files: the passages that are nearest in meaning go along."""

import tempfile
from operator import mul
from pathlib import Path

import metis
from metis import adapters

DOCUMENTS = Path(__file__).parent.parent / "docs" / "simulator.md"
PASSAGES = 3
# A real one: "openai:text-embedding-3-small" or "ollama:nomic-embed-text".
EMBEDDING_MODEL = "openai:sim-embedding"


def nearest(question: adapters.Embeddings, passages: adapters.Embeddings) -> list[int]:
    """Return the numbers of the passages, the one nearest to the question first."""
    scores = [sum(map(mul, question.vectors[0], vector)) for vector in passages.vectors]
    return sorted(range(len(scores)), key=lambda number: -scores[number])


with (
    tempfile.TemporaryDirectory() as directory,
    metis.open_sync(f"sqlite:///{directory}/chats.db", metis.Options(simulate=True)) as m,
):
    paragraphs = [p for p in DOCUMENTS.read_text(encoding="utf-8").split("\n\n") if p.strip()]
    index = m.embed(paragraphs, model=EMBEDDING_MODEL)

    prompt = "Which faults can the simulator make?"
    query = m.embed([prompt], model=EMBEDDING_MODEL, is_query=True)
    best = nearest(query, index)[:PASSAGES]
    sources = [f"<source number={n}>\n{paragraphs[n]}\n</source>" for n in best]

    chat = m.session(system="Answer from the sources only, and name their numbers.")
    reply = chat.ask([*sources, prompt])
    print(reply.text[:200], reply.cost)
