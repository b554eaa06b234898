"""Recorded exchanges of Chat Completions; empty where the recordings are absent."""

import corpus
from corpus import Exchange, needs_corpus

__all__ = [
    "Exchange",
    "answers",
    "echoes",
    "errors",
    "exchanges",
    "needs_corpus",
    "requests",
    "streams",
]


def exchanges() -> list[Exchange]:
    """Return every recorded exchange."""
    return corpus.exchanges("openai_chat")


def requests() -> list[Exchange]:
    """Return the exchanges with a recorded request."""
    return [exchange for exchange in exchanges() if exchange["request"] is not None]


def answers() -> list[Exchange]:
    """Return the exchanges with a response that was not streamed."""
    return [
        exchange
        for exchange in exchanges()
        if exchange["status"] < 400 and "choices" in (exchange["response"] or {})
    ]


def streams() -> list[Exchange]:
    """Return the exchanges with a streamed response."""
    return [exchange for exchange in exchanges() if exchange["stream"]]


def errors() -> list[Exchange]:
    """Return the exchanges that the provider refused."""
    return [exchange for exchange in exchanges() if exchange["status"] >= 400]


def echoes() -> list[tuple[Exchange, Exchange]]:
    """Return responses, each with the exchange whose request repeats it verbatim."""
    by_id = {exchange["id"]: exchange for exchange in answers()}
    return [
        (by_id[exchange["echo_of"]], exchange)
        for exchange in exchanges()
        if exchange.get("echo") == "verbatim" and exchange["echo_of"] in by_id
    ]
