"""Requests of Gemini, decoded.

A user content of the wire may hold tool results and text; each result becomes a tool message, the
rest user messages, and the borders between contents are stored. The system instruction becomes the
first message. Everything that is neither message nor tool goes into the options; the model is not
in the body, it comes with the context.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, cast

from metis.canonical.blocks import ContentBlock, TextBlock, ToolResultBlock
from metis.canonical.digest import content_digest
from metis.canonical.errors import DecodeError
from metis.canonical.ids import new_ulids
from metis.canonical.message import Message, Role
from metis.canonical.metadata import MessageMetadata
from metis.canonical.value import raw_constructor
from metis.wire.call import CanonicalRequest, RequestContext
from metis.wire.gemini.key_names import PROTOCOL, field, present_key
from metis.wire.gemini.options import decode_options, decode_tools
from metis.wire.gemini.parts import (
    PartDecoder,
    PartEncoder,
    decode_result_text,
    encode_result_object,
    is_result,
    original_form_of_parts,
)
from metis.wire.json_access import Wire, list_at, maybe_object, object_at, read_object
from metis.wire.original_form import provider_raw_of
from metis.wire.tool_ids import canonical_tool_id

_PATH = re.compile(
    r"(?:/[^/?:]+)*?/v1(?:alpha|beta|beta1)?"
    r"(?:/projects/[^/?:]+/locations/[^/?:]+)?(?:/publishers/[^/?:]+)?"
    r"/(?:models/)?(?P<model>[^?:]+):(?P<verb>generateContent|streamGenerateContent)(?:\?.*)?"
)


def parse_path(path: str) -> tuple[str, bool]:
    """The model that a path names, and whether it asks for a stream.

    >>> read_path("/v1beta/models/gemini-2.5-flash:streamGenerateContent?alt=sse")
    ('gemini-2.5-flash', True)
    """
    found = _PATH.fullmatch(path)
    if found is None:
        raise DecodeError(f"no path of generateContent: {path[:200]!r}")
    return found["model"], found["verb"] == "streamGenerateContent"


_Waiting = tuple[str, str, str | None]
"""Our id of a call that waits for its result, its name, and the provider's id."""


class CallPairing:
    """Gives calls their ids, and results the ids of the calls that they answer."""

    def __init__(self, scope: str) -> None:
        self._scope = scope
        self._waiting: list[_Waiting] = []
        self._counts: dict[str, int] = {}
        self._given: dict[str, str] = {}
        self._is_answering = False
        self.tool_names: dict[str, str] = {}
        """The names of the tools by the ids of the calls."""
        self.wire_ids: dict[str, str] = {}
        """The provider's ids by ours, of all calls and results so far."""

    def begin_model_content(self) -> None:
        """A turn of the model begins: results that come now answer no earlier turn."""
        if not self._is_answering:
            self._waiting.clear()
        self._is_answering = True

    def begin_user_content(self) -> None:
        """A turn of the user begins."""
        self._is_answering = False

    def take_new_wire_ids(self) -> dict[str, str]:
        """The provider's ids by ours, of all calls and results since this was last asked."""
        given, self._given = self._given, {}
        return given

    def id_of_call(self, name: str, wire_id: str | None) -> str:
        """Our id for a call; an id that is used again is another call (T09)."""
        ours = self._next(wire_id or f"\0{name}")
        self._waiting.append((ours, name, wire_id))
        self.tool_names[ours] = name
        self._note(ours, wire_id)
        return ours

    def id_of_result(self, name: str, wire_id: str | None) -> str:
        """Our id of the call that a result answers."""
        waiting = self._find(name, wire_id)
        if waiting is None:
            ours = self._next(f"\0\0{wire_id or name}")
        else:
            self._waiting.remove(waiting)
            ours = waiting[0]
        self._note(ours, wire_id)
        return ours

    def _note(self, ours: str, theirs: str | None) -> None:
        if theirs:
            self._given[ours] = self.wire_ids[ours] = theirs

    def _find(self, name: str, theirs: str | None) -> _Waiting | None:
        if theirs is not None:
            for each in self._waiting:
                if each[2] == theirs:
                    return each
        for each in self._waiting:
            if each[1] == name and (theirs is None or each[2] is None):
                return each
        return None

    def _next(self, key: str) -> str:
        count = self._counts.get(key, 0)
        self._counts[key] = count + 1
        return canonical_tool_id(self._scope, key, count)


_KEYS_OF_CONTENT = _KEYS_OF_RESULT = 2
_CONTENT = frozenset({"role", "parts"})
_KEYS_WITH_ID = 3
_ROLES = {
    "user": Role.USER,
    "model": Role.ASSISTANT,
    "function": Role.USER,
    "tool": Role.USER,
    None: Role.USER,
}
_ASSISTANT, _TOOL, _USER = Role.ASSISTANT, Role.TOOL, Role.USER
_make_message = raw_constructor(Message)
_make_text = raw_constructor(TextBlock)
_make_result = raw_constructor(ToolResultBlock)
_make_metadata = raw_constructor(MessageMetadata)


