"""Record HTTP exchanges in cassettes, and play them back without a server."""

import json
import re
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

# Neither package has types; their values are JSON or are passed on unread.
vcr: Any = import_module("vcr")
yaml: Any = import_module("yaml")

FOLDER = Path(__file__).parent.parent / "cassettes"
NOWHERE = "http://server.invalid"
"""The server address in a recording; nothing listens there."""

_TIMES = re.compile(rb'("(?:created|created_at|completed_at)":)\d+')
_MOMENTS = re.compile(rb'(?<="created_at":")[^"]+')
_IDS = re.compile(
    rb'"(?:id|call_id|item_id|response_id)":\s?"(([A-Za-z]+[-_])?[A-Za-z0-9_-]{16,})"'
)
_SPEED = re.compile(rb'(?<="timings":)\{[^{}]*\}')
_REQUEST_HEADERS = ("content-type", "anthropic-version")
_RESPONSE_HEADERS = ("content-type", "retry-after")
_dumper: Any = type("_Dumper", (yaml.SafeDumper,), {})


def _write_text(dumper: Any, value: str) -> Any:
    style = "|" if "\n" in value else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_dumper.add_representer(str, _write_text)


class _Readable:
    """Cassettes as readable YAML: multi-line bodies stay on several lines."""

    @staticmethod
    def serialize(cassette: dict[str, Any]) -> str:
        return yaml.dump(cassette, Dumper=_dumper, allow_unicode=True, width=100, sort_keys=False)

    @staticmethod
    def deserialize(data: str) -> dict[str, Any]:
        return yaml.safe_load(data)


def cassette(name: str, *, is_recorded: bool = False) -> Any:
    """Record a cassette, or play it back and require each request to equal the recorded one."""
    ids = _Ids()
    made = vcr.VCR(
        cassette_library_dir=str(FOLDER),
        record_mode="all" if is_recorded else "none",
        match_on=["method", "path", "query", "json"],
        before_record_request=partial(_scrub_request, ids),
        before_record_response=partial(_scrub_response, ids),
        decode_compressed_response=True,
        serializer="readable",
    )
    made.register_serializer("readable", _Readable)
    made.register_matcher("json", _same_json)
    return made.use_cassette(f"{name}.yaml")


class _Ids:
    """Replaces ids that a server draws by numbers, so that a new recording gives equal bytes."""

    def __init__(self) -> None:
        self._numbered: dict[bytes, bytes] = {}

    def learn(self, body: bytes) -> None:
        """Number the ids of an answer that did not occur before."""
        for found, prefix in _IDS.findall(body):
            own = f"{len(self._numbered) + 1}".encode()
            self._numbered.setdefault(found, (prefix or b"id_") + own)

    def replace(self, body: bytes) -> bytes:
        """Return a body with numbers in place of ids."""
        for found, number in self._numbered.items():
            body = body.replace(found, number)
        return body


def _same_json(one: Any, other: Any) -> None:
    assert _with_least_limit(json.loads(one.body)) == _with_least_limit(json.loads(other.body))


def _with_least_limit(body: Any) -> Any:
    """Return the body with at least 16 output tokens, the minimum of OpenAI's Responses API.

    The small model was recorded with 12; requests are now raised to the minimum, with a loss.
    """
    if isinstance(body, dict) and "max_output_tokens" in body:
        fields = cast("dict[str, Any]", body)
        return {**fields, "max_output_tokens": max(16, fields["max_output_tokens"])}
    return cast("Any", body)


def _scrub_request(ids: _Ids, request: Any) -> Any:
    """Return the request without the address at which the server listened."""
    place = urlsplit(str(request.uri))
    request.uri = f"{NOWHERE}{place.path}{'?' if place.query else ''}{place.query}"
    headers: dict[str, Any] = dict(request.headers)
    request.headers = {name: headers[name] for name in _REQUEST_HEADERS if name in headers}
    request.body = ids.replace(request.body)
    return request


def _scrub_response(ids: _Ids, response: dict[str, Any]) -> dict[str, Any]:
    """Return the response without times, ids and other values that differ in every recording."""
    headers: dict[str, Any] = response["headers"]
    names = sorted(name for name in headers if name.lower() in _RESPONSE_HEADERS)
    kept = {name: headers[name] for name in names}
    data = _SPEED.sub(b"{}", _TIMES.sub(rb"\g<1>1778241600", response["body"]["string"]))
    data = _MOMENTS.sub(b"2026-05-08T12:00:00Z", data)
    ids.learn(data)
    return {**response, "headers": kept, "body": {"string": ids.replace(data)}}
