"""How sessions run: Options for callers, Setup for turns, and the options of a thread."""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import UnionType
from typing import Any, ClassVar, Literal, cast

import msgspec
from msgspec import Struct
from msgspec.structs import force_setattr, replace

from metis.canonical.errors import (
    AmbiguousModelError,
    CatalogError,
    InvalidValueError,
    UnknownModelError,
)
from metis.canonical.tools import ToolDefinition
from metis.catalog.tables import model_pointers
from metis.deprecation import RenamedFields
from metis.events import Budget, Bus
from metis.projection.images import IMAGE_BUDGET
from metis.routing import Router, Tier
from metis.session.conversation import Conversation, SpendTracker
from metis.session.events import OutageTracker
from metis.session.models import Models, ResolvedModel
from metis.session.prompt import Skill
from metis.session.tools import SessionTools
from metis.store import Store
from metis.tools import Confirmation, Registry, Workspace
from metis.tools.mcp import McpServer
from metis.tools.registry import make_registry
from metis.transport import Limits, Retry, Transport
from metis.wire.call import AdapterOptions
from metis.wire.reasoning import Reasoning

# A model may call tools endlessly, and each call costs money.
MAX_CALLS = 100
"""The most model calls of one turn."""

COMPACT_AT = 0.85
"""The share of a context window that may be full before the history is compacted."""

SIMULATED_MODEL = "anthropic:sim-small"
"""The model of the simulator unless another is named."""

PartialResponse = Literal["all", "text"]
"""What is stored of a response that was cancelled or broke off: all blocks, or the text."""


class Options(Struct, frozen=True, kw_only=True, metaclass=RenamedFields):
    """How sessions run; every field has a default that works."""

    renamed_fields: ClassVar[Mapping[str, str]] = {"hides_ids": "redact_ids", "is_free": "free"}

    base_urls: Mapping[str, str] = {}
    """Other addresses of providers, by provider."""
    accounts: Mapping[str, str] = {}
    """A name for the account behind a key, by provider: sealed parts of one go to no other."""
    keys: Mapping[str, str | Sequence[str]] = {}
    """API keys by provider; without one, the key is read from the environment."""
    key_file: Path | None = None
    """A TOML file with a table `[keys]`, which only its owner may read; by default the file that
    `metis keys set` writes."""
    default_model: str | None = None
    """The model if neither the user nor a rule names one."""
    tiers: Mapping[str, str] = {}
    """The models of workers by tier (`fast`, `balanced`, `deep`); a rules file overrides them."""
    fallbacks: Mapping[str, Sequence[str]] = {}
    """The models to fall back to, by the model that is down; `*` stands for any."""
    budget: Budget = Budget()
    bus: Bus | None = None
    """Receives the bus events of all sessions, which contain no text of a conversation."""
    options: AdapterOptions = AdapterOptions()
    workspace: str | Path | None = None
    """The directory of the tools, of the rules file and of `AGENTS.md`."""
    home: Path | None = None
    """The directory with `USER.md`, `MEMORY.md` and `skills/`; None for none."""
    tools: Registry | Sequence[Callable[..., Any]] | None = None
    """The tools that models may call: functions, classes of tools, or a registry of them."""
    servers: Sequence[McpServer] = ()
    """MCP servers that threads may name; each is started on first use and stopped by `close`."""
    offered_servers: Sequence[str] = ()
    """The MCP servers whose tools are offered in threads that name none; one that cannot be
    started is left out with a warning."""
    pointers: Mapping[str, str] = {}
    """The models of thread pointers such as `nano` and `kilo`; they precede the built-in ones."""
    confirmation: Confirmation | None = None
    """Confirms calls that change something; without one, such calls are refused."""
    redact_ids: bool = False
    """Whether models get hashes instead of our tool call ids."""
    simulate: bool = False
    """Whether a simulator on this machine answers in place of every provider."""
    allow_unsupported: bool = False
    """Whether a model may be used that does not support tools, or images of the history.

    Tools are then left out and images become notes, each with a loss. Otherwise such a model is
    refused."""
    free: bool = False
    """Whether calls cost nothing, whatever the price of the model."""
    compact_at: float | None = COMPACT_AT
    """The share of a context window from which a history is compacted; None for never."""
    compact_with: str | None = None
    """The model that writes summaries; None is the model of the turn."""
    max_calls: int = MAX_CALLS
    partial: PartialResponse = "all"
    image_budget: int | None = IMAGE_BUDGET
    """How many characters of image data a request may contain; older images become notes. None
    sets no limit."""
    record_bytes: bool = True
    """Whether the bytes of requests and responses are also stored, for the viewer."""
    limits: Limits = Limits()
    retry: Retry = Retry()

    def __post_init__(self) -> None:
        """Check the types of fields, and convert a list of tools to a registry.

        Raises:
            InvalidValueError: a field has a value of another type; the error names the expected
                one.
        """
        for name, (kinds, expected) in _FIELD_TYPES.items():
            value = getattr(self, name)
            if value is not None and not isinstance(value, kinds):
                fault = f"expected {expected}, got {type(value).__name__}"
                raise InvalidValueError(fault, path=f"$.{name}")
        tools: object = self.tools
        if tools is None or isinstance(tools, Registry):
            return
        if not isinstance(tools, list | tuple):
            fault = f"expected a list of functions, or a Registry, got {type(tools).__name__}"
            raise InvalidValueError(fault, path="$.tools")
        force_setattr(self, "tools", make_registry(cast("Sequence[object]", tools)))

    @property
    def registry(self) -> Registry | None:
        """The tools that models may call; None for none at all."""
        return cast("Registry | None", self.tools)


