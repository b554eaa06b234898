"""`metis embed` and `metis similar`: vectors of stored messages, and the search by meaning."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import msgspec

from metis.adapters.embeddings import MAX_TEXTS, embedding_path
from metis.canonical.errors import InvalidValueError, MetisError, StoreError
from metis.cli.default_model import SIMULATOR, ModelChooser
from metis.cli.output import StatusLine, echo, echo_json
from metis.cli.stored_sessions import SHORT_ID, find_session
from metis.cli.text import count, escape_controls, style, terminal_width, truncate
from metis.session import Metis, Options
from metis.settings import UserPaths, load
from metis.store.vectors import SimilarText, VectorIndex
from metis.transport.keys import Keys

_SIMULATED_MODEL = "openai:sim-embedding"
_NO_MODEL = (
    "no embedding model: add -m MODEL, such as openai:text-embedding-3-small, "
    "gemini:gemini-embedding-001 or ollama:nomic-embed-text, or set it once with "
    "`metis config set embedding_model MODEL`"
)
_SCORE_WIDTH = 6


def embed_messages(
    url: str | None, model: str | None, *, is_dry_run: bool, is_cleared: bool
) -> int:
    """Compute the vectors of all messages that have none, or delete the stored vectors."""
    if is_cleared:
        return asyncio.run(_clear(url, model))
    return asyncio.run(_embed(url, model, is_dry_run=is_dry_run))


def print_similar(  # noqa: PLR0913 - one parameter an option
    url: str | None, text: str, model: str | None, session: str | None, limit: int, *, as_json: bool
) -> int:
    """Print the messages whose meaning is near to a text; the exit code is 1 if there are none."""
    if not text.strip():
        raise InvalidValueError("expected a text to compare with", path="$.text")
    return asyncio.run(_similar(url, text, model, session, limit, as_json=as_json))


@asynccontextmanager
async def _open_index(
    url: str | None, model: str | None, *, missing: MetisError
) -> AsyncGenerator[tuple[Metis, VectorIndex, str]]:
    """Open the library and its vectors for a model: the named, the configured or the stored one.

    Raises:
        MetisError: `missing`, if there is no model.
    """
    paths = UserPaths.from_environment()
    loaded = load({"store": url}, paths=paths)
    settings = loaded.settings
    name = model or settings.embedding_model
    url = settings.store or paths.store_url
    if name is None:
        async with Metis(url) as library:
            models = await asyncio.to_thread((await library.store.vectors()).models)
        name = next(iter(models), None)
    if name is None:
        raise missing
    # Vectors of the simulator are stored under a separate name: they match no other model's.
    is_simulated = name == _SIMULATED_MODEL or name.partition(":")[0] == SIMULATOR
    options = Options(
        base_urls={} if is_simulated else settings.base_urls,
        key_file=paths.keys,
        simulate=is_simulated,
    )
    async with Metis(url, options) as library:
        resolved = library.models.resolve(_SIMULATED_MODEL if is_simulated else name)
        adapter = library.models.get(resolved).adapter
        embedding_path(adapter.profile, resolved)
        if not is_simulated:
            ModelChooser(loaded, Keys(file=paths.keys), paths.local).require_key(resolved)
        yield library, await library.store.vectors(), resolved


async def _embed(url: str | None, model: str | None, *, is_dry_run: bool) -> int:
    missing = InvalidValueError(_NO_MODEL)
    async with _open_index(url, model, missing=missing) as (library, index, name):
        messages, size = await asyncio.to_thread(index.pending, name)
        if is_dry_run:
            tokens = f"about {max(size // 4000, 1)}k tokens" if size else "no tokens"
            echo(f"{count(messages, 'message')} to embed with {name}, {tokens}; nothing was sent")
            return 0
        status, embedded_count, tokens = StatusLine(), 0, 0
        while True:
            parts, last = await asyncio.to_thread(index.next_parts, name, MAX_TEXTS)
            if not parts:
                break
            stored = await asyncio.to_thread(index.known_vectors, name, parts)
            texts = {part.digest: part.text for part in parts if part.digest not in stored}
            new = await library.embed(list(texts.values()), model=name)
            vectors = dict(zip(texts, new.vectors, strict=True))
            rows = [vectors.get(part.digest) or _unpacked(stored[part.digest]) for part in parts]
            await asyncio.to_thread(index.add, name, parts, rows, last)
            embedded_count, tokens = embedded_count + len(parts), tokens + new.input_tokens
            status.show(f"{count(embedded_count, 'text')} embedded")
        status.clear()
        mark = " (simulated)" if library.options.simulate else ""
        used = f", {tokens} tokens" if tokens else ""
        if embedded_count:
            echo(f"Embedded {count(embedded_count, 'text')} with {name}{mark}{used}.")
            echo('`metis similar "what you remember"` searches them.', err=True)
        else:
            echo(f"Nothing new to embed with {name}{mark}.")
    return 0


def _unpacked(vector: bytes) -> list[float]:
    return list(memoryview(vector).cast("f"))


async def _clear(url: str | None, model: str | None) -> int:
    paths = UserPaths.from_environment()
    async with Metis(
        load({"store": url}, paths=paths).settings.store or paths.store_url
    ) as library:
        index = await library.store.vectors()
        is_simulated = model is not None and model.partition(":")[0] == SIMULATOR
        name = _SIMULATED_MODEL if is_simulated else model
        deleted = await asyncio.to_thread(index.clear, name)
    echo(f"Deleted {count(deleted, 'vector')}.")
    return 0


async def _similar(  # noqa: PLR0913 - one parameter an option
    url: str | None, text: str, model: str | None, session: str | None, limit: int, *, as_json: bool
) -> int:
    missing = StoreError("no message is embedded yet", hint="run `metis embed -m MODEL`")
    async with _open_index(url, model, missing=missing) as (library, index, name):
        if name not in await asyncio.to_thread(index.models):
            hint = f"run `metis embed -m {model or name}`"
            raise StoreError(f"no message is embedded with {name} yet", hint=hint)
        record = None if session is None else await find_session(library.store, session)
        query = await library.embed([text], model=name, is_query=True)
        session_id = None if record is None else record.id
        similar = await asyncio.to_thread(
            lambda: index.find(name, query.vectors[0], session_id=session_id, limit=limit)
        )
    if as_json:
        echo_json(msgspec.json.format(msgspec.json.encode(similar)))
    else:
        for part in similar:
            echo(_line(part))
    return 0 if similar else 1


def _line(similar: SimilarText) -> str:
    """Return a row for a terminal, or with whole ids for a pipe."""
    width, text = terminal_width(), escape_controls(" ".join(similar.text.split()))
    score = f"{similar.score:.2f}"
    if width is None:
        return f"{similar.session_id}  {similar.message_id}  {score}  {text}"
    short_id = style(similar.session_id[-SHORT_ID:], dim=True)
    return f"{short_id}  {score}  {truncate(text, width - SHORT_ID - _SCORE_WIDTH - 2)}"
