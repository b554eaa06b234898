"""Features that a client expects of its provider, requested from the host that serves it instead.

Beta features of Anthropic are named in a header or in the body, and each host of Claude accepts
different ones (T220). Clients of providers with automatic caching set no cache marks; where the
serving provider caches only marked prefixes, marks are added for them (T221).
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec.structs import replace

from metis.adapters.hosts import find_profile
from metis.adapters.model import ModelFacts
from metis.adapters.profile import Profile, matches_model
from metis.adapters.tool_options import OptionLoss
from metis.canonical.blocks import TextBlock, ToolResultBlock, ToolUseBlock
from metis.canonical.message import Message, Role
from metis.canonical.metadata import CacheHint
from metis.projection import Change
from metis.wire.call import AdapterOptions, RequestContext
from metis.wire.json_access import maybe_list

BETA_HEADER: Final = "anthropic-beta"
_BETA_KEY: Final = "anthropic_beta"
MAX_BETAS: Final = 64
"""How many beta features of a client are passed on; a client controls the length of the header."""
# Approximate, because the limit decides only whether a mark is worth its price.
_CHARACTERS_PER_TOKEN: Final = 4
_MEDIA_CHARACTERS: Final = 4000
"""The length that an image or a sealed part is assumed to have."""
_INSTRUCTIONS = (Role.SYSTEM, Role.DEVELOPER)


def client_betas(context: RequestContext, native: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the beta features that a client's request names, in its header or its body."""
    listed = [name.strip() for name in context.headers.get(BETA_HEADER, "").split(",")]
    listed += [name for name in maybe_list(native.get(_BETA_KEY)) if isinstance(name, str)]
    return tuple(dict.fromkeys(name for name in listed if name))[:MAX_BETAS]


def accepted_betas(
    options: AdapterOptions, profile: Profile
) -> tuple[tuple[str, ...], list[OptionLoss]]:
    """Return the beta features to request from a host, and a loss for those it does not have.

    Features that a caller or a client of the host itself names are sent unchecked: they may be
    newer than the table of the profile.
    """
    betas = options.betas
    if not betas:
        return (), []
    if options.origin in (None, profile.name):
        return (betas if profile.has_betas else ()), []
    accepted = dict.fromkeys(profile.betas[name] for name in betas if name in profile.betas)
    unsupported = [name for name in betas if name not in profile.betas]
    if not unsupported:
        return tuple(accepted), []
    reason = f"{profile.name} does not have {', '.join(unsupported)}"
    return tuple(accepted), [OptionLoss("betas", reason)]


def beta_headers(betas: Sequence[str], profile: Profile) -> dict[str, str]:
    """Return the header that names beta features, where the host reads one."""
    return {BETA_HEADER: ",".join(betas)} if betas and profile.beta_place == "header" else {}


def beta_keys(betas: Sequence[str], profile: Profile) -> dict[str, Any]:
    """Return the body key that names beta features, where the host reads one."""
    return {_BETA_KEY: list(betas)} if betas and profile.beta_place == "body" else {}


def with_planned_cache(
    options: AdapterOptions,
    messages: Sequence[Message],
    model: ModelFacts,
    profile: Profile,
    *,
    has_tools: bool,
) -> tuple[Mapping[str, Any], Sequence[Message], list[OptionLoss]]:
    """Return native keys or messages with cache marks, for a client whose provider needs none.

    Writing to a cache costs more than reading the prompt once. So only requests are marked that
    another one will probably follow: those with tools, and those that continue a conversation.
    """
    origin = find_profile(options.origin or "")
    if profile.marked_model_pattern is None or not model.target.cache_marks:
        return {}, messages, []
    if origin is None or origin.cache_marks > 0:
        return {}, messages, []
    if not matches_model(profile.marked_model_pattern, model.name):
        return {}, messages, []
    is_continued = has_tools or any(message.role is Role.ASSISTANT for message in messages)
    if not is_continued or not _is_long(messages, model.target.min_cached_tokens):
        return {}, messages, []
    reason = "the client's provider caches by itself; here a prefix has to be marked"
    loss = OptionLoss("cache_control", reason, Change.SYNTHESISED)
    if profile.cache_on_request and profile.is_usual_host:
        return {"cache_control": {"type": "ephemeral"}}, messages, [loss]
    return {}, _with_cache_marks(messages), [loss]


def _with_cache_marks(messages: Sequence[Message]) -> list[Message]:
    """Mark the end of the instructions, of the last message and of the one sent before it."""
    marked = list(messages)
    roles = [message.role for message in messages]
    indexes = {len(messages) - 1}
    if Role.ASSISTANT in roles:
        # The last message of the previous request: a mark there reads the cache entry that the
        # previous request wrote.
        indexes.add(len(roles) - 1 - roles[::-1].index(Role.ASSISTANT) - 1)
    first = next((n for n, role in enumerate(roles) if role not in _INSTRUCTIONS), len(roles))
    indexes.add(first - 1)
    for index in indexes:
        message = messages[index] if index >= 0 else None
        if message is not None and message.content:
            hints = (CacheHint(after=len(message.content) - 1),)
            marked[index] = replace(message, metadata=replace(message.metadata, hints=hints))
    return marked


def _is_long(messages: Sequence[Message], min_tokens: int) -> bool:
    """Whether a prompt may be long enough to be cached; tools are not counted."""
    size, min_characters = 0, min_tokens * _CHARACTERS_PER_TOKEN
    for message in messages:
        for block in message.content:
            match block:
                case TextBlock():
                    size += len(block.text)
                case ToolResultBlock():
                    size += sum(len(b.text) for b in block.content if isinstance(b, TextBlock))
                case ToolUseBlock():
                    size += len(str(block.input))
                case _:
                    size += _MEDIA_CHARACTERS
        if size >= min_characters:
            return True
    return size >= min_characters
