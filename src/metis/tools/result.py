"""Results: what a call gave, as the TOOL message that answers it."""

from datetime import UTC, datetime
from typing import Any

from msgspec import UNSET

from metis.canonical.blocks import ContentBlock, TextBlock, ToolResultBlock, ToolUseBlock
from metis.canonical.ids import new_ulid
from metis.canonical.message import Message, Role
from metis.canonical.metadata import MessageMetadata, Outcome, OutcomeStatus
from metis.tools.tool import ErrorClass, ToolContext, ToolFailedError, ToolOutput

_SILENT = "(no output)"


def output_message(call: ToolUseBlock, context: ToolContext, output: ToolOutput) -> Message:
    """The answer of a tool that ran to its end."""
    status = OutcomeStatus.SUCCESS if output.success else OutcomeStatus.ERROR
    value = output.value
    if not output.success and value is UNSET:
        value = {"error_class": str(ErrorClass.EXECUTION_ERROR)}
    return _message(call, context, status, output.content, output, value)


def failure_message(
    call: ToolUseBlock,
    context: ToolContext,
    failure: ToolFailedError,
    output: ToolOutput | None = None,
) -> Message:
    """The answer to a call that failed or was cancelled; what it gave until then is kept."""
    is_cancelled = failure.kind is ErrorClass.CANCELLED
    status = OutcomeStatus.ABORTED if is_cancelled else OutcomeStatus.ERROR
    content = (TextBlock(failure.text), *(output.content if output else ()))
    value = {"error_class": str(failure.kind)}
    return _message(call, context, status, content, output, value)


def error_class(message: Message) -> ErrorClass | None:
    """Why the call that a message answers failed; None for a call that did not."""
    outcome = message.metadata.outcome
    if outcome is None or outcome.status is OutcomeStatus.SUCCESS:
        return None
    value = outcome.value
    named = value.get("error_class") if isinstance(value, dict) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType] - any JSON
    return ErrorClass(named) if named in set(ErrorClass) else ErrorClass.EXECUTION_ERROR


def _message(  # noqa: PLR0913, PLR0917 - the parts of one message, private
    call: ToolUseBlock,
    context: ToolContext,
    status: OutcomeStatus,
    content: tuple[ContentBlock, ...],
    output: ToolOutput | None,
    value: Any,
) -> Message:
    is_error = status is not OutcomeStatus.SUCCESS
    outcome = Outcome(
        status=status,
        tool_name=call.name,
        side_effects=_side_effects(output),
        ui=output.ui if output else UNSET,
        value=value,
    )
    blocks = tuple(_writable(block) for block in content) or (TextBlock(_SILENT),)
    block = ToolResultBlock(tool_use_id=call.id, content=blocks, is_error=is_error)
    return Message(
        id=new_ulid(),
        session_id=context.session_id,
        role=Role.TOOL,
        content=(block,),
        created_at=datetime.now(UTC),
        metadata=MessageMetadata(parent_tool_use_id=call.id, outcome=outcome),
    )


def _side_effects(output: ToolOutput | None) -> tuple[Any, ...]:
    """What the call did to the world, as plain values."""
    if output is None:
        return ()
    files = [{"kind": "write", "path": _mended(path)} for path in output.files_modified]
    ran = [] if output.command is None else [{"kind": "execute", "command": output.command}]
    return (*files, *ran)


def _writable(block: ContentBlock) -> ContentBlock:
    """The same block; halves of characters, as odd file names have them, are replaced."""
    if isinstance(block, TextBlock) and not block.text.isascii():
        text = _mended(block.text)
        return block if text == block.text else TextBlock(text)
    return block


def _mended(text: str) -> str:
    return text.encode("utf-8", "replace").decode()
