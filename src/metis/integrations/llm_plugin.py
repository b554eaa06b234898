"""A plugin of `llm`: every aliased model of metis as `metis/ALIAS`, and the simulator.

llm install metis-llm
llm -m metis/sonnet "hello"
llm -m metis/sim "hello"
"""

import base64
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from typing import Any, ClassVar

import msgspec

from metis.canonical.errors import InvalidValueError
from metis.canonical.message import Message, Role
from metis.catalog.tables import catalog
from metis.integrations.model_client import (
    History,
    ModelClient,
    ModelResponse,
    OptionalPackage,
)
from metis.session.options import Options
from metis.session.response import json_value_of
from metis.streaming import StreamEvent, TextDelta, ThinkingDelta
from metis.wire.output_format import OutputFormat

_llm = OptionalPackage("llm", "llm")
_parts = OptionalPackage("llm.parts", "llm")

PREFIX = "metis/"
SIMULATOR = "sim"
STORED_KEY = "metis_message"
"""The key of the metadata under which a response carries its canonical message."""

_ROLES = {"system": Role.SYSTEM, "user": Role.USER}
_IMAGES = frozenset({"image/png", "image/jpeg", "image/webp", "image/gif"})
_FILES = frozenset({"application/pdf"})


def register_models(register: Callable[..., None]) -> None:
    """Register the models."""
    model_class, async_model_class = _make_classes()
    for name in (SIMULATOR, *sorted(catalog().aliases)):
        register(model_class(name), async_model_class(name))


if find_spec("llm") is not None:
    register_models = _llm.hookimpl(register_models)


@cache
def _client(name: str) -> ModelClient:
    """Return the client of a model, which the blocking and the async model share."""
    return ModelClient(None, Options(simulate=True)) if name == SIMULATOR else ModelClient(name)


@cache
def _make_classes() -> tuple[Any, Any]:  # noqa: C901 - classes, defined once their base classes can be imported
    class Parameters(_llm.Options):
        """The options of a prompt: `-o temperature 0.5`."""

        temperature: float | None = None
        max_tokens: int | None = None

    class Shared:
        """The attributes that the blocking and the async model share."""

        can_stream = True
        supports_schema = True
        supports_tools = True
        attachment_types = _IMAGES | _FILES
        Options: ClassVar[Any] = Parameters

        def __init__(self, name: str) -> None:
            self.model_id = f"{PREFIX}{name}"
            self._name = name

        @property
        def client(self) -> ModelClient:
            """The client that makes the calls."""
            return _client(self._name)

    class MetisLlmModel(Shared, _llm.Model):
        """A model of `llm` for a model of metis."""

        def execute(
            self, prompt: Any, stream: Any, response: Any, conversation: Any
        ) -> Iterator[Any]:
            """Yield the response."""
            _ = conversation
            history, parameters = _history(prompt.messages), _parameters(prompt)
            if not stream or prompt.schema:
                yield from _complete_response(
                    self.client.complete(history, parameters), prompt, response
                )
                return
            for event in self.client.stream(history, parameters):
                yield from _events(event, response)

    class AsyncMetisLlmModel(Shared, _llm.AsyncModel):
        """An async model of `llm` for a model of metis."""

        async def execute(
            self, prompt: Any, stream: Any, response: Any, conversation: Any
        ) -> AsyncIterator[Any]:
            """Yield the response."""
            _ = conversation
            history, parameters = _history(prompt.messages), _parameters(prompt)
            if not stream or prompt.schema:
                model_response = await self.client.acomplete(history, parameters)
                for event in _complete_response(model_response, prompt, response):
                    yield event
                return
            async for event in self.client.astream(history, parameters):
                for item in _events(event, response):
                    yield item

    return MetisLlmModel, AsyncMetisLlmModel


