"""RulesFile: the rules on disk, looked at when a turn starts; good ones outlive broken ones."""

from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from metis.canonical.errors import RoutingPolicyError
from metis.canonical.problem import Problem
from metis.catalog.models import Catalog
from metis.routing.policy import Policy, read_policy
from metis.routing.predicates import RULE

PLACE = Path(".metis") / "routing.toml"
"""Where a workspace keeps its rules."""
MAX_BYTES = 1_000_000
"""The largest rules file."""


class Rules(Struct, frozen=True):
    """The rules in force, and what is wrong with the file if it says something else."""

    policy: Policy
    problem: RoutingPolicyError | None = None


class RulesFile:
    """Reads a rules file again when its time or size has changed.

    Without a file the `fallback` holds; so it does when the file is removed. Its default model and
    its tiers also hold where the file names none.
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
        """The rules that hold now."""
        try:
            status = self.path.stat()
            stamp = (status.st_mtime_ns, status.st_size)
            if stamp != self._stamp:
                self._rules = self._load(status.st_size)
                self._stamp = stamp
        except (FileNotFoundError, NotADirectoryError):
            self._stamp, self._rules = None, Rules(self._fallback)
        except OSError as error:
            self._stamp = None
            self._rules = self._broken(f"the file cannot be read: {error.strerror}")
        return self._rules

    def _load(self, size: int) -> Rules:
        if size > MAX_BYTES:
            return self._broken(f"larger than {MAX_BYTES} bytes")
        try:
            policy = read_policy(self.path.read_bytes(), self._catalog, name=str(self.path))
            common, ours = policy.common, self._fallback.common
            common = replace(
                common, default=common.default or ours.default, tiers=common.tiers or ours.tiers
            )
            return Rules(replace(policy, common=common))
        except RoutingPolicyError as error:
            return Rules(self._rules.policy, error)

    def _broken(self, text: str) -> Rules:
        error = RoutingPolicyError(str(self.path), [Problem("$", RULE, text)])
        return Rules(self._rules.policy, error)
