"""Pointers: who answers under a short name, which a user may point elsewhere."""

from collections.abc import Mapping

from msgspec import Struct

from metis.canonical.errors import AmbiguousModelError, UnknownModelError
from metis.catalog.load import pointers
from metis.session.models import Models
from metis.wire.reasoning import Reasoning

THINKS = ".r"
"""What stands behind a pointer to a model that shall think."""


class Pointed(Struct, frozen=True):
    """Who a pointer points to, and whether it says how much that model shall think."""

    model: str
    reasoning: Reasoning | None = None


def pointed(name: str, own: Mapping[str, str], models: Models) -> Pointed:
    """Who answers under a name: a pointer of the user, a size, or any name of a model.

    Raises:
        UnknownModelError: nobody does.
    """
    known = {**pointers(), **own}
    try:
        return Pointed(models.resolve(known.get(name, name)))
    except (UnknownModelError, AmbiguousModelError):
        base = name.removesuffix(THINKS)
        if name in known:
            raise  # the pointer is there and leads to nobody
        if base == name:
            hint = f"the pointers are {', '.join(known)}; or take a name of a model"
            raise UnknownModelError(name, hint) from None
    return Pointed(pointed(base, own, models).model, Reasoning())
