"""Confirmation: which calls run at once, which are asked about, and what was answered."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from enum import StrEnum
from typing import Protocol
from weakref import WeakValueDictionary

from msgspec import Struct

from metis.canonical.blocks import ToolUseBlock
from metis.canonical.tools import SideEffects, ToolDefinition
from metis.tools.tool import ErrorClass, ToolContext, ToolFailedError


class Rule(StrEnum):
    """What happens before a call runs."""

    AUTO = "auto"
    ASK = "ask"
    DENY = "deny"


class Verdict(StrEnum):
    """What somebody answered."""

    ALLOW_ONCE = "allow_once"
    ALLOW_FOR_SESSION = "allow_for_session"
    DENY = "deny"


class Answer(Struct, frozen=True):
    """An answer; the words of a denial are given to the model."""

    verdict: Verdict
    reason: str = ""


class Question(Struct, frozen=True):
    """A call that somebody has to decide about."""

    call: ToolUseBlock
    definition: ToolDefinition
    context: ToolContext


Ask = Callable[[Question], Awaitable[Answer]]
"""Asks somebody; it is cancelled when the answer comes too late or the turn ends."""

RULES: Mapping[SideEffects, Rule] = {
    SideEffects.NONE: Rule.AUTO,
    SideEffects.READ: Rule.AUTO,
    SideEffects.WRITE: Rule.ASK,
    SideEffects.EXECUTE: Rule.ASK,
    SideEffects.NETWORK: Rule.ASK,
}
"""What happens by default, by the strongest effect that a tool can have."""

TIMEOUT_S = 300.0
"""How long an answer is waited for."""


class Listener(Protocol):
    """Told of questions and answers; it must not raise."""

    def asking(self, question: Question) -> None:
        """Somebody is asked."""
        ...

    def decided(self, question: Question, answer: Answer | None) -> None:
        """Somebody has answered; None is nobody in time."""
        ...


class Confirmation:
    """Decides about calls, and remembers what was allowed for which session."""

    def __init__(
        self,
        ask: Ask | None = None,
        *,
        rules: Mapping[SideEffects, Rule] | None = None,
        tools: Mapping[str, Rule] | None = None,
        is_trusted: bool = False,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        trust = {SideEffects.WRITE: Rule.AUTO} if is_trusted else {}
        self._ask = ask
        self._rules = {**RULES, **trust, **(rules or {})}
        self._tools = dict(tools or {})
        self._timeout_s = timeout_s
        self._allowed: set[tuple[str, str]] = set()
        # One question of a session at a time: an answer for it may decide the next one too.
        self._asking: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def rule(self, definition: ToolDefinition) -> Rule:
        """What happens before a call of this tool: its own rule, or that of its effect."""
        return self._tools.get(definition.name) or self._rules[definition.side_effects]

    async def require(self, question: Question, listener: Listener | None = None) -> None:
        """Return when the call may run; raise the failure that the model is told otherwise."""
        name = question.definition.name
        key = (question.context.session_id, name)
        rule = self.rule(question.definition)
        if rule is Rule.DENY:
            raise ToolFailedError(
                f"{name} is not allowed here.",
                ErrorClass.PERMISSION_DENIED,
            )
        if rule is Rule.AUTO or key in self._allowed:
            return
        async with self._asking.setdefault(key[0], asyncio.Lock()):
            if key not in self._allowed:
                answer = await self._answer(question, listener)
                if answer.verdict is Verdict.ALLOW_FOR_SESSION:
                    self._allowed.add(key)
                elif answer.verdict is Verdict.DENY:
                    raise _denied(name, answer)

    async def _answer(self, question: Question, listener: Listener | None) -> Answer:
        name = question.definition.name
        if self._ask is None:
            text = f"{name} needs to be allowed, and nobody is here to be asked."
            raise ToolFailedError(text, ErrorClass.PERMISSION_DENIED)
        if listener is not None:
            listener.asking(question)
        try:
            async with asyncio.timeout(self._timeout_s):
                answer = await self._ask(question)
        except TimeoutError:
            if listener is not None:
                listener.decided(question, None)
            text = f"Nobody answered within {self._timeout_s:g} s whether {name} may run."
            raise ToolFailedError(text, ErrorClass.CONFIRMATION_TIMEOUT) from None
        if listener is not None:
            listener.decided(question, answer)
        return answer


def _denied(name: str, answer: Answer) -> ToolFailedError:
    text = f"The user did not allow {name}."
    words = f"{text} The user says: {answer.reason}" if answer.reason else text
    return ToolFailedError(words, ErrorClass.USER_DENIED)
