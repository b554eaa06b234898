"""A pydantic-ai model that calls any provider through metis.

from pydantic_ai import Agent
from metis.integrations.pydantic_ai import MetisModel

agent = Agent(MetisModel("sonnet"), output_type=Forecast)
"""

import base64
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING, Any, cast

from metis.canonical.blocks import TextBlock, ThinkingBlock, ToolUseBlock
from metis.canonical.errors import InvalidValueError
from metis.canonical.message import Message, Role
from metis.canonical.metadata import StopReason, Usage
from metis.integrations.model_client import (
    History,
    ModelClient,
    ModelResponse,
    OptionalPackage,
    arguments_of,
)
from metis.session.options import Options
from metis.streaming import StreamEvent, TextDelta, ThinkingDelta, ToolUseEnd, ToolUseStart

_EXTRA = "pydantic-ai"
_messages = OptionalPackage("pydantic_ai.messages", _EXTRA)
_models = OptionalPackage("pydantic_ai.models", _EXTRA)
_usage = OptionalPackage("pydantic_ai.usage", _EXTRA)

if TYPE_CHECKING:
    MetisModel: Any

log = logging.getLogger("metis.integrations")

STORED_KEY = "metis_message"
"""The key of `provider_details` under which a response carries its canonical message."""

_SETTINGS: Mapping[str, str] = {
    "max_tokens": "max_completion_tokens",
    "stop_sequences": "stop",
    **{
        name: name
        for name in (
            *("temperature", "top_p", "parallel_tool_calls", "seed"),
            *("presence_penalty", "frequency_penalty", "logit_bias"),
        )
    },
}
"""The settings of pydantic-ai that a request can carry, and their names in Chat Completions."""

_FINISH_REASONS: Mapping[StopReason | None, str] = {
    StopReason.MAX_TOKENS: "length",
    StopReason.TOOL_USE: "tool_call",
    StopReason.REFUSAL: "content_filter",
    StopReason.CONTENT_FILTER: "content_filter",
    StopReason.ERROR: "error",
}


@cache
def _make_class() -> Any:
    class MetisModel(_models.Model):
        """A model of pydantic-ai for any model of metis.

        `provider_details` of a response has the cost in US dollars and the losses of the request.

        Args:
            model: the model, by id or alias; None is `options.default_model`.
            options: keys, addresses, retries; `Options(simulate=True)` for tests.
            settings: the model settings of pydantic-ai, as its other models take them.
            profile: the model profile of pydantic-ai.
        """

        def __init__(
            self,
            model: str | None = None,
            options: Options = Options(),  # noqa: B008 - an immutable value
            *,
            settings: Any = None,
            profile: Any = None,
        ) -> None:
            self.client = ModelClient(model, options)
            super().__init__(settings=settings, profile=profile)  # pyright: ignore[reportUnknownMemberType] - of the extra

        @property
        def model_name(self) -> str:
            """The id of the model."""
            return self.client.model

        @property
        def system(self) -> str:
            """The provider of the model."""
            return self.client.provider

        async def request(
            self, messages: list[Any], model_settings: Any, model_request_parameters: Any
        ) -> Any:
            """Make a call."""
            history, parameters, _ = self._prepare(
                messages, model_settings, model_request_parameters
            )
            return _response(await self.client.acomplete(history, parameters))

        @asynccontextmanager
        async def request_stream(
            self,
            messages: list[Any],
            model_settings: Any,
            model_request_parameters: Any,
            run_context: Any = None,
        ) -> AsyncGenerator[Any]:
            """Make a call whose response is streamed."""
            _ = run_context
            history, parameters, prepared = self._prepare(
                messages, model_settings, model_request_parameters
            )
            events = self.client.astream(history, parameters)
            stream = _make_stream_class()(model_request_parameters=prepared)
            stream.start(events, self.client)
            yield stream

        def _prepare(
            self, messages: Sequence[Any], model_settings: Any, parameters: Any
        ) -> tuple[list[Message], dict[str, Any], Any]:
            settings, parameters = self.prepare_request(model_settings, parameters)
            history = History()
            instructions = self._get_instruction_parts(messages, parameters)
            if instructions:
                history.add(Role.SYSTEM, _messages.InstructionPart.join(instructions))
            for message in messages:
                if message.kind == "response":
                    _add_response(history, message)
                else:
                    _add_request(history, message.parts)
            return history.messages, _parameters(settings or {}, parameters), parameters

    MetisModel.__qualname__ = "MetisModel"
    return MetisModel


