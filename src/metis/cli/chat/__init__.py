"""The chat: a conversation with models at a terminal."""

from metis.cli.chat.chat import run

__all__ = ["run"]