_BY_PROVIDER = (Mapping, "a mapping by provider")
_FIELD_TYPES: Mapping[str, tuple[type | UnionType, str]] = {
    "base_urls": _BY_PROVIDER,
    "accounts": _BY_PROVIDER,
    "keys": _BY_PROVIDER,
    "key_file": (Path, "a pathlib.Path"),
    "default_model": (str, "the name of a model"),
    "tiers": (Mapping, "a mapping of tiers to models"),
    "fallbacks": (Mapping, "a mapping of models to lists of models"),
    "budget": (Budget, "a Budget, such as Budget(session_usd=Decimal(1))"),
    "bus": (Bus, "a Bus"),
    "options": (AdapterOptions, "an AdapterOptions"),
    "workspace": (str | Path, "the path of a directory"),
    "home": (Path, "a pathlib.Path"),
    "servers": (Sequence, "a list of McpServer"),
    "pointers": (Mapping, "a mapping of names to models"),
    "confirmation": (Confirmation, "a Confirmation"),
    **dict.fromkeys(
        ("simulate", "free", "allow_unsupported", "redact_ids"), (bool, "True or False")
    ),
}
"""The types of the fields that are checked, with their names for error messages."""


def utc_now() -> datetime:
    """Return the current time in UTC."""
    return datetime.now(UTC)


class Setup(Struct, frozen=True, kw_only=True):
    """The services and options that the turns of a session work with."""

    store: Store
    transport: Transport
    models: Models
    router: Router
    outages: OutageTracker
    spending: SpendTracker
    options: Options
    request_defaults: AdapterOptions
    """The options of every request, before those of the thread and the session."""
    budget: Budget
    fallbacks: Mapping[str, Sequence[str]] = {}
    """The ids of the models to fall back to, by the id of the model that is down, or `*`."""
    toolbox: SessionTools | None = None
    skills: tuple[Skill, ...] = ()
    workspace: Workspace | None = None
    parent: str | None = None
    """The session that this one works for, if it is a worker."""
    tier: Tier | None = None
    """The tier of a worker."""
    now: Callable[[], datetime] = utc_now

    @property
    def workspace_path(self) -> str:
        """The path of the workspace as it is stored and as rules name it."""
        return str(self.options.workspace or "")

    @property
    def tools(self) -> Sequence[ToolDefinition]:
        """The tool definitions that models get."""
        return () if self.toolbox is None else self.toolbox.tools


# Thread options: they are stored with the messages of a thread and apply to its later turns.


class ThreadOptions(Struct, frozen=True, kw_only=True):
    """The options of a thread that apply to its next turn; None is unset."""

    provider_ptr: str | None = None
    """The model: `kilo`, `kilo.r` for one that thinks, or any name of a model."""
    servers: tuple[str, ...] | None = None
    """The MCP servers whose tools are offered."""
    search: bool | None = None
    """Whether the provider's own web search is on."""
    tool_mode: str | None = None
    """The tool mode, by the name that the provider gives it."""


