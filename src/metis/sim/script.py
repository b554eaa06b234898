"""Script: answers and misbehaviours that were written down beforehand, for tests."""

from collections import deque

from metis.sim.answer import Answer
from metis.sim.behave import Behave, read_behave

Step = Answer | Behave
"""What happens on one request."""


class Script:
    """Steps that are taken one a request, in order; when they are used up, the rules answer.

    A text is an answer in words, or a misbehaviour if it begins with `sim:`.

    >>> script = Script("hello", "sim: 429 2")
    >>> script.next().content[0].text, script.next().status, script.next()
    ('hello', 429, None)
    """

    def __init__(self, *steps: Step | str) -> None:
        self._steps = deque(_step(step) for step in steps)

    def add(self, *steps: Step | str) -> None:
        """Write more steps behind those that are left."""
        self._steps.extend(_step(step) for step in steps)

    def next(self) -> Step | None:
        """The step of the request that came now; None if the script is at its end."""
        return self._steps.popleft() if self._steps else None

    def __len__(self) -> int:
        return len(self._steps)


def _step(step: Step | str) -> Step:
    if not isinstance(step, str):
        return step
    if step.startswith("sim:"):
        return read_behave(step.removeprefix("sim:"))
    return Answer.say(step)
