"""Decoding of Gemini requests.

A content (wire message) of the user may contain tool results and other parts: each result becomes a
tool message, the parts between results become user messages, and the original form stores which of
them shared a content. The system instruction becomes the first message. All keys except contents
and tools become options. The model is not in the body: it is part of the path and of the context.
"""

import re
from collections.abc import Iterable
from typing import Any, cast

from msgspec.structs import replace

from metis.canonical.blocks import ContentBlock, ToolResultBlock
from metis.canonical.digest import content_digest
from metis.canonical.errors import DecodeError
from metis.canonical.message import Role
from metis.canonical.metadata import MessageMetadata
from metis.canonical.tools import ToolDefinition
from metis.canonical.value import raw_constructor
from metis.wire.call import AdapterOptions, CanonicalRequest, RequestContext
from metis.wire.gemini.key_names import PROTOCOL, field, present_key
from metis.wire.gemini.options import decode_options, decode_tools
from metis.wire.gemini.original_parts import original_form_of_parts, signature_carriers
from metis.wire.gemini.parts import (
    PartDecoder,
    PartEncoder,
    encode_result_object,
    is_result,
)
from metis.wire.json_access import Wire, list_at, maybe_object, object_at, read_object, read_value
from metis.wire.original_form import provider_raw_of
from metis.wire.request import RequestDraft, RequestSteps
from metis.wire.tool_ids import WaitingCall, WaitingCalls, canonical_tool_id

_CONTENT_KEYS = frozenset({"role", "parts"})
# Some clients send results with the role `function` or `tool`, or no role for the user.
_ROLES = {
    "user": Role.USER,
    "model": Role.ASSISTANT,
    "function": Role.USER,
    "tool": Role.USER,
    None: Role.USER,
}
_make_metadata = raw_constructor(MessageMetadata)
_PATH = re.compile(
    r"(?:/[^/?:]+)*?/v1(?:alpha|beta|beta1)?"
    r"(?:/projects/[^/?:]+/locations/[^/?:]+)?(?:/publishers/[^/?:]+)?"
    r"/(?:models/)?(?P<model>[^?:]+):(?P<verb>generateContent|streamGenerateContent)(?:\?.*)?"
)


def parse_path(path: str) -> tuple[str, bool]:
    """Parse a URL path into the model name, and whether it requests a stream.

    >>> parse_path("/v1beta/models/gemini-2.5-flash:streamGenerateContent?alt=sse")
    ('gemini-2.5-flash', True)
    """
    match = _PATH.fullmatch(path)
    if match is None:
        raise DecodeError(
            "expected a path such as /v1beta/models/MODEL:generateContent or "
            f":streamGenerateContent, got {path[:200]!r}"
        )
    return match["model"], match["verb"] == "streamGenerateContent"


class CallPairing:
    """Assigns tool_use_ids to calls, and finds the calls that results belong to.

    Gemini matches results by id or, for calls without an id, by name and order. Then the
    tool_use_id is a hash of the name and the number of the call, so that a history has the same ids
    each time it is decoded (T10).
    """

    def __init__(self, scope: str) -> None:
        self._scope = scope
        self._waiting = WaitingCalls()
        self._counts: dict[str, int] = {}
        self._new_wire_ids: dict[str, str] = {}
        self._in_model_content = False
        self.tool_names: dict[str, str] = {}
        """The names of the called tools, by tool_use_id."""
        self.wire_ids: dict[str, str] = {}
        """The wire ids of all calls and results so far, by tool_use_id."""

    def copy(self) -> "CallPairing":
        """Return an independent copy of the current state."""
        other = CallPairing(self._scope)
        other._waiting, other._counts = self._waiting.copy(), self._counts.copy()
        other._new_wire_ids = self._new_wire_ids.copy()
        other._in_model_content = self._in_model_content
        other.tool_names, other.wire_ids = self.tool_names.copy(), self.wire_ids.copy()
        return other

    def begin_model_content(self) -> None:
        """Begin a content of the model; earlier calls no longer wait for results."""
        if not self._in_model_content:
            self._waiting.clear()
        self._in_model_content = True

    def begin_user_content(self) -> None:
        """Begin a content of the user."""
        self._in_model_content = False

    def take_new_wire_ids(self) -> dict[str, str]:
        """Return the wire ids since the last call of this method, by tool_use_id."""
        wire_ids, self._new_wire_ids = self._new_wire_ids, {}
        return wire_ids

    def id_of_call(self, name: str, wire_id: str | None) -> str:
        """Return the tool_use_id of a call; a repeated wire id is another call (T09)."""
        tool_use_id = self._next_id(wire_id or f"\0{name}")
        self._waiting.add(WaitingCall(tool_use_id, name, wire_id or ""))
        self.tool_names[tool_use_id] = name
        self._record_wire_id(tool_use_id, wire_id)
        return tool_use_id

    def id_of_result(self, name: str, wire_id: str | None) -> str:
        """Return the tool_use_id of the call that a result belongs to."""
        waiting = self._waiting.take(wire_id or "", name)
        if waiting is None:
            tool_use_id = self._next_id(f"\0\0{wire_id or name}")
        else:
            tool_use_id = waiting[0].tool_use_id
        self._record_wire_id(tool_use_id, wire_id)
        return tool_use_id

    def _record_wire_id(self, tool_use_id: str, wire_id: str | None) -> None:
        if wire_id:
            self._new_wire_ids[tool_use_id] = self.wire_ids[tool_use_id] = wire_id

    def _next_id(self, key: str) -> str:
        count = self._counts.get(key, 0)
        self._counts[key] = count + 1
        return canonical_tool_id(self._scope, key, count)


