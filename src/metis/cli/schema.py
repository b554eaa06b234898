"""`metis schema`: the JSON Schema of the canonical form."""

import json

import click

from metis.canonical import json_schema


def print_schema() -> None:
    """Print the JSON Schema, readably."""
    click.echo(json.dumps(json_schema(), indent=2, ensure_ascii=False))
