"""One of everything that a package can add to metis; `pyproject.toml` names each."""

from collections import Counter
from datetime import date
from decimal import Decimal

import click

import metis
from metis.adapters import Auth, chat_host
from metis.events import Event

PROVIDER = chat_host(
    "acme",
    "https://api.acme.example",
    "acme-large",
    auth=Auth(variable="ACME_API_KEY"),
    max_tokens_key="max_completion_tokens",
)
"""A provider in one row: its address, its key, and in what it differs from others."""

PRICES = {
    "pricing_version": "acme-2026-11",
    "source": "https://acme.example/pricing",
    "models": {
        "acme:acme-large": {
            "input_per_mtok_usd": Decimal("1.5"),
            "output_per_mtok_usd": Decimal(6),
        }
    },
}
"""What its models cost; exact amounts, never floats."""

HAIKU = {
    "description": "Write a haiku.",
    "prompt": "Write a haiku about $input.",
    "system": "Answer with three lines and nothing else.",
}
"""A template, with the keys of its TOML file."""


@metis.tool
def days_between(start: date, end: date) -> int:
    """Return the number of days from one date to another."""
    return (end - start).days


@click.command()
def command() -> None:
    """Print the address of Acme."""
    print(PROVIDER.base_url)


turns: Counter[str] = Counter()


async def count_turns(event: Event) -> None:
    """Count what happens; events contain no text of a conversation."""
    turns[event.type] += 1
