"""How sessions run: Options for callers, Setup for turns.

And the options that a thread inherits.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, Protocol

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from metis.canonical.blocks import ToolUseBlock
from metis.canonical.errors import (
    AmbiguousModelError,
    BudgetExceededError,
    CatalogError,
    InvalidValueError,
    UnknownModelError,
)
from metis.canonical.tools import ToolDefinition
from metis.catalog.tables import model_pointers
from metis.events import Budget, Bus, Spending, check_budget
from metis.projection.images import IMAGE_BUDGET
from metis.routing import Router, Tier
from metis.session.conversation import Conversation, SpendTracker
from metis.session.events import OutageTracker, Trace
from metis.session.models import Models, ResolvedModel
from metis.session.prompt import Skill
from metis.session.state import SessionState
from metis.store import Store
from metis.tools import Confirmation, Registry, Watcher, Workspace
from metis.tools.mcp import McpServer
from metis.transport import Limits, Retry, Transport
from metis.wire.call import AdapterOptions
from metis.wire.reasoning import Reasoning

MAX_CALLS = 100
"""How many times a model is asked in one turn at most."""

COMPACT_AT = 0.85
"""The part of a window that may be full before the history is summed up."""


Partial = Literal["all", "text"]
"""What is kept of an answer that was cancelled or broke off: all that has come, or its text."""


class Toolbox(Protocol):
    """The tools of a session, and whoever runs them."""

    @property
    def tools(self) -> Sequence[ToolDefinition]:
        """What models are told of."""
        ...

    async def offer(self, servers: Sequence[str]) -> None:
        """Offer the tools of these servers beside the others, and of no more servers."""
        ...

    async def run(self, calls: Sequence[ToolUseBlock], turn: "TurnRef", watcher: Watcher) -> None:
        """Run calls; every one is answered by one TOOL message, also when this is cancelled."""
        ...


class TurnRef(Struct, frozen=True, kw_only=True):
    """Where a call belongs."""

    session_id: str
    turn_id: str


def _now() -> datetime:
    return datetime.now(UTC)


class Setup(Struct, frozen=True, kw_only=True):
    """Everything that a turn works with."""

    store: Store
    transport: Transport
    models: Models
    router: Router
    outages: OutageTracker
    spending: SpendTracker
    budget: Budget = Budget()
    bus: Bus | None = None
    """Who is told what happens."""
    toolbox: Toolbox | None = None
    options: AdapterOptions = AdapterOptions()
    fallbacks: Mapping[str, Sequence[str]] = {}
    """Which models step in, by the id of the one that is down; `*` stands for any."""
    skills: tuple[Skill, ...] = ()
    parent: str | None = None
    """The session that gave this one its task, if it is a worker."""
    tier: Tier | None = None
    """How much thought a worker is to give to it."""
    pointers: Mapping[str, str] = {}
    """Models by the pointers that threads name them with, before those of the house."""
    workspace_path: str = ""
    has_rules: bool = False
    """Whether there may be rules that ask what was spent."""
    compact_at: float | None = COMPACT_AT
    """None never sums up by itself."""
    compact_with: str | None = None
    """The model that writes summaries; None is the one of the turn."""
    max_calls: int = MAX_CALLS
    partial: Partial = "all"
    workspace: Workspace | None = None
    """The folder that files of messages are read from."""
    now: Callable[[], datetime] = _now

    @property
    def tools(self) -> Sequence[ToolDefinition]:
        """The tools that models are told of."""
        return () if self.toolbox is None else self.toolbox.tools


class Options(Struct, frozen=True, kw_only=True):
    """How sessions are run; every field has a default that works."""

    base_urls: Mapping[str, str] = {}
    """Other addresses of providers, by the name of the adapter."""
    accounts: Mapping[str, str] = {}
    """A word for whose keys are used, by the name of the adapter: seals of one go to no other."""
    keys: Mapping[str, str | Sequence[str]] = {}
    """Keys by the name of the adapter; else they come from the environment."""
    key_file: Path | None = None
    """A TOML file with a table `[keys]`, which only its owner may read."""
    default_model: str | None = None
    """Who answers if neither the user nor a rule says."""
    tiers: Mapping[str, str] = {}
    """The models of workers by tier: `fast`, `balanced`, `deep`; a rules file may say otherwise."""
    fallbacks: Mapping[str, Sequence[str]] = {}
    """Which models step in, by the one that is down; `*` stands for any."""
    budget: Budget = Budget()
    bus: Bus | None = None
    """Who is told what happens: typed events without a word of what was said."""
    options: AdapterOptions = AdapterOptions()
    workspace: str | Path | None = None
    """The folder in which tools work, and whose rules file and instructions hold."""
    home: Path | None = None
    """The folder with `USER.md`, `MEMORY.md` and `skills/`; None for none."""
    tools: Registry | None = None
    """What models may call; None is no tool at all."""
    servers: Sequence[McpServer] = ()
    """MCP servers that threads may name; each is started when one does, and ended at the close."""
    pointers: Mapping[str, str] = {}
    """Who answers threads that point to `nano`, `kilo` or the like; those of the house else."""
    confirmation: Confirmation | None = None
    """Who is asked before a call that changes something; nobody lets none of them run."""
    redact_ids: bool = False
    """Whether models see hashes in the place of our ids of calls."""
    simulate: bool = False
    """Whether a simulator on this machine answers in the place of every provider."""
    free: bool = False
    """Whether no call costs anything, whatever its model costs elsewhere."""
    compact_at: float | None = COMPACT_AT
    compact_with: str | None = None
    max_calls: int = MAX_CALLS
    partial: Partial = "all"
    """What is kept of an answer that was cancelled or broke off: all that has come, or its text."""
    image_budget: int | None = IMAGE_BUDGET
    """How many characters of pictures a request may hold; older ones are told of. None for all."""
    limits: Limits = Limits()
    retry: Retry = Retry()


class BudgetGuard:
    """Holds what was spent against the limits of a session, a day and a month."""

    def __init__(
        self, setup: Setup, conversation: Conversation, told: SessionState, trace: Trace
    ) -> None:
        self._setup = setup
        self._conversation = conversation
        self._told = told
        self._trace = trace

    async def check(self) -> list[str]:
        """The warnings of limits that are nearly reached, each once.

        Raises:
            BudgetExceededError: a limit is reached.
        """
        budget = self._conversation.budget(self._setup.budget)
        own = self._conversation
        spent = Spending(session_usd=own.cost().total_usd + own.workers_usd)
        if budget.day_usd is not None or budget.month_usd is not None:
            spent = await self._setup.spending.totals(spent.session_usd)
        verdict = check_budget(budget, spent, warned=self._told.budget_warnings)
        for each in verdict.exceeded:
            self._trace.emit(each)
            raise BudgetExceededError(
                each.scope, limit_usd=each.limit_usd, spent_usd=each.spent_usd
            )
        for each in verdict.warnings:
            self._told.budget_warnings[each.scope] = each.level
            self._trace.emit(each)
        return [
            f"{each.spent_usd} of the {each.limit_usd} USD of this {each.scope} are spent"
            for each in verdict.warnings
        ]


THINKING_SUFFIX = ".r"
"""What stands behind a pointer to a model that shall think."""


class ModelPointer(Struct, frozen=True):
    """Who a pointer points to, and whether it says how much that model shall think."""

    model: str
    reasoning: Reasoning | None = None


def resolve_pointer(name: str, user_pointers: Mapping[str, str], models: Models) -> ModelPointer:
    """Who answers under a name: a pointer of the user, a size, or any name of a model.

    Raises:
        UnknownModelError: nobody does.
    """
    known = {**model_pointers(), **user_pointers}
    try:
        return ModelPointer(models.resolve(known.get(name, name)))
    except (UnknownModelError, AmbiguousModelError):
        base = name.removesuffix(THINKING_SUFFIX)
        if name in known:
            raise  # the pointer is there and leads to nobody
        if base == name:
            hint = f"the pointers are {', '.join(known)}; or take a name of a model"
            raise UnknownModelError(name, hint) from None
    return ModelPointer(resolve_pointer(base, user_pointers, models).model, Reasoning())


class ThreadOptions(Struct, frozen=True, kw_only=True):
    """The options of a thread that hold for its next turn; None is what nobody said."""

    provider_ptr: str | None = None
    """Who answers: `kilo`, `kilo.r` for one that thinks, or any name of a model."""
    servers: tuple[str, ...] | None = None
    """The MCP servers whose tools are offered."""
    search: bool | None = None
    """Whether the provider searches by itself."""
    tool_mode: str | None = None
    """How tools are chosen, in a word of the provider."""


def read_thread_options(options: Mapping[str, Any]) -> ThreadOptions:
    """The options that mean something here; others are somebody else's and stay as they are.

    Raises:
        InvalidValueError: one of them is of another kind than it should be.
    """
    try:
        return msgspec.convert(options, ThreadOptions)
    except msgspec.ValidationError as error:
        fault, _, place = str(error).partition(" - at `$")
        raise InvalidValueError(fault, path=f"$.options{place.rstrip('`')}") from None


def check_thread_options(options: Mapping[str, Any]) -> None:
    """Refuse options of a new turn that would mean nothing.

    Raises:
        InvalidValueError: a key that nobody knows, or a value of another kind.
    """
    known = ThreadOptions.__struct_fields__
    for key in options:
        if key not in known:
            fault = f"a turn has no option {key!r}; it has {', '.join(known)}"
            raise InvalidValueError(fault, path=f"$.options.{key}")
    read_thread_options(options)


def sticky_model(setup: Setup, conversation: Conversation) -> str | None:
    """The model that answers unless a turn says otherwise; None leaves it to the rules.

    Raises:
        UnknownModelError: the thread points to nobody.
    """
    found = _pointed(setup, conversation)
    return conversation.pinned_model if found is None else found.model


def request_options(setup: Setup, conversation: Conversation, model: str) -> AdapterOptions:
    """How a model is asked: as the house says, the thread, and the session."""
    said = read_thread_options(conversation.thread_options)
    changes: dict[str, Any] = {}
    if said.search is not None:
        changes["search"] = said.search
    if said.tool_mode is not None:
        changes["tool_mode"] = said.tool_mode
    reasoning = conversation.reasoning or _reasoning(setup, conversation, model)
    if reasoning is not None:
        changes["reasoning"] = reasoning
    return replace(setup.options, **changes) if changes else setup.options


def supports_thread_options(
    setup: Setup, conversation: Conversation, served: ResolvedModel
) -> bool:
    """Whether a model does what the thread asks for, such as a search."""
    options = replace(request_options(setup, conversation, served.id), model=served.id)
    try:
        served.adapter.preview((), setup.tools, options)
    except InvalidValueError:
        return False
    return True


def _reasoning(setup: Setup, conversation: Conversation, model: str) -> Reasoning | None:
    """How much a model shall think, if the thread points to it and says so."""
    try:
        found = _pointed(setup, conversation)
    except CatalogError:  # whoever looks at another model need not mind
        return None
    return found.reasoning if found is not None and found.model == model else None


def _pointed(setup: Setup, conversation: Conversation) -> ModelPointer | None:
    name = conversation.pointer
    return None if name is None else resolve_pointer(name, setup.pointers, setup.models)
