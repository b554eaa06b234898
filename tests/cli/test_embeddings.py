"""`metis embed` and `metis similar` with the simulator."""

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from msgspec.structs import replace

import metis
from build import assistant, provenance, user
from metis.canonical.errors import InvalidValueError
from metis.canonical.ids import new_ulid
from metis.canonical.metadata import MessageStatus
from metis.cli.main import cli
from metis.store import vectors
from metis.store.vectors import MAX_PARTS, PART_CHARACTERS, text_parts, unit_vector

TEXTS = ("the red boat sails to the island", "tax returns are due in April", "my cat sleeps")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("METIS_HOME", str(tmp_path))
    for variable in ("OPENAI_API_KEY", "METIS_EMBEDDING_MODEL"):
        monkeypatch.delenv(variable, raising=False)
    return tmp_path


@pytest.fixture
def stored(home: Path) -> list[str]:
    return asyncio.run(_store(home))


async def _store(home: Path) -> list[str]:
    names: list[str] = []
    async with metis.store.open(f"sqlite:///{home}/metis.db") as store:
        for text in TEXTS:
            record = await store.create_session()
            names.append(record.id)
            await store.append(user(text, id=new_ulid(), session_id=record.id))
    return names


def run(*arguments: str, code: int = 0) -> Result:
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == code, result.output
    return result


def similar(*arguments: str, code: int = 0) -> list[dict[str, Any]]:
    return json.loads(run("similar", *arguments, "--json", code=code).stdout)


def test_messages_are_found_by_meaning(stored: list[str]) -> None:
    assert "3 messages to embed" in run("embed", "-m", "sim", "--dry-run").stdout
    result = run("embed", "-m", "sim")
    assert result.stdout.startswith("Embedded 3 texts with openai:sim-embedding (simulated)")
    assert "Nothing new" in run("embed").stdout
    for text, session, query in zip(TEXTS, stored, ("boats", "taxes", "cats"), strict=True):
        (found,) = similar(query, "--limit", "1")
        assert (found["text"], found["session_id"]) == (text, session)
    line = run("similar", "boats", "--limit", "1").stdout.split("  ")
    assert line[0] == stored[0]
    assert 0 < float(line[2]) <= 1
    assert similar("boats", "--session", stored[1], code=1) == []


@pytest.mark.parametrize("model", ["openai:sim-embedding", "gemini:some", "ollama:some"])
def test_every_protocol_embeds(stored: list[str], model: str) -> None:
    async def embed() -> metis.adapters.Embeddings:
        async with metis.open(options=metis.Options(simulate=True)) as library:
            return await library.embed(["a red boat"] * 70, model=model)

    embeddings = asyncio.run(embed())
    assert len(embeddings.vectors) == 70
    assert embeddings.vectors[0] == embeddings.vectors[69]
    assert embeddings.model == model


def test_deleted_conversations_have_no_vectors(stored: list[str], home: Path) -> None:
    run("embed", "-m", "sim")
    run("sessions", "delete", "-y", stored[0])
    assert "boat" not in run("similar", "boats and taxes due in April").stdout
    # The row of the deleted message may be used again by a new one.
    run("sessions", "delete", "-y", stored[2])
    asyncio.run(_store(home))
    assert "Embedded 3 texts" in run("embed").stdout
    assert similar("boats", "--limit", "1")[0]["text"] == TEXTS[0]


def test_equal_texts_are_sent_once(
    stored: list[str], home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("embed", "-m", "sim")
    asyncio.run(_store(home))
    sent: list[str] = []
    embed = metis.session.Metis.embed

    async def counted(self: Any, texts: Any, **options: Any) -> Any:
        sent.extend(texts)
        return await embed(self, texts, **options)

    monkeypatch.setattr(metis.session.Metis, "embed", counted)
    assert "Embedded 3 texts" in run("embed").stdout
    assert sent == []
    assert len(similar("boats and taxes and cats")) == 3


def test_errors_state_a_remedy(stored: list[str]) -> None:
    assert "run `metis embed -m MODEL`" in run("similar", "x", code=2).stderr
    assert "metis config set embedding_model MODEL" in run("embed", code=2).stderr
    refused = run("embed", "-m", "anthropic:claude-haiku-4-5", code=2).stderr
    assert "anthropic has no embeddings; use a model such as" in refused
    missing = run("embed", "-m", "openai:text-embedding-3-small", code=3).stderr
    assert "set OPENAI_API_KEY" in missing
    run("embed", "-m", "sim")
    other = run("similar", "x", "-m", "ollama:nomic-embed-text", code=2).stderr
    assert "run `metis embed -m ollama:nomic-embed-text`" in other
    assert run("embed", "--clear").stdout == "Deleted 3 vectors.\n"


def test_model_is_read_from_settings(stored: list[str]) -> None:
    run("config", "set", "embedding_model", "sim")
    assert "sim-embedding" in run("embed").stdout
    assert similar("boats")


def test_a_long_message_is_cut_into_parts_that_together_are_its_text() -> None:
    words = " ".join(f"word{number}" for number in range(3000))
    parts = text_parts(user(words))
    assert " ".join(parts) == words
    assert max(map(len, parts)) <= PART_CHARACTERS
    assert len(text_parts(user("x" * 100_000))) == MAX_PARTS
    assert text_parts(assistant("  ")) == []


def test_the_nearest_of_many_are_those_of_an_exact_search(
    stored: list[str], home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Vectors near a query are planted among others; sign comparison first loses none."""
    draw = random.Random(18)  # noqa: S311 - the same numbers every time
    query = [draw.gauss(0, 1) for _ in range(256)]
    near = [[value + draw.gauss(0, 0.5) for value in query] for _ in range(5)]
    others = [[draw.gauss(0, 1) for _ in range(256)] for _ in range(400)]

    async def compare() -> None:
        async with metis.store.open(f"sqlite:///{home}/metis.db") as store:
            record = await store.create_session()
            rows = [*others, *near]
            for number in range(len(rows)):
                await store.append(user(f"message {number}", id=new_ulid(), session_id=record.id))
            index = await store.vectors()
            parts, last = index.next_parts("m", 1000)
            index.add("m", parts, [[1.0] * 256] * 3 + rows, last)
            exact = index.find("m", query, limit=5)
            assert {found.text for found in exact} == {f"message {400 + n}" for n in range(5)}
            monkeypatch.setattr(vectors, "EXACT_VECTORS", 10)
            monkeypatch.setattr(vectors, "MIN_CANDIDATES", 20)
            assert index.find("m", query, limit=5) == exact
            assert exact[0].score == pytest.approx(
                max(
                    sum(a * b for a, b in zip(unit_vector(query), unit_vector(v), strict=True))
                    for v in near
                ),
                abs=1e-3,
            )
            with pytest.raises(InvalidValueError, match="of another length"):
                index.add("m", parts[:1], [[1.0, 2.0]], last)

    asyncio.run(compare())


def test_partial_message_is_embedded_when_complete(home: Path) -> None:
    async def check() -> None:
        async with metis.store.open(f"sqlite:///{home}/metis.db") as store:
            record = await store.create_session()
            await store.append(user("done", id=new_ulid(), session_id=record.id))
            metadata = replace(provenance(), status=MessageStatus.PARTIAL)
            partial = assistant("part", id=new_ulid(), session_id=record.id, metadata=metadata)
            await store.append(partial)
            index = await store.vectors()
            parts, last = index.next_parts("m", 10)
            assert [part.text for part in parts] == ["done"]
            index.add("m", parts, [[1.0]], last)
            assert index.next_parts("m", 10) == ([], last)

    asyncio.run(check())
