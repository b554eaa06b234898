"""A LangChain chat model that calls any provider through metis.

from metis import Options
from metis.integrations.langchain import MetisChatModel

model = MetisChatModel(model="sonnet")
model.invoke("hello"); model.bind_tools([f]); model.with_structured_output(Forecast)
"""

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

from metis.canonical.errors import InvalidValueError
from metis.canonical.message import Role
from metis.canonical.metadata import StopReason, Usage
from metis.integrations.model_client import (
    History,
    ModelClient,
    ModelResponse,
    OptionalPackage,
    arguments_of,
)
from metis.session.options import Options
from metis.streaming import (
    StreamEvent,
    TextDelta,
    ThinkingDelta,
    ToolUseEnd,
    ToolUseStart,
)

_EXTRA = "langchain"
_chat_models = OptionalPackage("langchain_core.language_models.chat_models", _EXTRA)
_messages = OptionalPackage("langchain_core.messages", _EXTRA)
_outputs = OptionalPackage("langchain_core.outputs", _EXTRA)
_function_calling = OptionalPackage("langchain_core.utils.function_calling", _EXTRA)
_pydantic = OptionalPackage("pydantic", _EXTRA)

if TYPE_CHECKING:
    MetisChatModel: Any

STORED_KEY = "metis_message"
"""The key of `additional_kwargs` under which a response carries its canonical message."""

_FINISH_REASONS: Mapping[StopReason | None, str] = {
    StopReason.MAX_TOKENS: "length",
    StopReason.TOOL_USE: "tool_calls",
    StopReason.REFUSAL: "content_filter",
    StopReason.CONTENT_FILTER: "content_filter",
}


@cache
def _make_class() -> Any:  # noqa: C901 - a class, defined once its base class can be imported
    class MetisChatModel(_chat_models.BaseChatModel):
        """A chat model of LangChain for any model of metis.

        `response_metadata` has the model, the cost in US dollars and the losses of the request.
        """

        model: str | None = None
        """The model, by id or alias; None is `options.default_model`."""
        options: Any = Options()
        """Keys, addresses, retries, defaults of requests; `Options(simulate=True)` for tests."""
        temperature: float | None = None
        max_tokens: int | None = None

        model_config: ClassVar[Any] = {"arbitrary_types_allowed": True, "protected_namespaces": ()}
        _client: Any = _pydantic.PrivateAttr(default=None)

        @property
        def client(self) -> ModelClient:
            """The client that makes the calls."""
            if self._client is None:
                self._client = ModelClient(self.model, self.options)
            return self._client

        @property
        def _llm_type(self) -> str:
            return "metis"

        @property
        def _identifying_params(self) -> dict[str, Any]:
            return {
                "model": self.model,
                "temperature": self.temperature,
                "max_tokens": self.max_tokens,
            }

        def bind_tools(
            self,
            tools: Sequence[Mapping[str, Any] | type | Callable[..., Any] | Any],
            *,
            tool_choice: str | Mapping[str, Any] | bool | None = None,
            **kwargs: Any,
        ) -> Any:
            """Bind tools; the choice is `auto`, `none`, `any`, the name of a tool or a mapping."""
            converted = [_function_calling.convert_to_openai_tool(tool) for tool in tools]
            choice = _openai_tool_choice(tool_choice, converted)
            return self.bind(tools=converted, tool_choice=choice, **kwargs)

        def _generate(
            self,
            messages: list[Any],
            stop: list[str] | None = None,
            run_manager: Any = None,
            **kwargs: Any,
        ) -> Any:
            _ = run_manager
            return _result(self.client.complete(_history(messages), self._parameters(stop, kwargs)))

        async def _agenerate(
            self,
            messages: list[Any],
            stop: list[str] | None = None,
            run_manager: Any = None,
            **kwargs: Any,
        ) -> Any:
            _ = run_manager
            parameters = self._parameters(stop, kwargs)
            return _result(await self.client.acomplete(_history(messages), parameters))

        def _stream(
            self,
            messages: list[Any],
            stop: list[str] | None = None,
            run_manager: Any = None,
            **kwargs: Any,
        ) -> Iterator[Any]:
            for event in self.client.stream(_history(messages), self._parameters(stop, kwargs)):
                chunk = _chunk(event)
                if chunk is not None:
                    if run_manager is not None:
                        run_manager.on_llm_new_token(chunk.text, chunk=chunk)
                    yield chunk

        async def _astream(
            self,
            messages: list[Any],
            stop: list[str] | None = None,
            run_manager: Any = None,
            **kwargs: Any,
        ) -> AsyncIterator[Any]:
            parameters = self._parameters(stop, kwargs)
            async for event in self.client.astream(_history(messages), parameters):
                chunk = _chunk(event)
                if chunk is not None:
                    if run_manager is not None:
                        await run_manager.on_llm_new_token(chunk.text, chunk=chunk)
                    yield chunk

        def _parameters(self, stop: list[str] | None, kwargs: Mapping[str, Any]) -> dict[str, Any]:
            # LangChain passes `ls_…` arguments that describe the call to its tracing only.
            request = {name: value for name, value in kwargs.items() if not name.startswith("ls_")}
            return {
                "temperature": self.temperature,
                "max_completion_tokens": self.max_tokens,
                "stop": stop,
                **request,
            }

    MetisChatModel.__qualname__ = "MetisChatModel"
    return MetisChatModel


