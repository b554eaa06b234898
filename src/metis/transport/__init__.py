"""One HTTP client for all providers; it is imported when it is first used."""

from importlib import import_module
from typing import TYPE_CHECKING

from metis.transport.keys import Keys

if TYPE_CHECKING:
    from metis.transport.client import Limits, Transport
    from metis.transport.retry import Retry

__all__ = ["Keys", "Limits", "Retry", "Transport"]

_MODULE_OF = {"Limits": "client", "Transport": "client", "Retry": "retry"}


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'metis.transport' has no attribute {name!r}")
    value = getattr(import_module(f"metis.transport.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value