def __getattr__(name: str) -> Any:
    # Defined on first use: the base class is in a package that an extra installs.
    if name == "MetisModel":
        return _make_class()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _parameters(settings: Mapping[str, Any], parameters: Any) -> dict[str, Any]:
    """Return the parameters of a Chat Completions request."""
    tools = [
        {
            "type": "function",
            "function": {
                "name": tool.name,
                "description": tool.description or "",
                "parameters": tool.parameters_json_schema,
            },
        }
        for tool in parameters.declared_tool_defs.values()
    ]
    request_parameters: dict[str, Any] = {}
    for name, value in settings.items():
        if name in _SETTINGS:
            request_parameters[_SETTINGS[name]] = value
        elif name != "tool_choice" and value is not None:
            log.warning("the model setting %s is not supported and is not sent", name)
    if tools:
        choice = _tool_choice(settings.get("tool_choice"), parameters)
        request_parameters |= {"tools": tools, "tool_choice": choice}
    return request_parameters


def _tool_choice(choice: Any, parameters: Any) -> Any:
    if choice in ("none", []):
        return "none" if parameters.allow_text_output else "required"
    if choice == "required":
        return "required"
    if isinstance(choice, list) and len(cast("list[str]", choice)) == 1:
        name = cast("list[str]", choice)[0]
        return {"type": "function", "function": {"name": name}}
    if choice in (None, "auto"):
        return None if parameters.allow_text_output else "required"
    raise InvalidValueError(
        "expected auto, none, required or a list of one tool", path="$.tool_choice"
    )


def _add_request(history: History, parts: Iterable[Any]) -> None:
    for part in parts:
        match part.part_kind:
            case "system-prompt":
                history.add(Role.SYSTEM, part.content)
            case "user-prompt":
                content = part.content
                user_content = content if isinstance(content, str) else list(_user_parts(content))
                history.add(Role.USER, user_content)
            case "tool-return":
                text, files = part.model_response_str_and_user_content()
                is_error = part.outcome in ("failed", "retried")
                history.add_result(part.tool_call_id, text, is_error=is_error)
                if files:
                    history.add(Role.USER, list(_user_parts(files)))
            case "retry-prompt" if part.tool_name is not None:
                history.add_result(part.tool_call_id, part.model_response(), is_error=True)
            case "retry-prompt" | "retry-feedback":
                history.add(Role.USER, part.model_response())
            case kind:
                raise InvalidValueError(f"a {kind} part cannot be sent", path="$.messages")


def _user_parts(content: Iterable[Any]) -> Iterable[Mapping[str, Any]]:
    """Yield the content of a prompt as OpenAI writes it."""
    for item in content:
        kind = getattr(item, "kind", "")
        if isinstance(item, str):
            yield {"type": "text", "text": item}
        elif kind in ("text", "text-content"):
            yield {"type": "text", "text": item.content}
        elif kind == "image-url":
            yield {"type": "image_url", "image_url": {"url": item.url}}
        elif kind == "binary":
            yield _binary_part(item)
        elif kind != "cache-point":  # metis places cache marks itself
            raise InvalidValueError(f"{type(item).__name__} cannot be sent", path="$.messages")


def _binary_part(item: Any) -> Mapping[str, Any]:
    data = base64.b64encode(item.data).decode()
    url = f"data:{item.media_type};base64,{data}"
    if item.is_image:
        return {"type": "image_url", "image_url": {"url": url}}
    if item.is_audio:
        return {"type": "input_audio", "input_audio": {"data": data, "format": item.format}}
    return {"type": "file", "file": {"filename": f"file.{item.format}", "file_data": url}}


