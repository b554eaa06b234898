"""Recorded exchanges of Chat Completions; none if they are not beside the checkout."""

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
    """Every recorded exchange."""
    return corpus.exchanges("openai_chat")


def requests() -> list[Exchange]:
    """Exchanges whose request was kept."""
    return [exchange for exchange in exchanges() if exchange["request"] is not None]


def answers() -> list[Exchange]:
    """Exchanges with a plain completion."""
    return [
        exchange
        for exchange in exchanges()
        if exchange["status"] < 400 and "choices" in (exchange["response"] or {})
    ]


def streams() -> list[Exchange]:
    """Exchanges that were streamed."""
    return [exchange for exchange in exchanges() if exchange["stream"]]


def errors() -> list[Exchange]:
    """Exchanges that the provider refused."""
    return [exchange for exchange in exchanges() if exchange["status"] >= 400]


def echoes() -> list[tuple[Exchange, Exchange]]:
    """Plain answers, each with the exchange whose request carries it back word for word."""
    by_id = {exchange["id"]: exchange for exchange in answers()}
    return [
        (by_id[exchange["echo_of"]], exchange)
        for exchange in exchanges()
        if exchange.get("echo") == "verbatim" and exchange["echo_of"] in by_id
    ]
