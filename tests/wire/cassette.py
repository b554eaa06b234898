"""Cassettes: what records exchanges over HTTP, and plays them back where no server is."""

import json
import re
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

# Neither has types; what they give is JSON or handed on.
vcr: Any = import_module("vcr")
yaml: Any = import_module("yaml")

FOLDER = Path(__file__).parent.parent / "cassettes"
NOWHERE = "http://server.invalid"
"""Where a server is said to be when nobody listens."""

_TIMES = re.compile(rb'(?<="created":)\d+')
_SPEED = re.compile(rb'(?<="timings":)\{[^{}]*\}')
_REQUEST_HEADERS = ("content-type", "anthropic-version")
_RESPONSE_HEADERS = ("content-type", "retry-after")
_dumper: Any = type("_Dumper", (yaml.SafeDumper,), {})


def _write_text(dumper: Any, value: str) -> Any:
    style = "|" if "\n" in value else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_dumper.add_representer(str, _write_text)


class _Readable:
    """Cassettes as YAML that a person can read: bodies over several lines stay so."""

    @staticmethod
    def serialize(cassette: dict[str, Any]) -> str:
        return yaml.dump(cassette, Dumper=_dumper, allow_unicode=True, width=100, sort_keys=False)

    @staticmethod
    def deserialize(data: str) -> dict[str, Any]:
        return yaml.safe_load(data)


def cassette(name: str, *, is_recorded: bool = False) -> Any:
    """Record a cassette anew, or play it back: then a request must be the recorded one."""
    made = vcr.VCR(
        cassette_library_dir=str(FOLDER),
        record_mode="all" if is_recorded else "none",
        match_on=["method", "path", "json"],
        before_record_request=_scrub_request,
        before_record_response=_scrub_response,
        decode_compressed_response=True,
        serializer="readable",
    )
    made.register_serializer("readable", _Readable)
    made.register_matcher("json", _same_json)
    return made.use_cassette(f"{name}.yaml")


def _same_json(one: Any, other: Any) -> None:
    assert json.loads(one.body) == json.loads(other.body)


def _scrub_request(request: Any) -> Any:
    """The request without the place where the server happened to listen."""
    request.uri = f"{NOWHERE}{urlsplit(str(request.uri)).path}"
    headers: dict[str, Any] = dict(request.headers)
    request.headers = {name: headers[name] for name in _REQUEST_HEADERS if name in headers}
    return request


def _scrub_response(response: dict[str, Any]) -> dict[str, Any]:
    """The response without times, request ids and what else differs for no reason."""
    headers: dict[str, Any] = response["headers"]
    kept = {name: value for name, value in headers.items() if name.lower() in _RESPONSE_HEADERS}
    data = _SPEED.sub(b"{}", _TIMES.sub(b"1778241600", response["body"]["string"]))
    return {**response, "headers": kept, "body": {"string": data}}
