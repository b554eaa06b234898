"""ModelId: the one way to name a model, `<provider>:<model_name>`."""

import re
from typing import Self

from msgspec import Struct

from metis.canonical.errors import InvalidValueError

# The name is the provider's own; it may hold "/" and ":" (`openrouter:deepseek/deepseek-r1:free`).
_MODEL_ID = re.compile(r"([a-z0-9][a-z0-9_.-]*):([!-~]+)")


class ModelId(Struct, frozen=True, order=True):
    """The canonical id of a model: who serves it, and what it is called there."""

    provider: str
    name: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `<provider>:<model_name>`, split at the first colon."""
        match = _MODEL_ID.fullmatch(text)
        if match is None:
            raise InvalidValueError(
                f"{text!r} is not a model id; it reads <provider>:<model_name>, "
                "such as anthropic:claude-sonnet-4-6"
            )
        return cls(provider=match[1], name=match[2])

    def __str__(self) -> str:
        return f"{self.provider}:{self.name}"


def is_model_id(text: str) -> bool:
    """Whether a text has the form of a canonical model id."""
    return _MODEL_ID.fullmatch(text) is not None
