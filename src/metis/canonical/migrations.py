"""Migrations: how a message of an older version is brought up to date when it is read.

A row is the JSON object of a message, split once: each field still has the bytes that were read, so
that a step touches only what it changes. Steps run on read; the new form reaches the disk only when
somebody saves the message.
"""

from collections.abc import Callable, Mapping

import msgspec
from msgspec import Raw

from metis.canonical.errors import MigrationError
from metis.canonical.message import SCHEMA_VERSION

Row = dict[str, Raw]
"""The fields of a stored message, each as raw JSON."""

Step = Callable[[Row], Row]
"""Turns a row of version n into a row of version n + 1."""


class Migrations:
    """The chain of steps from every older version to the current one."""

    def __init__(self, *, current: int, steps: Mapping[int, Step]) -> None:
        beyond = sorted(version for version in steps if not 1 <= version < current)
        if beyond:
            raise ValueError(f"steps from {beyond} lead nowhere: the current version is {current}")
        self.current = current
        self._steps = dict(steps)

    def upgrade(self, row: Row, version: int) -> Row:
        """Run every step from `version` to the current one."""
        for number in range(version, self.current):
            step = self._steps.get(number)
            if step is None:
                reason = f"no migration leads from version {number} to {number + 1}"
                raise MigrationError(reason, path="$.schema_version")
            try:
                row = dict(step(dict(row)))
            except Exception as error:
                reason = f"the migration from version {number} to {number + 1} failed: {error}"
                raise MigrationError(reason) from error
            row["schema_version"] = Raw(msgspec.json.encode(number + 1))
        return row


MIGRATIONS = Migrations(current=SCHEMA_VERSION, steps={})
"""The steps of this package; version 1 is the first, so there are none yet."""
