"""Unspoken: what messages say in the words of one protocol, where these words are not used."""

from collections.abc import Iterator, Sequence

from metis.adapters.codecs import CODECS
from metis.adapters.profile import Profile
from metis.canonical.message import Message
from metis.projection.loss import Loss


def unsaid(messages: Sequence[Message], profile: Profile) -> Iterator[Loss]:
    """What messages say in the words of another protocol only."""
    for message in messages:
        for protocol in message.metadata.provider_raw or ():
            if protocol == profile.protocol or protocol not in CODECS:
                continue
            for path in CODECS[protocol].unsaid(message):
                reason = f"only {protocol} knows {_key(path)!r}"
                yield _loss(message, path, reason, profile)


def unkept(hosts: Sequence[tuple[Message, Message]], profile: Profile) -> Iterator[Loss]:
    """What a client spelled in messages that are written anew, for others are part of them."""
    found = CODECS[profile.protocol].unsaid
    for before, after in hosts:
        kept = set(map(_key, found(after)))
        for path in found(before):
            if _key(path) not in kept:
                reason = "it is not said where a developer message is attached"
                yield _loss(before, path, reason, profile)


def _key(path: str) -> str:
    return path.rpartition(".")[2]


def _loss(message: Message, path: str, reason: str, profile: Profile) -> Loss:
    return Loss(
        session_id=message.session_id,
        message_id=message.id,
        block_type="key",
        adapter=profile.name,
        reason=reason,
        path=path,
    )
