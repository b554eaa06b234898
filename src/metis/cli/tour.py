"""`metis tour`: the canonical form in four examples that really run."""

import tempfile
from collections.abc import Sequence
from pathlib import Path

import click
from msgspec.structs import replace

from metis.canonical import ImageBlock, Message, decode, encode, validate_session
from metis.catalog import AdapterCapabilities, catalog, cost, price_table, reprice
from metis.cli.examples import START, worked_examples
from metis.cli.render import render_message


def run_tour() -> None:
    """Build, validate, store, read back, price and print the worked examples."""
    examples = worked_examples()
    with tempfile.TemporaryDirectory(prefix="metis-tour-") as folder:
        for number, example in enumerate(examples, 1):
            click.secho(f"{number}. {example.title}", bold=True)
            click.echo(f"   {example.note}\n")
            for message in example.messages:
                click.echo(render_message(message) + "\n")
            click.echo(_checks(example.messages, Path(folder) / f"example-{number}.jsonl") + "\n")
    click.secho("What a swap would meet", bold=True)
    click.echo("   " + _refused_swap(examples[-1].messages) + "\n")
    click.secho("What it cost", bold=True)
    click.echo(_costs([message for example in examples for message in example.messages]))
    click.echo("\nNext: metis schema, metis validate FILE, metis show FILE")


def _checks(messages: Sequence[Message], path: Path) -> str:
    """What was proved about an example: it keeps the rules, and the disk gives back what it got."""
    problems = validate_session(messages, "strict")
    path.write_bytes(b"".join(encode(message) + b"\n" for message in messages))
    again = [decode(line) for line in path.read_bytes().splitlines()]
    digests = ", ".join(message.digest()[:8] for message in again)
    return "\n".join(
        (
            _line(holds=not problems, claim="keeps every rule of the profile strict"),
            _line(
                holds=again == list(messages),
                claim=f"{path.stat().st_size} bytes of JSON, read back equal",
            ),
            _line(holds=True, claim=f"digests {digests}"),
        )
    )


def _line(*, holds: bool, claim: str) -> str:
    return click.style(
        f"   {'✓' if holds else '✗ NOT TRUE:'} {claim}", fg="green" if holds else "red"
    )


def _refused_swap(messages: Sequence[Message]) -> str:
    """A model that cannot see, offered a history with a picture."""
    haiku = catalog().capabilities("anthropic:claude-haiku-4-5")
    blind: AdapterCapabilities = replace(
        haiku, supports_images=False, accepted_image_media_types=()
    )
    has_images = any(isinstance(block, ImageBlock) for one in messages for block in one.content)
    if has_images and not blind.supports_images:
        return (
            "Cannot swap to Haiku-text-only: session contains images that this model "
            "can't process. Active model unchanged."
        )
    return "The history fits."


def _costs(messages: Sequence[Message]) -> str:
    """Each answer's cost, summed, and the same history under today's prices."""
    rows = ["   tokens in/out   model                            cost"]
    for message in messages:
        usage, model = message.metadata.usage, message.metadata.model
        if usage is not None and model is not None:
            amount = cost(usage, model, START)
            tokens = f"{usage.prompt_tokens}/{usage.output_tokens}"
            rows.append(f"   {tokens:<16}{model:<33}${amount}")
    today = reprice(messages, price_table())
    rows.append(
        f"   together ${today.old_total_usd} at prices of 2026-05-08, "
        f"${today.new_total_usd} at prices of {today.pricing_version}"
    )
    return "\n".join(rows)
