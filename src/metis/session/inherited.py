"""Inherited: what a thread says of its turns, merged along the way that leads to them."""

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from metis.canonical.errors import CatalogError, InvalidValueError
from metis.session.conversation import Conversation
from metis.session.models import Served
from metis.session.pointers import Pointed, pointed
from metis.session.setup import Setup
from metis.wire.call import AdapterOptions
from metis.wire.reasoning import Reasoning


class Inherited(Struct, frozen=True, kw_only=True):
    """The options of a thread that hold for its next turn; None is what nobody said."""

    provider_ptr: str | None = None
    """Who answers: `kilo`, `kilo.r` for one that thinks, or any name of a model."""
    servers: tuple[str, ...] | None = None
    """The MCP servers whose tools are offered."""
    search: bool | None = None
    """Whether the provider searches by itself."""
    tool_mode: str | None = None
    """How tools are chosen, in a word of the provider."""


def read_inherited(options: Mapping[str, Any]) -> Inherited:
    """The options that mean something here; others are somebody else's and stay as they are.

    Raises:
        InvalidValueError: one of them is of another kind than it should be.
    """
    try:
        return msgspec.convert(options, Inherited)
    except msgspec.ValidationError as error:
        fault, _, place = str(error).partition(" - at `$")
        raise InvalidValueError(fault, path=f"$.options{place.rstrip('`')}") from None


def check_delta(options: Mapping[str, Any]) -> None:
    """Refuse options of a new turn that would mean nothing.

    Raises:
        InvalidValueError: a key that nobody knows, or a value of another kind.
    """
    known = Inherited.__struct_fields__
    for key in options:
        if key not in known:
            fault = f"a turn has no option {key!r}; it has {', '.join(known)}"
            raise InvalidValueError(fault, path=f"$.options.{key}")
    read_inherited(options)


def sticky(setup: Setup, conversation: Conversation) -> str | None:
    """The model that answers unless a turn says otherwise; None leaves it to the rules.

    Raises:
        UnknownModelError: the thread points to nobody.
    """
    found = _pointed(setup, conversation)
    return conversation.pinned if found is None else found.model


def options_of(setup: Setup, conversation: Conversation, model: str) -> AdapterOptions:
    """How a model is asked: as the house says, the thread, and the session."""
    said = read_inherited(conversation.inherited)
    changes: dict[str, Any] = {}
    if said.search is not None:
        changes["search"] = said.search
    if said.tool_mode is not None:
        changes["tool_mode"] = said.tool_mode
    reasoning = conversation.reasoning or _reasoning(setup, conversation, model)
    if reasoning is not None:
        changes["reasoning"] = reasoning
    return replace(setup.options, **changes) if changes else setup.options


def does(setup: Setup, conversation: Conversation, served: Served) -> bool:
    """Whether a model does what the thread asks for, such as a search."""
    options = replace(options_of(setup, conversation, served.id), model=served.id)
    try:
        served.adapter.preview((), setup.tools, options)
    except InvalidValueError:
        return False
    return True


def _reasoning(setup: Setup, conversation: Conversation, model: str) -> Reasoning | None:
    """How much a model shall think, if the thread points to it and says so."""
    try:
        found = _pointed(setup, conversation)
    except CatalogError:  # whoever looks at another model need not mind
        return None
    return found.reasoning if found is not None and found.model == model else None


def _pointed(setup: Setup, conversation: Conversation) -> Pointed | None:
    name = conversation.pointer
    return None if name is None else pointed(name, setup.pointers, setup.models)