def decode_request(
    body: bytes, context: RequestContext, draft: "GeminiRequestDraft | None" = None
) -> CanonicalRequest:
    """Decode a request body; `draft` is the empty draft to use, by default a general one."""
    draft = draft or GeminiRequestDraft(context)
    try:
        wire = read_object(body, "request")
        _begin(draft, wire)
        contents = wire.pop("contents", None)
        if contents is None:
            raise DecodeError("a request needs a list of contents", path="$.contents")
        if isinstance(contents, dict):
            draft.add(contents, "$.contents", {"single": True})
        else:
            draft.add_all(list_at(contents, "$.contents"))
        return CanonicalRequest(draft.messages(), *_end(wire, context))
    except RecursionError:
        raise DecodeError("the request is nested too deeply") from None


def _begin(draft: "GeminiRequestDraft", wire: Wire) -> None:
    key = present_key(wire, "systemInstruction")
    if wire.get(key) is not None:
        draft.add_system(wire.pop(key), key)


def _add(draft: "GeminiRequestDraft", content: Any, index: int) -> None:
    draft.add(content, f"$.contents[{index}]")


def _add_json(draft: "GeminiRequestDraft", data: bytes, index: int) -> None:
    _add(draft, read_value(data), index)


def _end(wire: Wire, context: RequestContext) -> tuple[tuple[ToolDefinition, ...], AdapterOptions]:
    return decode_tools(field(wire, "tools")), _decode_options(wire, context)


def _decode_options(wire: Wire, context: RequestContext) -> AdapterOptions:
    """Decode the options; the path, if the context has one, contains the model and `stream`."""
    if context.path is None:
        return decode_options(wire, context.model)
    model, is_stream = parse_path(context.path)
    return replace(decode_options(wire, context.model or model), stream=is_stream or None)


