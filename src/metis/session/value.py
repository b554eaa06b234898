"""Values: the JSON that an answer was asked to be, read and checked."""

from collections.abc import Mapping
from typing import Any

import msgspec

from metis.canonical.answer_check import compile_answer
from metis.canonical.errors import InvalidAnswerError
from metis.canonical.message import Message
from metis.canonical.metadata import StopReason
from metis.canonical.problem import Problem
from metis.canonical.tool_schema import describe
from metis.session.facts import words_of
from metis.wire.output import OutputFormat

RULE = "T115"
Wanted = OutputFormat | Mapping[str, Any]
"""What an answer shall be: a form, or only its schema."""

_read = msgspec.json.Decoder().decode
_CUT = {
    StopReason.MAX_TOKENS: "the answer was cut by its limit",
    StopReason.CONTENT_FILTER: "the answer was held back by a filter",
    StopReason.REFUSAL: "the model refused to answer",
}


def wanted(output: Wanted | None) -> OutputFormat | None:
    """The form that is meant.

    Raises:
        InvalidValueError: a schema that asks for something which is not checked.
    """
    if output is None:
        return None
    form = output if isinstance(output, OutputFormat) else OutputFormat(dict(output))
    if form.schema is not None:
        compile_answer(form.schema)
    return form


def value_of(message: Message | None, output: OutputFormat) -> Any:
    """The value that an answer gives.

    Raises:
        InvalidAnswerError: it gives none, or one that does not keep to the schema.
    """
    if message is None:
        raise _wrong(message, "the model said nothing")
    reason = message.metadata.stop_reason
    if reason is not None and reason in _CUT:
        # A refusal is no JSON that went wrong (T119).
        raise _wrong(message, _CUT[reason])
    try:
        value = _read(words_of(message.content))
    except (ValueError, RecursionError) as error:
        raise _wrong(message, f"the answer is no JSON: {error}") from None
    problems = _problems(value, output)
    if problems:
        raise InvalidAnswerError("the answer is not what was asked for", problems, message=message)
    return value


def _problems(value: object, output: OutputFormat) -> list[Problem]:
    if output.schema is not None:
        return compile_answer(output.schema)(value)
    if isinstance(value, dict):
        return []
    return [Problem("$", RULE, f"expected an object, got {describe(value)}")]


def _wrong(message: Message | None, text: str) -> InvalidAnswerError:
    problem = Problem("$", RULE, text)
    return InvalidAnswerError("there is no answer of that form", [problem], message=message)
