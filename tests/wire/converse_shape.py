"""Check bodies of Bedrock Converse against botocore's model of the service.

botocore's validator checks types, required keys and unknown keys. This module checks the rest of
the model: enums, patterns, lengths and base64.
"""

import base64
import binascii
import itertools
import re
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from typing import Any

from metis.wire.json_access import maybe_list, maybe_object

TURNS = "messages"
MODEL = "us.anthropic.claude-sonnet-4-5-20250929-v1:0"


@cache
def boto(name: str) -> Any:
    """Import a module of botocore, which has no type hints."""
    return import_module(f"botocore.{name}")


@cache
def operation(name: str = "Converse") -> Any:
    """Return botocore's description of an operation."""
    return boto("session").Session().get_service_model("bedrock-runtime").operation_model(name)


def complaints(body: dict[str, Any]) -> list[str]:
    """Return violations of the service model: botocore's validator, and the rules it skips."""
    shape, given = operation().input_shape, {"modelId": MODEL, **body}
    report: str = boto("validate").ParamValidator().validate(given, shape).generate_report()
    return [*filter(None, report.splitlines()), *_forbidden(given, shape, "$")]


def _forbidden(value: Any, shape: Any, path: str) -> Iterator[str]:
    """Return the constraint violations of a value: enums, patterns, lengths, base64."""
    if getattr(shape, "is_document_type", False):
        return
    kind = shape.type_name
    if kind == "structure":
        for key, inner in maybe_object(value).items():
            if key in shape.members:
                yield from _forbidden(inner, shape.members[key], f"{path}.{key}")
    elif kind == "list":
        yield from _length_faults(value, shape, path)
        for index, inner in enumerate(maybe_list(value)):
            yield from _forbidden(inner, shape.member, f"{path}[{index}]")
    elif kind == "map":
        for key, inner in maybe_object(value).items():
            yield from _forbidden(inner, shape.value, f"{path}.{key}")
    elif isinstance(value, str):
        yield from _text_faults(value, shape, path)


def _text_faults(value: str, shape: Any, path: str) -> Iterator[str]:
    if shape.type_name == "blob":
        try:
            base64.b64decode(value, validate=True)
        except binascii.Error:
            yield f"{path}: no base64"
        return
    yield from _length_faults(value, shape, path)
    enum, pattern = shape.metadata.get("enum"), shape.metadata.get("pattern")
    if enum and value not in enum:
        yield f"{path}: {value!r} is none of {enum}"
    if pattern and not re.fullmatch(pattern, value):
        yield f"{path}: {value!r} is not like {pattern}"


def _length_faults(value: Any, shape: Any, path: str) -> Iterator[str]:
    least, most = shape.metadata.get("min", 0), shape.metadata.get("max")
    if len(value) < least or (most is not None and len(value) > most):
        yield f"{path}: {len(value)} long, not from {least} to {most}"


_NAME = re.compile(r"[A-Za-z0-9()\[\]-]+(?:\s[A-Za-z0-9()\[\]-]+)*")


def faults(body: dict[str, Any]) -> Iterator[str]:
    """Return what the service refuses beyond its model: turn order, blank texts, documents."""
    waiting: list[str] = []
    before = None
    names: list[str] = []
    for turn in body[TURNS]:
        role, parts = turn["role"], turn["content"]
        if role == before or (before is None and role != "user"):
            yield f"{role} follows {before}"
        before = role
        results = [part["toolResult"]["toolUseId"] for part in parts if "toolResult" in part]
        if role == "user":
            if results != waiting:
                yield f"calls {waiting} are followed by results {results}"
            if any("toolResult" in part for part in parts[len(results) :]):
                yield "results do not stand first"
            waiting = []
        else:
            waiting = [part["toolUse"]["toolUseId"] for part in parts if _is_call(part)]
        yield from _turn_faults(parts, names)
    if waiting:
        yield f"calls {waiting} have no results"
    if len(set(names)) != len(names):
        yield f"documents share names: {names}"
    if _uses_tools(body) and "toolConfig" not in body:
        yield "the history uses tools, and none is defined"


def _is_call(part: dict[str, Any]) -> bool:
    return "toolUse" in part and part["toolUse"].get("type") != "server_tool_use"


def _uses_tools(body: dict[str, Any]) -> bool:
    parts = (part for turn in body[TURNS] for part in turn["content"])
    return any("toolUse" in part or "toolResult" in part for part in parts)


def _turn_faults(parts: list[dict[str, Any]], names: list[str]) -> Iterator[str]:
    if not parts:
        yield "a turn without parts"
    is_sealed = any("reasoningContent" in part for part in parts)
    if not is_sealed and any("text" in part and not part["text"].strip() for part in parts):
        yield "a blank text"
    if any("document" in part for part in parts) and not any("text" in part for part in parts):
        yield "a document without a text"
    inner = [part for each in parts for part in each.get("toolResult", {}).get("content", ())]
    shown = [part["document"]["name"] for part in (*parts, *inner) if "document" in part]
    names += shown
    yield from (f"a document is called {name!r}" for name in shown if not _NAME.fullmatch(name))
    for part, following in itertools.pairwise(parts):
        if "cachePoint" in following and ("document" in part or "video" in part):
            yield "a mark right behind a document or a film"


def answer_complaints(body: dict[str, Any]) -> list[str]:
    """Return unknown parts of a response or a stream event, according to the service model."""
    shape = operation().output_shape
    if "output" not in body:
        shape = operation("ConverseStream").output_shape.members["stream"]
    report: str = boto("validate").ParamValidator().validate(body, shape).generate_report()
    return [*filter(None, report.splitlines()), *_forbidden(body, shape, "$")]


def read_answer(body: bytes, status: int = 200) -> dict[str, Any]:
    """Parse a response with botocore's parser."""
    response: dict[str, Any] = {"body": body, "status_code": status, "headers": {}}
    return boto("parsers").create_parser("rest-json").parse(response, operation().output_shape)


def read_stream(data: bytes) -> list[dict[str, Any]]:
    """Parse the frames of a stream with botocore's parser."""
    shape = operation("ConverseStream").output_shape.members["stream"]
    buffer = boto("eventstream").EventStreamBuffer()
    buffer.add_data(data)
    parser = boto("parsers").EventStreamJSONParser()
    return [parser.parse(event.to_response_dict(), shape) for event in buffer]
