"""Requests of Gemini.

Decoding: a user content of the wire may hold results and text; each result becomes a tool message,
the rest user messages, and the borders between contents are remembered. The system instruction
becomes the first message. Everything that is neither message nor tool goes into the options; the
model is not in the body, it comes with the context.
"""

from collections.abc import Iterable, Mapping
from typing import Any, cast

from metis.canonical.blocks import ContentBlock, ToolResultBlock
from metis.canonical.digest import content_digest
from metis.canonical.errors import DecodeError
from metis.canonical.ids import new_ulids
from metis.canonical.message import Message, Role
from metis.canonical.metadata import MessageMetadata
from metis.canonical.value import made
from metis.wire.call import CanonicalRequest, RequestContext
from metis.wire.gemini.calls import CallNames
from metis.wire.gemini.names import PROTOCOL, field, spelled_key
from metis.wire.gemini.options import decode_options
from metis.wire.gemini.parts import PartReader, PartWriter, is_result, spelling_of_parts
from metis.wire.gemini.results import encode_answer
from metis.wire.gemini.tools import decode_tools
from metis.wire.shape import Wire, list_at, maybe_object, object_at, read_object
from metis.wire.spelling import spelled

_KEYS_OF_RESULT = 2
_KEYS_WITH_ID = 3
_ROLES = {
    "user": Role.USER,
    "model": Role.ASSISTANT,
    "function": Role.USER,
    "tool": Role.USER,
    None: Role.USER,
}
_make_message = made(Message)
_make_metadata = made(MessageMetadata)


def decode_request(body: bytes, context: RequestContext) -> CanonicalRequest:
    """The canonical request of a request body."""
    try:
        return _decode(read_object(body, "request"), context)
    except RecursionError:
        raise DecodeError("nested too deeply") from None


def _decode(wire: Wire, context: RequestContext) -> CanonicalRequest:
    draft = _Draft(context)
    key = spelled_key(wire, "systemInstruction")
    if wire.get(key) is not None:
        draft.take_system(wire.pop(key), key)
    contents = wire.pop("contents", None)
    if contents is None:
        raise DecodeError("a request has a list of contents", path="$.contents")
    if isinstance(contents, dict):
        draft.take(object_at(contents, "$.contents"), "$.contents", {"single": True})
    else:
        for index, content in enumerate(list_at(contents, "$.contents")):
            path = f"$.contents[{index}]"
            draft.take(object_at(content, path), path, {})
    tools = decode_tools(field(wire, "tools"))
    return CanonicalRequest(draft.messages(), tools, decode_options(wire, context.model))


class _Draft:
    """The messages of a request while they are read."""

    def __init__(self, context: RequestContext) -> None:
        self._context = context
        self._issuer = context.provider or PROTOCOL
        self._names = CallNames(context.session_id)
        self._user = PartReader(self._issuer, self._names, is_model=False)
        self._model = PartReader(self._issuer, self._names, is_model=True)
        self._plain = _make_metadata(origin=self._issuer)
        self._parts: list[tuple[Role, tuple[ContentBlock, ...], MessageMetadata]] = []

    def messages(self) -> tuple[Message, ...]:
        session_id, created_at = self._context.session_id, self._context.created_at
        ids = new_ulids(len(self._parts))
        return tuple(
            _make_message(
                id=one,
                session_id=session_id,
                role=role,
                content=content,
                metadata=metadata,
                created_at=created_at,
            )
            for one, (role, content, metadata) in zip(ids, self._parts, strict=True)
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

    def take(self, wire: Wire, path: str, spelling: dict[str, Any]) -> None:
        """Take one content of the wire: one or several messages of ours."""
        word = wire.get("role")
        role = _ROLES.get(word) if isinstance(word, str | None) else None
        if role is None:
            raise DecodeError(f"unknown role {word!r}", path=f"{path}.role")
        parts = _parts_of(wire, path, spelling)
        if len(wire) != len(("role", "parts")) or word not in ("user", "model"):
            spelling["keys"] = _other_keys(wire)
            spelling["roleless"] = not spelling["keys"]
        if role is Role.ASSISTANT:
            self._names.begin_answer()
            self._add(role, parts, spelling)
            return
        self._names.end_answer()
        if not any(map(is_result, parts)):
            self._add(role, parts, spelling)
            return
        groups = _groups(parts)
        for number, (own_role, own_parts) in enumerate(groups):
            own = {"joined": True} if number else spelling
            if own_role is Role.TOOL:
                self._add_result(own_parts, own if number else {**own, "apart": True})
            else:
                self._add(own_role, own_parts, own)

    def _add(self, role: Role, parts: list[Any], spelling: dict[str, Any]) -> None:
        blocks: list[ContentBlock] = []
        reader = self._model if role is Role.ASSISTANT else self._user
        is_usual = reader.read(parts, blocks)
        ids = self._names.given()
        content = tuple(blocks)
        if not is_usual:
            self._remember(role, parts, content, ids, spelling)
        if ids:
            spelling["ids"] = ids
        kept = spelled(PROTOCOL, spelling) if spelling else None
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
        written = PartWriter(ids.get, self._names.by_id).write(content)
        found = spelling_of_parts(parts, written)
        spelling |= found
        if "parts" in found:
            spelling["digest"] = content_digest(role, content)

    def _add_result(self, parts: list[Any], spelling: dict[str, Any]) -> None:
        """Add the one result that a tool message holds."""
        blocks: list[ContentBlock] = []
        self._user.read(parts, blocks)
        ids = self._names.given()
        spelling["ids"] = ids
        result = blocks[0]
        if not isinstance(result, ToolResultBlock):
            raise TypeError("a part that is a result gives a result")
        self._remember_result(parts, result, ids, spelling)
        metadata = _make_metadata(
            origin=self._issuer,
            parent_tool_use_id=result.tool_use_id,
            provider_raw=spelled(PROTOCOL, spelling),
        )
        self._parts.append((Role.TOOL, (result,), metadata))

    def _remember_result(
        self,
        parts: list[Any],
        result: ToolResultBlock,
        ids: Mapping[str, str],
        spelling: dict[str, Any],
    ) -> None:
        """Note how a result was written: most differ in the form of the object only."""
        if self._is_usual_result(parts[0], result, spelling):
            return
        answer = maybe_object(field(maybe_object(parts[0]), "functionResponse"))
        response = answer.get("response")
        if isinstance(response, dict) and response != encode_answer(result):
            spelling["result"] = response
        written = PartWriter(ids.get, self._names.by_id).write((result,))
        if "result" in spelling:
            written[0]["functionResponse"]["response"] = response
        found = spelling_of_parts(parts, written)
        spelling |= found
        if "parts" in found:
            spelling["digest"] = content_digest(Role.TOOL, (result,))
            spelling.pop("result", None)

    def _is_usual_result(
        self, part: Wire, result: ToolResultBlock, spelling: dict[str, Any]
    ) -> bool:
        """Whether a result has the common keys; its object is noted if it has another form."""
        answer = part.get("functionResponse")
        if len(part) != 1 or type(answer) is not dict:
            return False
        own = cast("Wire", answer)
        response, theirs = own.get("response"), own.get("id")
        if len(own) != (_KEYS_WITH_ID if theirs else _KEYS_OF_RESULT) or type(response) is not dict:
            return False
        if own.get("name") != self._names.by_id.get(result.tool_use_id):
            return False
        if response != encode_answer(result):
            spelling["result"] = response
        return True


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