def decode_request(body: bytes, context: RequestContext) -> CanonicalRequest:
    """The canonical request of a request body."""
    try:
        return _decode(read_object(body, "request"), context)
    except RecursionError:
        raise DecodeError("nested too deeply") from None


def _decode(wire: Wire, context: RequestContext) -> CanonicalRequest:
    draft = _Draft(context)
    key = present_key(wire, "systemInstruction")
    if wire.get(key) is not None:
        draft.take_system(wire.pop(key), key)
    contents = wire.pop("contents", None)
    if contents is None:
        raise DecodeError("a request has a list of contents", path="$.contents")
    if isinstance(contents, dict):
        draft.take(object_at(contents, "$.contents"), "$.contents", {"single": True})
    else:
        draft.take_all(list_at(contents, "$.contents"))
    tools = decode_tools(field(wire, "tools"))
    return CanonicalRequest(draft.messages(), tools, decode_options(wire, context.model))


class _Draft:
    """The messages of a request while they are read."""

    def __init__(self, context: RequestContext) -> None:
        self._context = context
        self._issuer = context.provider or PROTOCOL
        self._names = CallPairing(context.session_id)
        self._user = PartDecoder(self._issuer, self._names, is_model=False)
        self._model = PartDecoder(self._issuer, self._names, is_model=True)
        self._plain = _make_metadata(origin=self._issuer)
        self._parts: list[tuple[Role, tuple[ContentBlock, ...], MessageMetadata]] = []

    def messages(self) -> tuple[Message, ...]:
        session_id, created_at = self._context.session_id, self._context.created_at
        ids = new_ulids(len(self._parts))
        return tuple(
            [
                _make_message(
                    id=one,
                    session_id=session_id,
                    role=role,
                    content=content,
                    metadata=metadata,
                    created_at=created_at,
                )
                for one, (role, content, metadata) in zip(ids, self._parts, strict=True)
            ]
        )

    def take_system(self, wire: Any, key: str) -> None:
        """Take the system instruction, which is a content or, from some clients, a string."""
        spelling: dict[str, Any] = {"key": "" if key == "systemInstruction" else key}
        if isinstance(wire, str):
            self._add(Role.SYSTEM, [{"text": wire}], {**spelling, "plain": True})
            return
        content = object_at(wire, f"$.{key}")
        spelling["keys"] = _other_keys(content)
        parts = _parts_of(content, f"$.{key}", spelling)
        self._add(Role.SYSTEM, parts, spelling)

    def take_all(self, contents: list[Wire]) -> None:
        """Take all contents, in order."""
        for index, wire in enumerate(contents):
            if type(wire) is dict and len(wire) == _KEYS_OF_CONTENT:
                word, parts = wire.get("role"), wire.get("parts")
                if type(parts) is list and self._take_common(word, cast("list[Wire]", parts)):
                    continue
            path = f"$.contents[{index}]"
            self.take(object_at(wire, path), path, {})

    def _take_common(self, word: Any, parts: list[Wire]) -> bool:
        """Take an answer, a text, or results of common form; false for all else."""
        if word == "model":
            self._names.begin_model_content()
            self._add(_ASSISTANT, parts, {})
            return True
        if word != "user" or not parts:
            return False
        only = parts[0] if len(parts) == 1 else None
        if type(only) is dict and len(only) == 1 and type(text := only.get("text")) is str:
            self._names.begin_user_content()
            self._parts.append((_USER, (_make_text(text),), self._plain))
            return True
        answers = [_common_answer(part) for part in parts]
        if None in answers:
            return False
        self._names.begin_user_content()
        for number, answer in enumerate(answers):
            spelling = {"joined": True} if number else {"apart": True}
            self._take_answer(cast("Wire", answer), parts[number], spelling)
        return True

    def _take_answer(self, answer: Wire, part: Wire, spelling: dict[str, Any]) -> None:
        """Take a result of common form."""
        name, response = answer["name"], answer["response"]
        ours = self._names.id_of_result(name, answer.get("id"))
        said, is_error = decode_result_text(response)
        result = _make_result(ours, said, is_error=is_error)
        ids = self._names.take_new_wire_ids()
        is_unnamed = ours in self._names.wire_ids and not answer.get("id")
        if is_unnamed or self._names.tool_names.get(ours) != name:
            self._remember_result([part], result, spelling)
        elif response != encode_result_object(result):
            spelling["result"] = response
        self._add_answer(result, ids, spelling)

    def _add_answer(
        self, result: ToolResultBlock, ids: dict[str, str], spelling: dict[str, Any]
    ) -> None:
        if ids:
            spelling["ids"] = ids
        metadata = _make_metadata(
            origin=self._issuer,
            parent_tool_use_id=result.tool_use_id,
            provider_raw={PROTOCOL: spelling},
        )
        self._parts.append((_TOOL, (result,), metadata))

    def take(self, wire: Wire, path: str, spelling: dict[str, Any]) -> None:
        """Take one content of the wire: one or several messages of ours."""
        word = wire.get("role")
        role = _ROLES.get(word) if isinstance(word, str | None) else None
        if role is None:
            raise DecodeError(f"unknown role {word!r}", path=f"{path}.role")
        parts = _parts_of(wire, path, spelling)
        if wire.keys() != _CONTENT or word not in ("user", "model"):
            spelling["keys"] = _other_keys(wire)
            spelling["roleless"] = not spelling["keys"]
        if role is Role.ASSISTANT:
            self._names.begin_model_content()
            self._add(role, parts, spelling)
            return
        self._names.begin_user_content()
        if not any(map(is_result, parts)):
            self._add(role, parts, spelling)
            return
        groups = _groups(parts)
        for number, (own_role, own_parts) in enumerate(groups):
            own = {"joined": True} if number else spelling
            if own_role is _TOOL:
                self._add_result(own_parts, own if number else {**own, "apart": True})
            else:
                self._add(own_role, own_parts, own)

    def _add(self, role: Role, parts: list[Any], spelling: dict[str, Any]) -> None:
        blocks: list[ContentBlock] = []
        reader = self._model if role is Role.ASSISTANT else self._user
        is_usual = reader.decode(parts, blocks)
        ids = self._names.take_new_wire_ids()
        content = tuple(blocks)
        if not is_usual:
            self._remember(role, parts, content, ids, spelling)
        if ids:
            spelling["ids"] = ids
        kept = provider_raw_of(PROTOCOL, spelling) if spelling else None
        metadata = (
            self._plain if kept is None else _make_metadata(origin=self._issuer, provider_raw=kept)
        )
        self._parts.append((role, content, metadata))

    def _remember(
        self,
        role: Role,
        parts: list[Any],
        content: tuple[ContentBlock, ...],
        ids: Mapping[str, str],
        spelling: dict[str, Any],
    ) -> None:
        """Note how parts were written, if it is not how we would write them."""
        written = PartEncoder(ids.get, self._names.tool_names).encode(content)
        found = original_form_of_parts(parts, written)
        spelling |= found
        if "parts" in found:
            spelling["digest"] = content_digest(role, content)

    def _add_result(self, parts: list[Any], spelling: dict[str, Any]) -> None:
        """Add the one result that a tool message holds."""
        blocks: list[ContentBlock] = []
        self._user.decode(parts, blocks)
        ids = self._names.take_new_wire_ids()
        result = blocks[0]
        if not isinstance(result, ToolResultBlock):
            raise TypeError("a part that is a result gives a result")
        self._remember_result(parts, result, spelling)
        self._add_answer(result, ids, {name: value for name, value in spelling.items() if value})

    def _remember_result(
        self,
        parts: list[Any],
        result: ToolResultBlock,
        spelling: dict[str, Any],
    ) -> None:
        """Note how a result was written: most differ in the form of the object only."""
        answer = maybe_object(field(maybe_object(parts[0]), "functionResponse"))
        response = answer.get("response")
        if isinstance(response, dict) and response != encode_result_object(result):
            spelling["result"] = response
        written = PartEncoder(self._names.wire_ids.get, self._names.tool_names).encode((result,))
        if "result" in spelling:
            written[0]["functionResponse"]["response"] = response
        found = original_form_of_parts(parts, written)
        spelling |= found
        if "parts" in found:
            spelling["digest"] = content_digest(Role.TOOL, (result,))
            spelling.pop("result", None)


