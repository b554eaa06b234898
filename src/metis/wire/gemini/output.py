"""What an answer shall be, as Gemini is told of it: a media type, and a schema in two dialects.

A third way, which Vertex has, holds both in a list of formats.
"""

from collections.abc import Mapping
from typing import Any, cast

from metis.catalog.output import Dialect
from metis.wire.gemini.names import field, put_fields, spelled_key
from metis.wire.gemini.schema import dialect_schema, json_schema
from metis.wire.output import UNSPOKEN, OutputFormat, OutputKeys, SpokenOutput
from metis.wire.shape import Wire, maybe_list, maybe_object

_CONFIG, _MEDIA, _FORMATS = "generationConfig", "responseMimeType", "responseFormat"
_SCHEMA, _DIALECT = "responseJsonSchema", "responseSchema"
_JSON, _TEXT = "application/json", "text/plain"


def _decode(wire: Mapping[str, Any]) -> SpokenOutput:
    config = maybe_object(field(wire, _CONFIG))
    media = field(config, _MEDIA)
    place = f"{spelled_key(wire, _CONFIG)}."
    if media is None:
        return _decode_listed(config, place)
    keys = {place + spelled_key(config, _MEDIA)}
    if media == _TEXT:
        return SpokenOutput(None, frozenset(keys))
    if media != _JSON:
        return UNSPOKEN
    for name, read in ((_SCHEMA, _same), (_DIALECT, json_schema)):
        schema = field(config, name)
        if isinstance(schema, dict):
            keys.add(place + spelled_key(config, name))
            return SpokenOutput(OutputFormat(read(cast("Wire", schema))), frozenset(keys))
    return SpokenOutput(OutputFormat(), frozenset(keys))


def _decode_listed(config: Wire, place: str) -> SpokenOutput:
    """A list with one format that is text; sound and pictures are something else."""
    listed = maybe_list(field(config, _FORMATS))
    own = maybe_object(listed[0]) if len(listed) == 1 else {}
    text = maybe_object(own.get("text"))
    schema, media = text.get("schema"), str(field(text, "mimeType")).lower()
    if len(own) != 1 or media not in (_JSON, "application_json"):
        return UNSPOKEN
    found = OutputFormat(cast("Wire", schema) if isinstance(schema, dict) else None)
    return SpokenOutput(found, frozenset({place + spelled_key(config, _FORMATS)}))


def _same(schema: Wire) -> Wire:
    return schema


def _spell(wire: Wire, output: OutputFormat | None, dialect: Dialect) -> None:
    told: Wire = dict.fromkeys((_MEDIA, _SCHEMA, _DIALECT, _FORMATS))
    if output is not None:
        told[_MEDIA] = _JSON
        if output.schema is not None and dialect == "openapi":
            told[_DIALECT] = dialect_schema(output.schema)
        elif output.schema is not None:
            told[_SCHEMA] = output.schema
    put_fields(wire, _CONFIG, told)


OUTPUT = OutputKeys(_decode, _spell)
