"""Configured: the providers that can be called, with those that get a key while we run."""

from collections.abc import Iterator
from collections.abc import Set as AbstractSet

from metis import adapters
from metis.session.models import Models


class Configured(AbstractSet[str]):
    """A set of providers; one that is missed is looked for again, for keys are put into files."""

    def __init__(self, models: Models) -> None:
        self._models = models
        self._known = set(models.configured())

    def __contains__(self, provider: object) -> bool:
        if provider in self._known:
            return True
        if provider in adapters.names() and self._models.is_configured(str(provider)):
            self._known.add(str(provider))
            return True
        return False

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)