def __getattr__(name: str) -> Any:
    # Defined on first use: the base class is in a package that an extra installs.
    if name == "MetisChatModel":
        return _make_class()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _openai_tool_choice(choice: Any, tools: Sequence[Mapping[str, Any]]) -> Any:
    """Return LangChain's choice of a tool as Chat Completions writes it."""
    names = {tool["function"]["name"] for tool in tools if "function" in tool}
    if choice in ("any", True):
        return "required"
    if choice in names:
        return {"type": "function", "function": {"name": choice}}
    return None if choice is False else choice


_ROLES = {"system": Role.SYSTEM, "human": Role.USER, "user": Role.USER, "developer": Role.DEVELOPER}


def _history(messages: Sequence[Any]) -> list[Any]:
    """Return messages of LangChain in the canonical form."""
    history = History()
    for message in messages:
        content = _content(message)
        # `AIMessageChunk`, a chunk of a stream or their sum, counts as a message as well.
        kind = message.type.removesuffix("MessageChunk").lower()
        role = getattr(message, "role", kind)
        if kind == "ai":
            calls = [(call["id"] or "", call["name"], call["args"]) for call in message.tool_calls]
            calls += [
                (call["id"] or "", call["name"] or "", call["args"])
                for call in message.invalid_tool_calls
            ]
            stored = message.additional_kwargs.get(STORED_KEY)
            history.add_response(_text(content), calls, stored)
        elif kind == "tool":
            is_error = message.status == "error"
            history.add_result(message.tool_call_id, content, is_error=is_error)
        elif role in _ROLES:
            history.add(_ROLES[role], content)
        else:
            raise InvalidValueError(f"cannot convert a {message.type} message", path="$.messages")
    return history.messages


def _content(message: Any) -> str | list[Mapping[str, Any]]:
    """Return the content of a message as OpenAI writes it."""
    if isinstance(message.content, str):
        return message.content
    converted: Any = _messages.convert_to_openai_messages([message])
    content = converted[0].get("content") if converted else ""
    return content or ""


def _text(content: str | Sequence[Mapping[str, Any]]) -> str:
    if isinstance(content, str):
        return content
    return "".join(str(part.get("text", "")) for part in content)


def _result(response: ModelResponse) -> Any:
    calls = [call for call in response.calls if call.invalid is None]
    message = _messages.AIMessage(
        content=response.text,
        id=response.message.id,
        tool_calls=[{"id": call.id, "name": call.name, "args": dict(call.input)} for call in calls],
        invalid_tool_calls=[
            {
                "id": call.id,
                "name": call.name,
                "args": call.invalid.raw,
                "error": call.invalid.error,
            }
            for call in response.calls
            if call.invalid is not None
        ],
        additional_kwargs={STORED_KEY: response.stored},
        response_metadata=_metadata(response),
        usage_metadata=_usage(response.message.metadata.usage),
    )
    return _outputs.ChatResult(generations=[_outputs.ChatGeneration(message=message)])


def _metadata(response: ModelResponse) -> dict[str, Any]:
    metadata = response.message.metadata
    return {
        "model_name": metadata.model,
        "model_provider": metadata.provider,
        "finish_reason": _FINISH_REASONS.get(metadata.stop_reason, "stop"),
        "cost_usd": str(response.cost_usd),
        "losses": [str(loss) for loss in response.losses],
    }


def _usage(usage: Usage | None) -> dict[str, Any] | None:
    if usage is None:
        return None
    cache_writes = usage.cache_creation_input_tokens + usage.cache_creation_1h_input_tokens
    return {
        "input_tokens": usage.prompt_tokens,
        "output_tokens": usage.output_tokens,
        "total_tokens": usage.prompt_tokens + usage.output_tokens,
        "input_token_details": {
            "cache_read": usage.cached_input_tokens,
            "cache_creation": cache_writes,
        },
    }


def _chunk(event: StreamEvent | ModelResponse) -> Any:
    """Return the chunk of an event; None if it adds nothing for LangChain."""
    fields: dict[str, Any]
    match event:
        case TextDelta():
            fields = {"content": event.text}
        case ThinkingDelta() if event.text:
            fields = {"content": "", "additional_kwargs": {"reasoning_content": event.text}}
        case ToolUseStart():
            index = event.content_block_index
            fields = _call_chunk(index, event.tool_name, event.tool_use_id, "")
        case ToolUseEnd():
            # All arguments at the end: some providers send no deltas, and the end may correct them.
            fields = _call_chunk(event.content_block_index, None, None, arguments_of(event))
        case ModelResponse():
            fields = {
                "content": "",
                "additional_kwargs": {STORED_KEY: event.stored},
                "response_metadata": _metadata(event),
                "usage_metadata": _usage(event.message.metadata.usage),
                "chunk_position": "last",
            }
        case _:
            return None
    return _outputs.ChatGenerationChunk(message=_messages.AIMessageChunk(**fields))


def _call_chunk(
    index: int, name: str | None, call_id: str | None, arguments: str
) -> dict[str, Any]:
    call = {"index": index, "name": name, "id": call_id, "args": arguments}
    return {"content": "", "tool_call_chunks": [{**call, "type": "tool_call_chunk"}]}
