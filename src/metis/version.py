"""The version of the distribution, and of the canonical form that it speaks."""

__version__ = "0.1.0"
SPEC_VERSION = "1.1"
