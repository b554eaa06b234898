"""Problem: one thing that is wrong, and where."""

from msgspec import Struct


class Problem(Struct, frozen=True):
    """One broken rule: `path` names the offending part, `rule` its row, `text` the fault."""

    path: str
    rule: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}: {self.text}"
