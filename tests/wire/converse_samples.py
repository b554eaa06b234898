"""Draw Bedrock Converse exchanges from botocore's model of the service."""

import base64
from collections import Counter
from random import Random
from typing import Any

from converse_shape import operation

DEPTH = 8
"""The depth from which only required members are drawn."""
WORDS = ("alpha", "beta gamma", "Grüße", "naïve 日本語", "line\nbreak", "42", " x ")
PIXEL = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(24)).decode()
OBJECT = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}

# Strings in the model of which the service accepts one form only.
FIXED_FORMS: dict[str, tuple[Any, ...]] = {
    "toolUseId": ("tooluse_0123456789abcdefgh", "tooluse_1", "functions.f:0"),
    "name": ("get_weather", "lookup"),
    "uri": ("s3://bucket/a.png",),
    "bucketOwner": ("123456789012",),
    "guardrailIdentifier": ("abc123",),
    "guardrailVersion": ("1",),
    "guardrailId": ("abc123",),
    "guardrailArn": ("arn:aws:bedrock:us-east-1:123456789012:guardrail/abc",),
    "invokedModelId": ("arn:aws:bedrock:us-east-1::foundation-model/a.b",),
    "schema": ('{"type":"object"}', "no JSON"),
    "effort": ("low", "high"),
    "input": ({"a": 1}, {}, {"q": "x", "n": [1, 2.5, None]}),
    "json": (OBJECT,),
}
PLAIN: dict[str, tuple[Any, ...]] = {
    "boolean": (True, False),
    "integer": (1, 7, 1024),
    "long": (0, 420),
    "float": (0.0, 0.5, 1.0),
    "double": (0.0, 0.5),
    "blob": (PIXEL,),
    "timestamp": (1,),
}


def draw_request(seed: int) -> dict[str, Any]:
    """Return a request body that the service model allows; the path names the LLM."""
    drawn = _Drawer(seed).draw(operation().input_shape, keeps={"messages"})
    return {key: value for key, value in drawn.items() if key != "modelId"}


def draw_response(seed: int, drawn: Counter[Any] | None = None) -> dict[str, Any]:
    """Return a response body that the service model allows."""
    return _Drawer(seed, drawn).draw(operation().output_shape)


class _Drawer:
    def __init__(self, seed: int, drawn: Counter[Any] | None = None) -> None:
        self.chance = Random(seed)  # noqa: S311 - no secret is drawn here
        self.drawn = drawn
        """How often earlier draws had a member; what they had least is drawn first."""

    def draw(self, shape: Any, key: str = "", depth: int = 0, keeps: set[str] | None = None) -> Any:
        """Return any JSON value that a shape allows."""
        kind = shape.type_name
        if getattr(shape, "is_document_type", False):
            return self.chance.choice(FIXED_FORMS.get(key, ({"k": ["v", 1]}, {"other": {}})))
        if kind == "structure":
            return self._structure(shape, depth, keeps or set())
        if kind == "list":
            count = self.chance.randint(1, 1 if depth > DEPTH else 3)
            return [self.draw(shape.member, key, depth + 1) for _ in range(count)]
        if kind == "map":
            return {word: self.draw(shape.value, "", depth + 1) for word in ("k", "other")}
        if kind == "string":
            return self.chance.choice(shape.metadata.get("enum") or FIXED_FORMS.get(key, WORDS))
        return self.chance.choice(PLAIN[kind])

    def _structure(self, shape: Any, depth: int, keeps: set[str]) -> dict[str, Any]:
        members = shape.members
        if getattr(shape, "is_tagged_union", False):
            names = [self._least_drawn(shape.name, list(members))]
        else:
            needed = {*shape.required_members, *keeps}
            names = [
                name for name in members if name in needed or self._also(depth, (shape.name, name))
            ]
        return {name: self.draw(members[name], name, depth + 1) for name in names}

    def _least_drawn(self, shape: str, names: list[str]) -> str:
        if self.drawn is None:
            return self.chance.choice(names)
        self.chance.shuffle(names)
        counts = self.drawn
        name = min(names, key=lambda each: counts[shape, each])
        counts[shape, name] += 1
        return name

    def _also(self, depth: int, member: tuple[str, str]) -> bool:
        if depth > DEPTH:
            return False
        is_new = self.drawn is not None and self.drawn[member] == 0
        is_drawn = is_new or self.chance.random() < (0.3 if depth else 0.5)
        if is_drawn and self.drawn is not None:
            self.drawn[member] += 1
        return is_drawn
