"""A client of one model for frameworks that keep their own history and run their own tools.

All calls of a client run in one event loop in a thread, so that blocking code, notebooks and any
number of event loops share its connections.
"""

import asyncio
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from decimal import Decimal
from importlib import import_module
from typing import Any, TypeVar, cast

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from metis import adapters
from metis.adapters.adapter import Adapter
from metis.canonical.blocks import (
    ContentBlock,
    InvalidInput,
    TextBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from metis.canonical.codec import decode, encode
from metis.canonical.errors import InvalidValueError, MetisError
from metis.canonical.ids import new_session_id, new_ulid
from metis.canonical.message import Message, Role
from metis.canonical.metadata import MessageMetadata
from metis.projection.loss import Loss
from metis.session.library import LazySimulator, LoopThread
from metis.session.models import Models, ResolvedModel, missing_key
from metis.session.options import SIMULATED_MODEL, Options
from metis.session.response import text_of
from metis.streaming import MessageComplete, StreamError, StreamEvent, ToolUseEnd
from metis.transport import Keys, Transport
from metis.transport.keys import default_key_file
from metis.transport.retry import provider_error
from metis.wire.call import AdapterOptions, CanonicalRequest, RequestContext, WireRequest
from metis.wire.tool_ids import TOOL_ID_PREFIX, canonical_tool_id

T = TypeVar("T")


class OptionalPackage:
    """A module of a package that an extra installs; it is imported when a name of it is used."""

    def __init__(self, module: str, extra: str) -> None:
        self._module = module
        self._extra = extra

    def __getattr__(self, name: str) -> Any:
        try:
            module = import_module(self._module)
        except ModuleNotFoundError as error:
            if error.name != self._module.partition(".")[0]:
                raise
            hint = f"pip install 'metis-llm[{self._extra}]'"
            raise ImportError(f"{error.name} is not installed; run: {hint}") from None
        return getattr(module, name)


class ModelResponse(Struct, frozen=True, kw_only=True):
    """A response with its cost, and the losses of its request."""

    message: Message
    losses: tuple[Loss, ...]

    @property
    def text(self) -> str:
        """The text of the response."""
        return text_of(self.message.content)

    @property
    def calls(self) -> list[ToolUseBlock]:
        """The tool calls of the response."""
        return [block for block in self.message.content if isinstance(block, ToolUseBlock)]

    @property
    def cost_usd(self) -> Decimal:
        """What the call cost."""
        usage = self.message.metadata.usage
        return Decimal(0) if usage is None else usage.cost_usd

    @property
    def stored(self) -> str:
        """The canonical message as text, which a framework stores beside its own form."""
        return encode(self.message).decode()


class History:
    """Collects the messages of a framework in the canonical form."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self._session_id = new_session_id()

    def add(self, role: Role, content: str | Sequence[Mapping[str, Any]]) -> None:
        """Add a message of a user or with instructions, with content as OpenAI writes it.

        Raises:
            MetisError: a part of the content is of no type that Chat Completions has.
        """
        blocks: Sequence[ContentBlock] = (TextBlock(content),) if isinstance(content, str) else ()
        if not isinstance(content, str):
            wire = {"model": "any", "messages": [{"role": "user", "content": list(content)}]}
            blocks = adapters.get("openai").from_wire_request(wire).messages[0].content
        self._append(role, blocks)

    def add_response(
        self, text: str, calls: Sequence[tuple[str, str, Any]], stored: object = None
    ) -> None:
        """Add a response: its text, its calls (id, name, arguments), and its stored form if any.

        The stored form is used unless the framework has changed the text or the calls.
        """
        message = _read_stored(stored)
        names = [(self._tool_id(wire_id), name) for wire_id, name, _ in calls]
        if message is not None:
            uses = [block for block in message.content if isinstance(block, ToolUseBlock)]
            if text_of(message.content) == text and [(use.id, use.name) for use in uses] == names:
                self.messages.append(replace(message, session_id=self._session_id))
                return
        blocks: list[ContentBlock] = [TextBlock(text)] if text.strip() else []
        for (tool_use_id, name), (_, _, arguments) in zip(names, calls, strict=True):
            blocks.append(_call(tool_use_id, name, arguments))
        if blocks:
            self._append(Role.ASSISTANT, blocks)

    def add_result(
        self,
        wire_id: str,
        content: str | Sequence[Mapping[str, Any]],
        *,
        is_error: bool = False,
    ) -> None:
        """Add the result of a call."""
        self.add(Role.TOOL, content)
        blocks = self.messages.pop().content
        tool_use_id = self._tool_id(wire_id)
        result = ToolResultBlock(tool_use_id=tool_use_id, content=blocks, is_error=is_error)
        self._append(Role.TOOL, (result,), MessageMetadata(parent_tool_use_id=tool_use_id))

    def _append(
        self,
        role: Role,
        content: Sequence[ContentBlock],
        metadata: MessageMetadata = MessageMetadata(),  # noqa: B008 - an immutable value
    ) -> None:
        message = Message(
            id=new_ulid(),
            session_id=self._session_id,
            role=role,
            content=tuple(content),
            created_at=datetime.now(UTC),
            metadata=metadata,
        )
        self.messages.append(message)

    def _tool_id(self, wire_id: str) -> str:
        # Calls of other models of the framework have ids that metis did not assign.
        if wire_id.startswith(TOOL_ID_PREFIX):
            return wire_id
        return canonical_tool_id(self._session_id, wire_id)


def _read_stored(stored: object) -> Message | None:
    # The text comes from files and databases of the framework, and may be damaged.
    if isinstance(stored, str):
        with suppress(MetisError):
            return decode(stored)
    return None


def _call(tool_use_id: str, name: str, arguments: Any) -> ToolUseBlock:
    """Return a call whose arguments are an object, or text that should be one."""
    value = arguments
    if isinstance(arguments, str):
        with suppress(msgspec.DecodeError):
            value = msgspec.json.decode(arguments or "{}")
    if isinstance(value, dict):
        return ToolUseBlock(id=tool_use_id, name=name, input=cast("dict[str, Any]", value))
    invalid = InvalidInput(raw=str(arguments), error="not a JSON object")
    return ToolUseBlock(id=tool_use_id, name=name, input={}, invalid=invalid)


def arguments_of(event: ToolUseEnd) -> str:
    """Return the arguments of a call as JSON, or the model's text if it is not valid JSON."""
    if event.invalid is not None:
        return event.invalid.raw
    return msgspec.json.encode(event.final_input).decode()


class ModelClient:
    """Calls one model, by blocking and by async code."""

    def __init__(self, model: str | None = None, options: Options = Options()) -> None:  # noqa: B008 - an immutable value
        self.options = options
        self._name = model or options.default_model or (SIMULATED_MODEL if options.simulate else "")
        self._loop: LoopThread | None = None
        self._calls: _Calls | None = None

    @property
    def model(self) -> str:
        """The id of the model.

        Raises:
            UnknownModelError: there is none of that name.
        """
        return self._open_calls().model.id

    @property
    def provider(self) -> str:
        """The provider of the model."""
        return self._open_calls().model.provider

    def complete(self, messages: Sequence[Message], parameters: Mapping[str, Any]) -> ModelResponse:
        """Return the response to a history.

        `parameters` are those of a Chat Completions request: `tools`, `tool_choice`, `temperature`
        and so on; every provider gets them in its own form.
        """
        return self._run(self._open_calls().complete(messages, parameters))

    async def acomplete(
        self, messages: Sequence[Message], parameters: Mapping[str, Any]
    ) -> ModelResponse:
        """Return the response to a history, without blocking the event loop."""
        return await self._wait(self._open_calls().complete(messages, parameters))

    def stream(
        self, messages: Sequence[Message], parameters: Mapping[str, Any]
    ) -> Iterator[StreamEvent | ModelResponse]:
        """Yield the events of a response as they arrive, and the whole response at the end."""
        events = self._open_calls().stream(messages, parameters)
        try:
            while (event := self._run(_next(events))) is not None:
                yield event
        finally:
            self._run(events.aclose())

    async def astream(
        self, messages: Sequence[Message], parameters: Mapping[str, Any]
    ) -> AsyncIterator[StreamEvent | ModelResponse]:
        """Yield the events of a response as they arrive, and the whole response at the end."""
        events = self._open_calls().stream(messages, parameters)
        try:
            while (event := await self._wait(_next(events))) is not None:
                yield event
        finally:
            await self._wait(events.aclose())

    def _open_calls(self) -> "_Calls":
        if self._calls is None:
            self._loop = loop = LoopThread("metis-model-client")
            self._calls = calls = loop.run(_open(self._name, self.options))
            # Frameworks never close their models.
            weakref.finalize(self, _close, loop, calls)
        return self._calls

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        assert self._loop is not None  # noqa: S101 - `_opened` comes first
        return self._loop.run(work)

    async def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        assert self._loop is not None  # noqa: S101 - `_opened` comes first
        return await asyncio.wrap_future(self._loop.submit(work))


class _Calls:
    """The calls of a client, in its event loop."""

    def __init__(self, name: str, options: Options, simulator: LazySimulator | None) -> None:
        self._options = options
        self._simulator = simulator
        urls = {} if simulator is None else dict.fromkeys(adapters.names(), simulator.base_url)
        keys = Keys(options.keys, file=options.key_file or default_key_file())
        self._models = Models(
            base_urls={**urls, **options.base_urls},
            accounts=options.accounts,
            keys=keys,
            free=options.free,
        )
        self._transport = Transport(keys=keys, limits=options.limits, retry=options.retry)
        self.model: ResolvedModel = self._models.get(name)

    async def complete(
        self, messages: Sequence[Message], parameters: Mapping[str, Any]
    ) -> ModelResponse:
        request, context = self._encode(messages, parameters, is_stream=False)
        message = await self._transport.complete(self._adapter, request, context)
        return self._priced(message, request)

    async def stream(
        self, messages: Sequence[Message], parameters: Mapping[str, Any]
    ) -> AsyncGenerator[StreamEvent | ModelResponse]:
        request, context = self._encode(messages, parameters, is_stream=True)
        async for event in self._transport.stream(self._adapter, request, context):
            if isinstance(event, StreamError):
                raise provider_error(event, self.model.provider)
            yield event
            if isinstance(event, MessageComplete):
                yield self._priced(event.message, request)

    async def close(self) -> None:
        await self._transport.close()
        if self._simulator is not None:
            await self._simulator.stop()

    @property
    def _adapter(self) -> Adapter:
        return self.model.adapter

    def _encode(
        self, messages: Sequence[Message], parameters: Mapping[str, Any], *, is_stream: bool
    ) -> tuple[WireRequest, RequestContext]:
        if not self._models.is_available(self.model.provider):
            raise InvalidValueError(missing_key(self.model.provider), path="$.model")
        decoded = _read_parameters(parameters)
        options = replace(decoded.options, model=self.model.id, stream=is_stream or None)
        options = _with_defaults(options, self._options.options)
        request = self._adapter.to_wire(messages, decoded.tools, options)
        context = RequestContext(
            model=self.model.id,
            provider=self.model.provider,
            tools=tuple(tool.name for tool in decoded.tools),
        )
        return request, context

    def _priced(self, message: Message, request: WireRequest) -> ModelResponse:
        usage = message.metadata.usage
        if usage is not None:
            usage = self._models.price(usage, self.model, message.created_at)
            message = replace(message, metadata=replace(message.metadata, usage=usage))
        return ModelResponse(message=message, losses=tuple(request.losses))


def _read_parameters(parameters: Mapping[str, Any]) -> CanonicalRequest:
    """Return the tools and options of Chat Completions parameters; None is unset."""
    options = {name: value for name, value in parameters.items() if value is not None}
    wire = {**options, "model": "any", "messages": [{"role": "user", "content": "any"}]}
    request = adapters.get("openai").from_wire_request(wire)
    # The placeholder model must not be written as the original form of the request.
    native = {name: dict(keys) for name, keys in request.options.native.items()}
    native.get("openai_chat", {}).pop("model", None)
    return replace(request, options=replace(request.options, native=native))


def _with_defaults(options: AdapterOptions, defaults: AdapterOptions) -> AdapterOptions:
    unset = AdapterOptions()
    changes = {
        name: getattr(defaults, name)
        for name in AdapterOptions.__struct_fields__
        if getattr(options, name) == getattr(unset, name)
    }
    return replace(options, **changes)


async def _open(name: str, options: Options) -> _Calls:
    if not name:
        raise InvalidValueError("no model is named", path="$.model")
    simulator = LazySimulator() if options.simulate else None
    try:
        return _Calls(name, options, simulator)
    except BaseException:
        if simulator is not None:
            await simulator.stop()
        raise


def _close(loop: LoopThread, calls: _Calls) -> None:
    # At the exit of Python the threads that stop the simulator cannot be started any more.
    with suppress(RuntimeError):
        loop.run(calls.close())
    loop.close()


async def _next(
    events: AsyncGenerator[StreamEvent | ModelResponse],
) -> StreamEvent | ModelResponse | None:
    return await anext(events, None)
