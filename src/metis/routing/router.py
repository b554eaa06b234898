"""Router: the chain, bound to what is known of models, rules and outages."""

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet

from msgspec.structs import replace

from metis.catalog.models import Catalog
from metis.routing.availability import Outage
from metis.routing.chain import Decision, decide
from metis.routing.facts import Tier, TurnFacts
from metis.routing.policy import Policy
from metis.routing.rules_file import Rules, RulesFile
from metis.routing.validation import Failure, Validator


def _no_outage(_: str) -> Outage | None:
    return None


class Router:
    """Chooses the model of a turn; the same facts, rules and outages give the same decision.

    `rules` is a policy, or a file that is looked at when a turn starts; `configured` names the
    providers that can be called, and may grow; `outage` is `Availability.outage`, if failures are
    counted.
    """

    def __init__(
        self,
        catalog: Catalog,
        *,
        configured: AbstractSet[str],
        rules: RulesFile | Policy,
        outage: Callable[[str], Outage | None] = _no_outage,
    ) -> None:
        self._catalog = catalog
        self._configured = configured
        self._rules = rules
        self._outage = outage

    def decide(self, turn: TurnFacts) -> Decision:
        """Which model takes a turn; a name that the catalogue does not know raises its error."""
        rules = self._read_rules()
        decision = decide(self._with_ids(turn), self._validator(rules.policy))
        if rules.problem is None:
            return decision
        return replace(decision, policy_problem=rules.problem)

    def check(self, model: str, turn: TurnFacts) -> Failure | None:
        """Why a model could not take a turn like this one; for a swap, before it is made."""
        validator = self._validator(self._read_rules().policy)
        return validator.check(self._catalog.resolve(model), turn)

    def tiers(self, workspace_path: str) -> Mapping[Tier, str]:
        """The models for delegated tasks; empty if none are set."""
        return self._read_rules().policy.tiers(workspace_path)

    def _validator(self, policy: Policy) -> Validator:
        return Validator(
            catalog=self._catalog,
            policy=policy,
            configured=self._configured,
            outage=self._outage,
        )

    def _read_rules(self) -> Rules:
        return self._rules.read() if isinstance(self._rules, RulesFile) else Rules(self._rules)

    def _with_ids(self, turn: TurnFacts) -> TurnFacts:
        """The same with canonical ids for the models that the user named."""
        if turn.override is None and turn.sticky is None:
            return turn
        resolve = self._catalog.resolve
        return replace(
            turn,
            override=None if turn.override is None else resolve(turn.override),
            sticky=None if turn.sticky is None else resolve(turn.sticky),
        )
