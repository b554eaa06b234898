"""The rules file of routing; a file with any problem is refused as a whole.

::

    schema_version = 1
    global_default = "sonnet"
    tiers = { fast = "haiku", balanced = "sonnet", deep = "opus" }

    [[rules]]
    name = "night work is cheap"
    when = { time_of_day_between = ["22:00", "06:00"], has_images = false }
    use = "haiku"

    [exclude]                       # models that get no turn whose tools can do this
    execute = ["ollama:llama-3.3-70b"]

    [workspaces."/home/me/shop"]    # precedes the global settings, for exactly this path
    default = "opus"

The settings of a workspace (default, tiers, pattern) replace the global ones; its rules are tried
before the global ones. Every model is named by id, alias or an unambiguous suffix.
"""

import hashlib
import tomllib
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from metis.canonical.errors import (
    AmbiguousModelError,
    Problem,
    RoutingPolicyError,
    UnknownModelError,
)
from metis.canonical.json_value import join_path
from metis.canonical.tools import SideEffects
from metis.catalog.models import Catalog
from metis.routing.facts import Tier
from metis.routing.pattern import PatternSettings
from metis.routing.predicates import RULE, Condition, read_conditions

SCHEMA_VERSION = 1
"""The supported version of the rules file."""

_SECTIONS = frozenset(
    ("schema_version", "global_default", "tiers", "pattern", "rules", "exclude", "workspaces")
)
_WORKSPACE_SECTIONS = frozenset(("default", "tiers", "pattern", "rules"))
_RULE_KEYS = frozenset(("name", "when", "use"))
_VERSIONS = (1, 2)


class Rule(Struct, frozen=True, kw_only=True):
    """The model of turns that fulfil all conditions."""

    name: str
    when: tuple[Condition, ...]
    use: str


class Scope(Struct, frozen=True, kw_only=True):
    """The settings of one workspace, or of all workspaces."""

    default: str | None = None
    tiers: Mapping[Tier, str] | None = None
    pattern: PatternSettings | None = None
    rules: tuple[Rule, ...] = ()


class Policy(Struct, frozen=True, kw_only=True):
    """The content of a rules file, with model ids instead of names."""

    common: Scope = Scope()
    workspaces: Mapping[str, Scope] = {}
    exclude: Mapping[SideEffects, frozenset[str]] = {}
    version: str = "none"
    """A hash of the file, recorded with each decision."""

    def rules(self, workspace_path: str) -> tuple[Rule, ...]:
        """Return the rules for a workspace in the order in which they are tried."""
        return (*self._workspace(workspace_path).rules, *self.common.rules)

    def workspace_default(self, workspace_path: str) -> str | None:
        """Return the default model of a workspace, if it sets one."""
        return self._workspace(workspace_path).default

    def tiers(self, workspace_path: str) -> Mapping[Tier, str]:
        """Return the models for delegated tasks; empty if none are set."""
        return self._workspace(workspace_path).tiers or self.common.tiers or {}

    def pattern(self, workspace_path: str) -> PatternSettings:
        """Return the pattern settings of a workspace."""
        pattern = self._workspace(workspace_path).pattern
        return pattern or self.common.pattern or PatternSettings()

    def _workspace(self, path: str) -> Scope:
        return self.workspaces.get(path, _EMPTY)


_EMPTY = Scope()


def read_policy(text: bytes, catalog: Catalog, *, name: str = "the rules file") -> Policy:
    """Read a rules file.

    Raises:
        RoutingPolicyError: it is invalid; the error lists every problem.
    """
    try:
        data = tomllib.loads(text.decode(), parse_float=Decimal)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RoutingPolicyError(name, [Problem("$", RULE, f"invalid TOML: {error}")]) from None
    # All problems are collected, so that a user can fix them at once.
    reader = _Reader(catalog)
    policy = reader.policy(data, hashlib.sha256(text).hexdigest()[:16])
    if reader.problems:
        raise RoutingPolicyError(name, reader.problems)
    return policy