def read_thread_options(options: Mapping[str, Any]) -> ThreadOptions:
    """Decode the fields of `ThreadOptions`; other options belong to other programs.

    Raises:
        InvalidValueError: a known option has a value of the wrong type.
    """
    try:
        return msgspec.convert(options, ThreadOptions)
    except msgspec.ValidationError as error:
        # msgspec appends the path: "Expected `bool`, got `str` - at `$.search`".
        fault, _, path = str(error).partition(" - at `$")
        raise InvalidValueError(fault, path=f"$.options{path.rstrip('`')}") from None


def check_thread_options(options: Mapping[str, Any]) -> None:
    """Refuse options of a new turn that would have no effect.

    Raises:
        InvalidValueError: an unknown option, or a value of the wrong type.
    """
    # Stored options of other programs are ignored, but a caller's misspelled one is an error.
    names = ThreadOptions.__struct_fields__
    for key in options:
        if key not in names:
            fault = f"a turn has no option {key!r}; it has {', '.join(names)}"
            raise InvalidValueError(fault, path=f"$.options.{key}")
    read_thread_options(options)


THINKING_SUFFIX = ".r"
"""The suffix of a pointer whose model should think."""


class ModelPointer(Struct, frozen=True):
    """The model of a pointer, and the reasoning option that it implies."""

    model: str
    reasoning: Reasoning | None = None


def resolve_pointer(name: str, user_pointers: Mapping[str, str], models: Models) -> ModelPointer:
    """Return the model behind a pointer of the user, a built-in pointer or any model name.

    Raises:
        UnknownModelError: there is no such model.
    """
    # A user may redefine a built-in pointer.
    targets = {**model_pointers(), **user_pointers}
    try:
        return ModelPointer(models.resolve(targets.get(name, name)))
    except (UnknownModelError, AmbiguousModelError):
        base = name.removesuffix(THINKING_SUFFIX)
        if name in targets:
            raise  # the pointer exists, but its model does not
        if base == name:
            hint = f"the pointers are {', '.join(targets)}; or use the name of a model"
            raise UnknownModelError(name, hint) from None
    return ModelPointer(resolve_pointer(base, user_pointers, models).model, Reasoning())


def sticky_model(setup: Setup, conversation: Conversation) -> str | None:
    """Return the model of the thread or the session; None leaves the choice to the rules.

    Raises:
        UnknownModelError: the thread points to a model that does not exist.
    """
    pointer = _thread_pointer(setup, conversation)
    return conversation.pinned_model if pointer is None else pointer.model


def request_options(setup: Setup, conversation: Conversation, model: str) -> AdapterOptions:
    """Return the options of a request: the library's, changed by the thread and the session."""
    thread = read_thread_options(conversation.thread_options)
    changes: dict[str, Any] = {}
    if thread.search is not None:
        changes["search"] = thread.search
    if thread.tool_mode is not None:
        changes["tool_mode"] = thread.tool_mode
    reasoning = conversation.reasoning or _pointer_reasoning(setup, conversation, model)
    if reasoning is not None:
        changes["reasoning"] = reasoning
    return replace(setup.request_defaults, **changes) if changes else setup.request_defaults


def supports_thread_options(setup: Setup, conversation: Conversation, model: ResolvedModel) -> bool:
    """Return whether a provider accepts the options of the thread, such as web search."""
    options = replace(request_options(setup, conversation, model.id), model=model.id)
    # An adapter checks options when it plans a request; with an empty history that is cheap.
    try:
        model.adapter.preview((), setup.tools, options)
    except InvalidValueError:
        return False
    return True


def _pointer_reasoning(setup: Setup, conversation: Conversation, model: str) -> Reasoning | None:
    try:
        pointer = _thread_pointer(setup, conversation)
    except CatalogError:  # the model of the pointer is unknown, so it is not this one
        return None
    return pointer.reasoning if pointer is not None and pointer.model == model else None


def _thread_pointer(setup: Setup, conversation: Conversation) -> ModelPointer | None:
    name = conversation.pointer
    return None if name is None else resolve_pointer(name, setup.options.pointers, setup.models)
