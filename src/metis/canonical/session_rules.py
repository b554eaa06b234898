"""The rules between the messages of a session: every result answers one call, once, at home."""

from collections.abc import Iterator, Sequence

from metis.canonical.blocks import ToolResultBlock, ToolUseBlock
from metis.canonical.message import Message
from metis.canonical.metadata import MessageStatus
from metis.canonical.placement import Profile
from metis.canonical.problem import Problem
from metis.canonical.rules import validate
from metis.canonical.tools import ToolSet


def validate_session(
    messages: Sequence[Message], profile: Profile = "full", *, tools: ToolSet | None = None
) -> list[Problem]:
    """Every broken rule in a list of messages: those of each message, and those between them.

    Paths start with the index of the message: `$[3].content[0].tool_use_id`. The list may hold
    several sessions.
    """
    ledger = _Ledger()
    problems: list[Problem] = []
    for index, message in enumerate(messages):
        at = f"$[{index}]"
        for problem in validate(message, profile, tools=tools):
            path = at + problem.path.removeprefix("$")
            problems.append(Problem(path=path, rule=problem.rule, text=problem.text))
        if message.metadata.status != MessageStatus.PARTIAL:
            problems.extend(ledger.enter(message, at))
    return problems


class _Ledger:
    """What the messages so far have called and answered."""

    def __init__(self) -> None:
        self._newest: dict[str, str] = {}
        self._session_of_call: dict[str, str] = {}
        self._answer_to: dict[str, str] = {}

    def enter(self, message: Message, at: str) -> Iterator[Problem]:
        yield from self._check_order(message, at)
        for place, block in enumerate(message.content):
            path = f"{at}.content[{place}]"
            if isinstance(block, ToolUseBlock):
                yield from self._check_call(block, message, f"{path}.id")
            elif isinstance(block, ToolResultBlock):
                yield from self._check_result(block, message, f"{path}.tool_use_id")

    def _check_order(self, message: Message, at: str) -> Iterator[Problem]:
        newest = self._newest.get(message.session_id, "")
        if message.id <= newest:
            text = f"{message.id!r} does not come after {newest!r}"
            yield Problem(path=f"{at}.id", rule="M-165", text=text)
        self._newest[message.session_id] = max(newest, message.id)

    def _check_call(self, call: ToolUseBlock, message: Message, path: str) -> Iterator[Problem]:
        owner = self._session_of_call.get(call.id)
        if owner is None:
            self._session_of_call[call.id] = message.session_id
        elif owner == message.session_id:
            text = f"{call.id!r} was used before; a retry gets a new id"
            yield Problem(path=path, rule="M-141", text=text)
        else:
            text = f"{call.id!r} belongs to session {owner!r}"
            yield Problem(path=path, rule="M-139", text=text)

    def _check_result(
        self, result: ToolResultBlock, message: Message, path: str
    ) -> Iterator[Problem]:
        call = result.tool_use_id
        owner = self._session_of_call.get(call)
        if owner is None:
            text = f"no earlier call has the id {call!r}"
            yield Problem(path=path, rule="M-138", text=text)
        elif owner != message.session_id:
            text = f"{call!r} belongs to session {owner!r}"
            yield Problem(path=path, rule="M-139", text=text)
        elif call in self._answer_to:
            text = f"{call!r} was answered by message {self._answer_to[call]!r} already"
            yield Problem(path=path, rule="M-140", text=text)
        else:
            self._answer_to[call] = message.id
