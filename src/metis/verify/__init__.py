"""Verification: checks of recorded exchanges against the laws that every adapter must satisfy."""

from metis.verify.json_differences import differences
from metis.verify.laws import Findings, Law, Verdict, check_laws
from metis.verify.recordings import (
    PROTOCOL_NAMES,
    Recording,
    adapter_for,
    adapter_of,
    guess_protocol,
    read_recording,
)

__all__ = [
    "PROTOCOL_NAMES",
    "Findings",
    "Law",
    "Recording",
    "Verdict",
    "adapter_for",
    "adapter_of",
    "check_laws",
    "differences",
    "guess_protocol",
    "read_recording",
]
