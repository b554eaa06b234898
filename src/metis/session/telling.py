"""Telling: how the parts of a turn tell what happens, to whoever listens and to the bus."""

from collections.abc import Callable

from msgspec import Struct

from metis.session.notices import TurnEvent, Warned, WarningCode
from metis.session.trace import Trace


class Telling(Struct, frozen=True, kw_only=True):
    """One turn, who listens to it, and its trace."""

    turn_id: str
    tell: Callable[[TurnEvent], None]
    trace: Trace

    def warn(self, code: WarningCode, text: str) -> None:
        """Tell something that a person should know, and that stops nothing."""
        self.tell(Warned(turn_id=self.turn_id, code=code, text=text))
