"""Report what conversations cost: by model, and what they would cost under another price table."""

import asyncio
import tempfile
from collections import defaultdict
from decimal import Decimal

import metis
from metis import Message, store
from metis.catalog import pricing_versions


async def read_messages(url: str) -> list[Message]:
    """Return the messages of all sessions of a store."""
    async with store.open(url) as opened:
        sessions = await opened.sessions(limit=1000)
        return [message for record in sessions for message in await opened.messages(record.id)]


def report(messages: list[Message]) -> None:
    """Print calls, tokens and cost by model."""
    by_model: dict[str, list[metis.Usage]] = defaultdict(list)
    for message in messages:
        if message.metadata.usage is not None:
            by_model[message.metadata.model or "unknown"].append(message.metadata.usage)
    for model, usages in sorted(by_model.items()):
        tokens = sum(usage.prompt_tokens + usage.output_tokens for usage in usages)
        cost = sum((usage.cost_usd for usage in usages), Decimal(0))
        print(f"{model:40} {len(usages):5} calls {tokens:9} tokens  ${cost}")
    oldest = metis.reprice(messages, pricing_versions()[0])
    print(
        f"under {oldest.pricing_version}: ${oldest.old_total_usd} becomes ${oldest.new_total_usd}"
    )


with tempfile.TemporaryDirectory() as directory:
    address = f"sqlite:///{directory}/chats.db"
    for model in ("sonnet", "gpt-5", "sonnet"):
        metis.ask("20 words", model=model, url=address, options=metis.Options(simulate=True))
    report(asyncio.run(read_messages(address)))
