"""Transport: one HTTP client for all providers."""

from metis.transport.client import Limits, Transport
from metis.transport.keys import Keys
from metis.transport.retry import Retry

__all__ = ["Keys", "Limits", "Retry", "Transport"]