class GeminiRequestDraft(RequestDraft):
    """The messages of a request while they are decoded."""

    def __init__(self, context: RequestContext) -> None:
        super().__init__(context, PROTOCOL)
        self._pair_with(CallPairing(context.call_scope))

    def _pair_with(self, pairing: CallPairing) -> None:
        self._pairing = pairing
        self._user_parts = PartDecoder(self._origin, pairing, is_model=False)
        self._model_parts = PartDecoder(self._origin, pairing, is_model=True)

    def _detach(self) -> None:
        self._pair_with(self._pairing.copy())

    def add_system(self, wire: Any, key: str) -> None:
        """Add the system instruction, a content; some clients send a string instead."""
        form: Wire = {"key": "" if key == "systemInstruction" else key}
        if isinstance(wire, str):
            self._add_parts(Role.SYSTEM, [{"text": wire}], {**form, "plain": True})
            return
        content = object_at(wire, f"$.{key}")
        form["keys"] = _other_keys(content)
        self._add_parts(Role.SYSTEM, _parts_of(content, f"$.{key}", form), form)

    def add_all(self, contents: list[Any]) -> None:
        """Add the contents of a request, in order."""
        for index, wire in enumerate(contents):
            self.add(wire, f"$.contents[{index}]")

    def add(self, content: Any, path: str, form: Wire | None = None) -> None:
        """Add one content as one or several canonical messages."""
        wire, form = object_at(content, path), form or {}
        name = wire.get("role")
        role = _ROLES.get(name) if isinstance(name, str | None) else None
        if role is None:
            raise DecodeError(f"unknown role {name!r}", path=f"{path}.role")
        parts = _parts_of(wire, path, form)
        if wire.keys() != _CONTENT_KEYS or name not in ("user", "model"):
            form["keys"] = _other_keys(wire)
            form["roleless"] = not form["keys"]
        # Results without an id belong to the calls of the preceding content of the model.
        if role is Role.ASSISTANT:
            self._pairing.begin_model_content()
            self._add_parts(role, parts, form)
            return
        self._pairing.begin_user_content()
        if not any(map(is_result, parts)):
            self._add_parts(role, parts, form)
            return
        for number, (group_role, group) in enumerate(_groups(parts)):
            group_form = {"joined": True} if number else form
            if group_role is Role.TOOL:
                self._add_result(group, group_form if number else {**form, "apart": True})
            else:
                self._add_parts(group_role, group, group_form)

    def _add_parts(self, role: Role, parts: list[Any], form: Wire) -> None:
        """Add one canonical message, with its original form unless its parts are plain."""
        blocks: list[ContentBlock] = []
        decoder = self._model_parts if role is Role.ASSISTANT else self._user_parts
        is_plain = decoder.decode(parts, blocks)
        ids = self._pairing.take_new_wire_ids()
        content = tuple(blocks)
        if not is_plain:
            encoded = PartEncoder(ids.get, self._pairing.tool_names).encode(content)
            form |= original_form_of_parts(parts, encoded)
            if carriers := signature_carriers(content):
                form["carriers"] = carriers
            if "parts" in form:
                form["digest"] = content_digest(role, content)
        if ids:
            form["ids"] = ids
        raw = provider_raw_of(PROTOCOL, form) if form else None
        metadata = self._bare_metadata
        if raw is not None:
            metadata = _make_metadata(origin=self._origin, provider_raw=raw)
        self._drafts.append((role, content, metadata))

    def _add_result(self, parts: list[Any], form: Wire) -> None:
        """Add a tool message with one result."""
        blocks: list[ContentBlock] = []
        self._user_parts.decode(parts, blocks)
        ids = self._pairing.take_new_wire_ids()
        result = cast("ToolResultBlock", blocks[0])  # `is_result` has checked the part
        self._set_result_form(parts, result, form)
        self._add_result_block(result, ids, {key: value for key, value in form.items() if value})

    def _add_result_block(self, result: ToolResultBlock, ids: dict[str, str], form: Wire) -> None:
        if ids:
            form["ids"] = ids
        metadata = _make_metadata(
            origin=self._origin,
            parent_tool_use_id=result.tool_use_id,
            provider_raw={PROTOCOL: form},
        )
        self._drafts.append((Role.TOOL, (result,), metadata))

    def _set_result_form(self, parts: list[Any], result: ToolResultBlock, form: Wire) -> None:
        """Set the original form of a result; for most only the `response` object is stored."""
        wire = maybe_object(field(maybe_object(parts[0]), "functionResponse"))
        response = wire.get("response")
        encoded = PartEncoder(self._pairing.wire_ids.get, self._pairing.tool_names).encode(
            (result,)
        )
        if isinstance(response, dict) and response != encode_result_object(result):
            form["result"] = encoded[0]["functionResponse"]["response"] = response
        form |= original_form_of_parts(parts, encoded)
        if "parts" in form:
            form["digest"] = content_digest(Role.TOOL, (result,))
            form.pop("result", None)


def _parts_of(wire: Wire, path: str, form: Wire) -> list[Any]:
    """Return the parts of a content; Gemini also accepts a single part, or no key at all."""
    parts = wire.get("parts")
    if type(parts) is list:
        return parts  # pyright: ignore[reportUnknownVariableType] - any JSON
    if isinstance(parts, dict):
        form["bare"] = "part"
        return [parts]
    if "parts" not in wire:
        form["bare"] = "nothing"
        return []
    return list_at(parts, f"{path}.parts")


def _other_keys(wire: Wire) -> Wire:
    return {name: value for name, value in wire.items() if name != "parts"}


def _groups(parts: list[Any]) -> Iterable[tuple[Role, list[Any]]]:
    """Split the parts of a user content into those of canonical messages, in order."""
    group: list[Any] = []
    for part in parts:
        if is_result(part):
            if group:
                yield Role.USER, group
                group = []
            yield Role.TOOL, [part]
        else:
            group.append(part)
    if group:
        yield Role.USER, group


STEPS = RequestSteps(
    key="contents",
    response_mark=b'"model"',
    draft=GeminiRequestDraft,
    begin=_begin,
    add=_add_json,
    end=_end,
)
"""The steps of `decode_request`."""
