"""Errors of what is known of models."""

from collections.abc import Sequence

from metis.canonical.errors.base import MetisError, ProblemsError


class CatalogError(MetisError):
    """Something about models or prices that the catalogue cannot answer."""


class CatalogDataError(CatalogError, ProblemsError):
    """A model or price table that cannot be used."""


class UnknownModelError(CatalogError, LookupError):
    """A model that is in no table; `hint` says how to add it."""

    def __init__(self, model: str, hint: str) -> None:
        self.model = model
        self.hint = hint
        super().__init__(f"unknown model {model!r}: {hint}")


class WrongProviderError(CatalogError, LookupError):
    """A model of one provider was given to the adapter of another."""

    def __init__(self, model: str, *, adapter: str, provider: str) -> None:
        super().__init__(
            f"{adapter} does not serve {model!r}: it is a model of {provider}; "
            f"take adapters.get({provider!r}), or name a model of {adapter}"
        )
        self.model = model
        self.adapter = adapter
        self.provider = provider


class UnpricedModelError(CatalogError, LookupError):
    """A model without a price in the table; `hint` says how to add one."""

    def __init__(self, model: str, pricing_version: str, hint: str) -> None:
        self.model = model
        self.pricing_version = pricing_version
        self.hint = hint
        super().__init__(f"no price for {model!r} in price table {pricing_version!r}: {hint}")


class AmbiguousModelError(CatalogError, LookupError):
    """A short model name that fits several models."""

    def __init__(self, name: str, candidates: Sequence[str]) -> None:
        self.name = name
        self.candidates = tuple(candidates)
        super().__init__(f"{name!r} is ambiguous: it could be {', '.join(self.candidates)}")


class UnknownPricingError(CatalogError, LookupError):
    """A pricing version that no table carries."""

    def __init__(self, pricing_version: str, known: Sequence[str]) -> None:
        self.pricing_version = pricing_version
        self.known = tuple(known)
        super().__init__(
            f"no price table has version {pricing_version!r}; there are {', '.join(self.known)}"
        )