def _add_response(history: History, message: Any) -> None:
    texts = [part.content for part in message.parts if part.part_kind == "text"]
    calls: list[tuple[str, str, Any]] = [
        (part.tool_call_id, part.tool_name, part.args or "{}")
        for part in message.parts
        if part.part_kind == "tool-call"
    ]
    details: Mapping[str, Any] = message.provider_details or {}
    stored = details.get(STORED_KEY)
    history.add_response("".join(texts), calls, stored)


def _response(response: ModelResponse) -> Any:
    parts: list[Any] = []
    for block in response.message.content:
        match block:
            case TextBlock():
                parts.append(_messages.TextPart(content=block.text))
            case ThinkingBlock() if block.text:
                parts.append(_messages.ThinkingPart(content=block.text))
            case ToolUseBlock():
                arguments = dict(block.input) if block.invalid is None else block.invalid.raw
                parts.append(
                    _messages.ToolCallPart(
                        tool_name=block.name, args=arguments, tool_call_id=block.id
                    )
                )
            case _:
                pass  # the canonical message in `provider_details` has it
    metadata = response.message.metadata
    return _messages.ModelResponse(
        parts=parts,
        usage=_request_usage(metadata.usage),
        model_name=metadata.model,
        provider_name=metadata.provider,
        provider_response_id=metadata.response_id,
        provider_details=_details(response),
        finish_reason=_FINISH_REASONS.get(metadata.stop_reason, "stop"),
    )


def _details(response: ModelResponse) -> dict[str, Any]:
    return {
        STORED_KEY: response.stored,
        "cost_usd": str(response.cost_usd),
        "losses": [str(loss) for loss in response.losses],
    }


def _request_usage(usage: Usage | None) -> Any:
    if usage is None:
        return _usage.RequestUsage()
    return _usage.RequestUsage(
        input_tokens=usage.prompt_tokens,
        output_tokens=usage.output_tokens,
        cache_read_tokens=usage.cached_input_tokens,
        cache_write_tokens=usage.cache_creation_input_tokens + usage.cache_creation_1h_input_tokens,
    )


@cache
def _make_stream_class() -> Any:  # noqa: C901 - a class, defined once its base class can be imported
    class MetisStreamedResponse(_models.StreamedResponse):
        """A response as it arrives."""

        def start(
            self, events: AsyncIterator[StreamEvent | ModelResponse], client: ModelClient
        ) -> None:
            """Set where the events come from."""
            self._events = events
            self._client = client
            self._time = datetime.now(UTC)

        async def _get_event_iterator(self) -> AsyncIterator[Any]:
            names: dict[str, str] = {}
            manager: Any = self._parts_manager
            async for event in self._events:
                match event:
                    case TextDelta():
                        for part in manager.handle_text_delta(
                            vendor_part_id=event.content_block_index, content=event.text
                        ):
                            yield part
                    case ThinkingDelta() if event.text:
                        for part in manager.handle_thinking_delta(
                            vendor_part_id=event.content_block_index, content=event.text
                        ):
                            yield part
                    case ToolUseStart():
                        names[event.tool_use_id] = event.tool_name
                    case ToolUseEnd():
                        yield manager.handle_tool_call_part(
                            vendor_part_id=event.tool_use_id,
                            tool_name=names[event.tool_use_id],
                            args=arguments_of(event),
                            tool_call_id=event.tool_use_id,
                        )
                    case ModelResponse():
                        self._end(event)
                    case _:
                        pass

        def _end(self, response: ModelResponse) -> None:
            metadata = response.message.metadata
            self._usage = _request_usage(metadata.usage)
            self.finish_reason = _FINISH_REASONS.get(metadata.stop_reason, "stop")
            self.provider_response_id = metadata.response_id
            self.provider_details = _details(response)

        async def close_stream(self) -> None:
            """Stop the response; the connection is closed."""
            close: Any = getattr(self._events, "aclose", None)
            if close is not None:
                await close()

        @property
        def model_name(self) -> str:
            """The id of the model."""
            return self._client.model

        @property
        def provider_name(self) -> str:
            """The provider of the model."""
            return self._client.provider

        @property
        def provider_url(self) -> None:
            """None: metis chooses the address."""
            return

        @property
        def timestamp(self) -> datetime:
            """When the response began."""
            return self._time

    return MetisStreamedResponse