def _common_answer(part: Wire) -> Wire | None:
    """What a part answers, if it is a result that has the common keys and nothing else."""
    answer = part.get("functionResponse") if type(part) is dict and len(part) == 1 else None
    if type(answer) is not dict:
        return None
    own = cast("Wire", answer)
    theirs = own.get("id")
    if len(own) != (_KEYS_WITH_ID if theirs else _KEYS_OF_RESULT):
        return None
    if type(own.get("name")) is not str or type(own.get("response")) is not dict:
        return None
    return own if theirs is None or type(theirs) is str else None


def _parts_of(wire: Wire, path: str, spelling: dict[str, Any]) -> list[Any]:
    """The parts of a content; the servers also take one part for a list of one, or none."""
    parts = wire.get("parts")
    if type(parts) is list:
        return parts  # pyright: ignore[reportUnknownVariableType] - any JSON
    if isinstance(parts, dict):
        spelling["bare"] = "part"
        return [parts]
    if "parts" not in wire:
        spelling["bare"] = "nothing"
        return []
    return list_at(parts, f"{path}.parts")


def _other_keys(wire: Wire) -> Wire:
    return {name: value for name, value in wire.items() if name != "parts"}


def _groups(parts: list[Any]) -> Iterable[tuple[Role, list[Any]]]:
    """The parts of a user content by the messages of ours that they become, in order."""
    open_group: list[Any] = []
    for part in parts:
        if is_result(part):
            if open_group:
                yield Role.USER, open_group
                open_group = []
            yield Role.TOOL, [part]
        else:
            open_group.append(part)
    if open_group:
        yield Role.USER, open_group