def _parameters(prompt: Any) -> dict[str, Any]:
    """Return the parameters of a Chat Completions request."""
    parameters: dict[str, Any] = {
        "temperature": prompt.options.temperature,
        "max_completion_tokens": prompt.options.max_tokens,
    }
    if prompt.tools:
        parameters["tools"] = [
            {
                "type": "function",
                "function": {
                    "name": tool.name,
                    "description": tool.description or "",
                    "parameters": tool.input_schema or {"type": "object", "properties": {}},
                },
            }
            for tool in prompt.tools
        ]
    if prompt.schema:
        json_schema = {"name": "output", "schema": prompt.schema}
        parameters["response_format"] = {"type": "json_schema", "json_schema": json_schema}
    return parameters


def _history(messages: Sequence[Any]) -> list[Message]:
    """Return messages of `llm` in the canonical form."""
    history = History()
    for message in messages:
        if message.role == "assistant":
            _add_response(history, message.parts)
        elif message.role == "tool":
            for part in message.parts:
                text = part.exception or part.output
                is_error = bool(part.exception)
                history.add_result(part.tool_call_id or "", text, is_error=is_error)
        else:
            history.add(_ROLES[message.role], list(map(_user_part, message.parts)))
    return history.messages


def _add_response(history: History, parts: Sequence[Any]) -> None:
    kinds = [type(part).__name__ for part in parts]
    texts = [part.text for part, kind in zip(parts, kinds, strict=True) if kind == "TextPart"]
    calls = [
        (part.tool_call_id or "", part.name, part.arguments)
        for part, kind in zip(parts, kinds, strict=True)
        if kind == "ToolCallPart"
    ]
    stored: Any = None
    for part in parts:
        metadata: Mapping[str, Any] = getattr(part, "provider_metadata", None) or {}
        stored = metadata.get(STORED_KEY, stored)
    history.add_response("".join(texts), calls, stored)


def _user_part(part: Any) -> Mapping[str, Any]:
    """Return a part of a prompt as OpenAI writes it."""
    if hasattr(part, "text"):
        return {"type": "text", "text": part.text}
    attachment = getattr(part, "attachment", None)
    if attachment is None:
        raise InvalidValueError(f"a {type(part).__name__} cannot be sent", path="$.messages")
    kind = attachment.resolve_type()
    data = base64.b64encode(attachment.content_bytes()).decode()
    url = f"data:{kind};base64,{data}"
    if kind in _IMAGES:
        return {"type": "image_url", "image_url": {"url": url}}
    return {"type": "file", "file": {"filename": "file.pdf", "file_data": url}}


def _complete_response(model_response: ModelResponse, prompt: Any, response: Any) -> Iterator[Any]:
    if prompt.schema:
        # A provider without structured output gives the value as the arguments of a call.
        value = json_value_of(model_response.message, OutputFormat(schema=prompt.schema))
        _end(model_response, response, has_calls=False)
        yield msgspec.json.encode(value).decode()
        return
    yield model_response.text
    yield from _events(model_response, response)


def _events(event: StreamEvent | ModelResponse, response: Any) -> Iterator[Any]:
    match event:
        case TextDelta():
            yield event.text
        case ThinkingDelta() if event.text:
            yield _parts.StreamEvent(type="reasoning", chunk=event.text)
        case ModelResponse():
            _end(event, response)
            # llm sends `provider_metadata` back with the next prompt, as it does for signatures.
            metadata = {STORED_KEY: event.stored}
            yield _parts.StreamEvent(type="reasoning", chunk="", provider_metadata=metadata)
        case _:
            pass


def _end(model_response: ModelResponse, response: Any, *, has_calls: bool = True) -> None:
    for call in model_response.calls if has_calls else ():
        arguments = dict(call.input)
        tool_call = _llm.ToolCall(name=call.name, arguments=arguments, tool_call_id=call.id)
        response.add_tool_call(tool_call)
    metadata = model_response.message.metadata
    response.response_json = {
        "model": metadata.model,
        "cost_usd": str(model_response.cost_usd),
        "losses": [str(loss) for loss in model_response.losses],
    }
    if metadata.usage is not None:
        usage = metadata.usage
        response.set_usage(input=usage.prompt_tokens, output=usage.output_tokens)
