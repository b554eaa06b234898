"""Containers: where a provider ran the code of a model, and where files still lie (T199).

A container belongs to the provider that gave it and is gone after a while. A request that asks for
such code again names the container of the last answer, if that is the provider's own and not over
when the newest message was written. Who names one, or speaks to the provider itself, is left alone.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from metis.adapters.profile import Profile
from metis.adapters.toolbox import LostOption
from metis.canonical.blocks import OpaqueBlock
from metis.canonical.message import Message
from metis.projection.loss import Change
from metis.wire.call import AdapterOptions
from metis.wire.shape import Wire, maybe_list, maybe_object, maybe_text
from metis.wire.spelling import spelling_of

_IDLE = timedelta(minutes=20)
"""How long OpenAI keeps a container that nobody uses; it does not say when one ends."""
_ANTHROPIC, _RESPONSES = "anthropic", "openai_responses"


class Container(Struct, frozen=True):
    """A place where code was run."""

    id: str
    issuer: str
    expires_at: datetime


class _Given(Struct):
    """A container as Anthropic tells of it."""

    id: str
    expires_at: datetime


class _Called(Struct):
    """A call of OpenAI's interpreter."""

    container_id: str


_read_called = msgspec.json.Decoder(_Called).decode


def container_of(message: Message) -> Container | None:
    """The container that an answer was given with; None if it ran no code."""
    issuer = message.metadata.provider
    if issuer is None:
        return None
    given = maybe_object(spelling_of(message, _ANTHROPIC).get("response")).get("container")
    if given is not None:
        try:
            found = msgspec.convert(given, _Given)
        except msgspec.ValidationError:
            return None
        return Container(found.id, issuer, found.expires_at)
    return next(_called(message, issuer), None)


def _called(message: Message, issuer: str) -> Iterator[Container]:
    for block in reversed(message.content):
        if type(block) is OpaqueBlock and block.kind == "code_interpreter_call":
            try:
                own = _read_called(bytes(block.raw)).container_id
            except ValueError:
                continue
            yield Container(own, issuer, message.created_at + _IDLE)


def with_container(
    options: AdapterOptions,
    messages: Sequence[Message],
    profile: Profile,
    lost: list[LostOption],
) -> AdapterOptions:
    """The options with the container of the last answer, if they ask for code to be run."""
    native = options.native.get(profile.protocol)
    spell = _SPELLINGS.get(profile.protocol)
    if native is None or spell is None or not messages:
        return options
    found = (container_of(message) for message in reversed(messages))
    last = next((one for one in found if one is not None and one.issuer == profile.name), None)
    if last is None or last.expires_at <= messages[-1].created_at:
        return options
    spelled = spell(native, last.id)
    if spelled is None:
        return options
    reason = "the container of an earlier answer is used again"
    lost.append(LostOption("container", reason, Change.SYNTHESISED))
    return replace(options, native={**options.native, profile.protocol: spelled})


def runs_code(native: Mapping[str, Any] | None) -> bool:
    """Whether a request asks the provider to run code."""
    tools = map(maybe_object, maybe_list((native or {}).get("tools")))
    return any((maybe_text(tool.get("type")) or "").startswith("code_") for tool in tools)


def _anthropic(native: Mapping[str, Any], own: str) -> Wire | None:
    """Anthropic names it beside the tools."""
    return None if native.get("container") else {**native, "container": own}


def _responses(native: Mapping[str, Any], own: str) -> Wire | None:
    """OpenAI names it in the tool, in place of a wish for a new one."""
    tools = [maybe_object(tool) for tool in maybe_list(native.get("tools"))]
    named = [
        {**tool, "container": own}
        if tool.get("type") == "code_interpreter" and _is_new(tool.get("container"))
        else tool
        for tool in tools
    ]
    return None if named == tools else {**native, "tools": named}


def _is_new(container: Any) -> bool:
    wish = maybe_object(container)
    return wish.get("type") == "auto" and not wish.get("file_ids")


_SPELLINGS = {_ANTHROPIC: _anthropic, _RESPONSES: _responses}
