"""Options: how sessions are run."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from metis.events import Budget, Bus
from metis.projection.image_budget import IMAGE_BUDGET
from metis.session.setup import COMPACT_AT, MAX_CALLS, Partial
from metis.tools import Confirmation, Registry
from metis.tools.mcp import McpServer
from metis.transport import Limits, Retry
from metis.wire.call import AdapterOptions


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
    hides_ids: bool = False
    """Whether models see hashes in the place of our ids of calls."""
    simulate: bool = False
    """Whether a simulator on this machine answers in the place of every provider."""
    is_free: bool = False
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
