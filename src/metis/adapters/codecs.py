"""The codecs by the names of their protocols."""

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Final

from metis.wire.codec import Codec

PROTOCOLS: Final = (
    "anthropic",
    "bedrock_converse",
    "gemini",
    "ollama",
    "openai_chat",
    "openai_responses",
)
"""Every protocol that is spoken."""


class _Codecs(Mapping[str, Codec]):
    """Codecs that are loaded when they are first asked for: most programs speak one or two."""

    def __init__(self) -> None:
        self._loaded: dict[str, Codec] = {}

    def __getitem__(self, protocol: str) -> Codec:
        found = self._loaded.get(protocol)
        if found is None:
            if protocol not in PROTOCOLS:
                raise KeyError(protocol)
            found = self._loaded[protocol] = import_module(f"metis.wire.{protocol}.codec").CODEC
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(PROTOCOLS)

    def __len__(self) -> int:
        return len(PROTOCOLS)


CODECS: Final[Mapping[str, Codec]] = _Codecs()
"""The codec of each protocol."""