class _Reader:
    """Reads a rules file part by part, and collects each problem with its path."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self.problems: list[Problem] = []

    def policy(self, data: Mapping[str, Any], version: str) -> Policy:
        self._refuse_unknown(data, _SECTIONS, "$")
        schema_version = data.get("schema_version")
        # `isinstance(True, int)` is true, so the type is compared.
        if type(schema_version) is not int or schema_version != SCHEMA_VERSION:
            self._note("$.schema_version", f"must be {SCHEMA_VERSION}")
        common = self._scope(data, "$", "global_default")
        workspaces = {
            path: self._workspace(content, join_path("$.workspaces", path))
            for path, content in self._table(data, "workspaces", "$").items()
        }
        exclude = self._exclude(self._table(data, "exclude", "$"))
        return Policy(common=common, workspaces=workspaces, exclude=exclude, version=version)

    def _workspace(self, content: object, path: str) -> Scope:
        if not isinstance(content, dict):
            self._note(path, "a workspace is a table")
            return _EMPTY
        settings = cast("dict[str, Any]", content)
        self._refuse_unknown(settings, _WORKSPACE_SECTIONS, path)
        return self._scope(settings, path, "default")

    def _scope(self, data: Mapping[str, Any], path: str, default_key: str) -> Scope:
        default = data.get(default_key)
        return Scope(
            default=None if default is None else self._model(default, join_path(path, default_key)),
            tiers=self._tiers(data["tiers"], join_path(path, "tiers")) if "tiers" in data else None,
            pattern=self._pattern(data, path) if "pattern" in data else None,
            rules=self._rules(data.get("rules", []), join_path(path, "rules")),
        )

    def _model(self, name: object, path: str) -> str:
        if not isinstance(name, str):
            self._note(path, "a model is named by a text")
            return ""
        try:
            return self._catalog.resolve(name)
        except UnknownModelError:
            self.problems.append(Problem(path, "M-177", f"unknown model {name!r}"))
        except AmbiguousModelError as error:
            self.problems.append(Problem(path, "M-177", str(error)))
        return ""

    def _tiers(self, content: object, path: str) -> Mapping[Tier, str]:
        names = set(cast("dict[str, Any]", content)) if isinstance(content, dict) else None
        if names != {*Tier}:
            self._note(path, f"a table of exactly {', '.join(Tier)}")
            return {}
        models = cast("dict[str, Any]", content)
        return {tier: self._model(models[tier], join_path(path, tier)) for tier in Tier}

    def _pattern(self, data: Mapping[str, Any], path: str) -> PatternSettings:
        pattern_path = join_path(path, "pattern")
        try:
            settings = msgspec.convert(data["pattern"], PatternSettings, strict=False)
        except msgspec.ValidationError as error:
            self._note(pattern_path, str(error))
            return PatternSettings()
        for name in ("cost_weight", "min_confidence", "embedding_alpha"):
            if not 0 <= getattr(settings, name) <= 1:
                self._note(join_path(pattern_path, name), "a number from 0 to 1")
        if settings.min_sample_size < 1:
            self._note(join_path(pattern_path, "min_sample_size"), "a whole number above zero")
        if settings.fingerprint_version not in _VERSIONS:
            self._note(join_path(pattern_path, "fingerprint_version"), "this is 1 or 2")
        if settings.fingerprint_version == _VERSIONS[-1] and not settings.embedding_provider:
            self._note(join_path(pattern_path, "embedding_provider"), "version 2 needs one")
        return settings

    def _rules(self, content: object, path: str) -> tuple[Rule, ...]:
        if not isinstance(content, list):
            self._note(path, "rules are a list of tables")
            return ()
        items = enumerate(cast("list[object]", content))
        rules = tuple(self._rule(item, index, join_path(path, index)) for index, item in items)
        names: set[str] = set()
        for index, rule in enumerate(rules):
            if rule.name in names:
                self._note(join_path(path, index), f"duplicate rule name {rule.name!r}")
            names.add(rule.name)
        return rules

    def _rule(self, content: object, index: int, path: str) -> Rule:
        fields = cast("dict[str, Any]", content) if isinstance(content, dict) else {}
        self._refuse_unknown(fields, _RULE_KEYS, path)
        name = fields.get("name", f"rule_{index}")
        if not isinstance(name, str) or not name:
            self._note(join_path(path, "name"), "a name is a text")
            name = f"rule_{index}"
        return Rule(
            name=name,
            when=read_conditions(fields.get("when"), join_path(path, "when"), self.problems),
            use=self._model(fields.get("use"), join_path(path, "use")),
        )

    def _exclude(self, table: Mapping[str, Any]) -> Mapping[SideEffects, frozenset[str]]:
        excluded: dict[SideEffects, frozenset[str]] = {}
        self._refuse_unknown(table, frozenset(SideEffects), "$.exclude")
        for effect in SideEffects:
            names, path = table.get(effect, []), join_path("$.exclude", effect)
            if not isinstance(names, list):
                self._note(path, "a list of models")
                continue
            models = enumerate(cast("list[object]", names))
            excluded[effect] = frozenset(
                self._model(name, join_path(path, n)) for n, name in models
            )
        return excluded

    def _table(self, data: Mapping[str, Any], name: str, path: str) -> Mapping[str, Any]:
        content = data.get(name, {})
        if isinstance(content, dict):
            return cast("dict[str, Any]", content)
        self._note(join_path(path, name), "this is a table")
        return {}

    def _refuse_unknown(
        self, table: Mapping[str, object], allowed: frozenset[str], path: str
    ) -> None:
        for name in sorted(table.keys() - allowed):
            self._note(
                join_path(path, name), f"unknown key {name!r}; known: {', '.join(sorted(allowed))}"
            )

    def _note(self, path: str, text: str) -> None:
        self.problems.append(Problem(path, RULE, text))


RULES_PATH = Path(".metis") / "routing.toml"
"""The path of the rules file in a workspace."""
MAX_BYTES = 1_000_000
"""The largest rules file that is read."""


class Rules(Struct, frozen=True):
    """The current rules; with the error of the file if it is invalid and older rules are used."""

    policy: Policy
    problem: RoutingPolicyError | None = None


class RulesFile:
    """A rules file that is read again when its time or size has changed.

    If the file becomes invalid, the last valid rules are used. Without a file the `fallback`
    applies; its default model and tiers also apply where the file sets none.
    """

    def __init__(
        self,
        path: Path,
        catalog: Catalog,
        *,
        fallback: Policy = Policy(),  # noqa: B008 - a frozen value
    ) -> None:
        self.path = path
        self._catalog = catalog
        self._fallback = fallback
        self._stamp: tuple[int, int] | None = None
        self._rules = Rules(fallback)

    def read(self) -> Rules:
        """Return the current rules."""
        try:
            # A stat per turn is cheap, so that no file watcher is needed.
            status = self.path.stat()
            stamp = (status.st_mtime_ns, status.st_size)
            if stamp != self._stamp:
                self._rules = self._load(status.st_size)
                self._stamp = stamp
        except (FileNotFoundError, NotADirectoryError):
            self._stamp, self._rules = None, Rules(self._fallback)
        except OSError as error:
            self._stamp = None  # new permissions do not change time or size, so it is read again
            self._rules = self._invalid(f"the file cannot be read: {error.strerror}")
        return self._rules

    def _load(self, size: int) -> Rules:
        # The file may come from a cloned repository: a huge one must not delay every turn.
        if size > MAX_BYTES:
            return self._invalid(f"larger than {MAX_BYTES} bytes")
        try:
            policy = read_policy(self.path.read_bytes(), self._catalog, name=str(self.path))
            common, fallback = policy.common, self._fallback.common
            common = replace(
                common,
                default=common.default or fallback.default,
                tiers=common.tiers or fallback.tiers,
            )
            return Rules(replace(policy, common=common))
        except RoutingPolicyError as error:
            return Rules(self._rules.policy, error)

    def _invalid(self, text: str) -> Rules:
        error = RoutingPolicyError(str(self.path), [Problem("$", RULE, text)])
        return Rules(self._rules.policy, error)
