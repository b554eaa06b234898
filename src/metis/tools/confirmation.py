"""Confirmation of tool calls: which run at once, which the user decides, which are denied."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from enum import StrEnum
from typing import ClassVar, Protocol
from weakref import WeakValueDictionary

from msgspec import Struct

from metis.canonical.blocks import ToolUseBlock
from metis.canonical.tools import SideEffects, ToolDefinition
from metis.deprecation import RenamedFields
from metis.tools.caution import steers_later_runs
from metis.tools.tool import ErrorClass, ToolContext, ToolFailedError


class Rule(StrEnum):
    """What happens before a call runs."""

    AUTO = "auto"
    ASK = "ask"
    DENY = "deny"


class Verdict(StrEnum):
    """The decision of the user."""

    ALLOW_ONCE = "allow_once"
    ALLOW_FOR_SESSION = "allow_for_session"
    DENY = "deny"


class Answer(Struct, frozen=True, metaclass=RenamedFields):
    """The user's answer; the reason of a denial is sent to the model."""

    renamed_fields: ClassVar[Mapping[str, str]] = {"words": "reason"}

    verdict: Verdict
    reason: str = ""


class Question(Struct, frozen=True):
    """A call that the user must allow or deny."""

    call: ToolUseBlock
    definition: ToolDefinition
    context: ToolContext


Ask = Callable[[Question], Awaitable[Answer]]
"""Asks the user; it is cancelled at the timeout, or when the turn ends."""

RULES: Mapping[SideEffects, Rule] = {
    SideEffects.NONE: Rule.AUTO,
    SideEffects.READ: Rule.AUTO,
    SideEffects.WRITE: Rule.ASK,
    SideEffects.EXECUTE: Rule.ASK,
    SideEffects.NETWORK: Rule.ASK,
}
"""The default rules, by the strongest effect that a tool can have."""

TIMEOUT_S = 300.0
"""How long the user may take to answer."""


class Listener(Protocol):
    """Receives questions and answers; its methods must not raise."""

    def on_question(self, question: Question) -> None:
        """Report a question before the user is asked."""
        ...

    def on_answer(self, question: Question, answer: Answer | None) -> None:
        """Report the answer to a question; None if there was none in time."""
        ...


class Confirmation:
    """Decides which calls may run, and remembers the tools that were allowed for a session."""

    def __init__(
        self,
        ask: Ask | None = None,
        *,
        rules: Mapping[SideEffects, Rule] | None = None,
        tools: Mapping[str, Rule] | None = None,
        is_trusted: bool = False,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        # Trust covers files of the workspace only, not commands or the network.
        trust = {SideEffects.WRITE: Rule.AUTO} if is_trusted else {}
        self._ask = ask
        self._rules = {**RULES, **trust, **(rules or {})}
        self._tools = dict(tools or {})
        self._timeout_s = timeout_s
        self._allowed: set[tuple[str, str]] = set()
        # A session has one question at a time, because its answer may also allow the next call.
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def rule(self, definition: ToolDefinition) -> Rule:
        """Return the rule of a tool: the one for its name, or for its effect."""
        return self._tools.get(definition.name) or self._rules[definition.side_effects]

    async def require(self, question: Question, listener: Listener | None = None) -> None:
        """Return when the call may run.

        Raises:
            ToolFailedError: it may not; the text is for the model.
        """
        session_id, name = question.context.session_id, question.definition.name
        rule = self.rule(question.definition)
        if rule is Rule.DENY:
            raise ToolFailedError(f"{name} is not allowed here.", ErrorClass.PERMISSION_DENIED)
        if rule is Rule.AUTO or await self._is_allowed(question):
            return
        async with self._locks.setdefault(session_id, asyncio.Lock()):
            # Checked again, because the previous answer may have allowed the tool.
            if not await self._is_allowed(question):
                answer = await self._answer(question, listener)
                if answer.verdict is Verdict.ALLOW_FOR_SESSION:
                    self._allowed.add((session_id, name))
                elif answer.verdict is Verdict.DENY:
                    reason = f" The user says: {answer.reason}" if answer.reason else ""
                    text = f"The user did not allow {name}.{reason}"
                    raise ToolFailedError(text, ErrorClass.USER_DENIED)

    async def _is_allowed(self, question: Question) -> bool:
        """Return whether an earlier answer also allows this call."""
        call, definition, context = question.call, question.definition, question.context
        if (context.session_id, definition.name) not in self._allowed:
            return False
        # A user who allowed edits of code did not allow files that change later runs, such as
        # hooks. In a thread, because a call may have megabytes of arguments.
        return not await asyncio.to_thread(steers_later_runs, call, definition, context.workspace)

    async def _answer(self, question: Question, listener: Listener | None) -> Answer:
        name = question.definition.name
        if self._ask is None:
            text = f"{name} needs confirmation, and this program cannot ask the user."
            raise ToolFailedError(text, ErrorClass.PERMISSION_DENIED)
        if listener is not None:
            listener.on_question(question)
        try:
            async with asyncio.timeout(self._timeout_s):
                answer = await self._ask(question)
        except TimeoutError:
            answer = None
        if listener is not None:
            listener.on_answer(question, answer)
        if answer is None:
            text = f"Nobody answered within {self._timeout_s:g} s whether {name} may run."
            raise ToolFailedError(text, ErrorClass.CONFIRMATION_TIMEOUT)
        return answer
