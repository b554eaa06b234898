"""Adapters: a wire protocol bound to a provider."""

from metis.adapters.adapter import Adapter
from metis.adapters.profile import Profile
from metis.adapters.registry import get, names, profile_of

__all__ = ["Adapter", "Profile", "get", "names", "profile_of"]
