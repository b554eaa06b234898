"""Which entries of a stored session are written for another program, and in which form."""

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from metis.canonical.blocks import ContentBlock, TextBlock, ToolResultBlock, ToolUseBlock
from metis.canonical.ids import new_ulid
from metis.canonical.message import Message, Role
from metis.canonical.metadata import MessageMetadata, Outcome, OutcomeStatus
from metis.interchange.session_draft import foreign_data
from metis.interchange.session_format import SessionFormat, WriteOptions, WrittenSession
from metis.interchange.tool_names import rename_tools
from metis.projection.loss import Change, Loss
from metis.store.entries import AnyEntry, CompactionEntry, MessageEntry, UnknownEntry, entry_of
from metis.store.threads import Threads

NO_RESULT = "(no result: the call was interrupted)"
"""The text of a result that a program needs and the session does not have."""


def write_session(
    file_format: SessionFormat, history: Sequence[AnyEntry], options: WriteOptions
) -> WrittenSession:
    """Write a stored session in a format, with the losses of both steps."""
    losses: list[Loss] = []
    entries = list(_written_entries(file_format, history))
    entries = list(_with_results(file_format, entries, losses))
    if options.map_tools:
        entries = list(rename_tools(file_format, entries, losses))
    written = file_format.write(entries, options)
    return replace(written, losses=[*losses, *written.losses])


def _written_entries(file_format: SessionFormat, history: Sequence[AnyEntry]) -> Iterator[AnyEntry]:
    """Yield the entries that came from the program, and of the others the path to the newest."""
    active = {message.id for message in Threads(history).path()}
    for entry in history:
        if (
            isinstance(entry, UnknownEntry)
            or foreign_data(entry, file_format.system)
            or not isinstance(entry, MessageEntry)
            or entry.id in active
        ):
            yield entry


def _with_results(
    file_format: SessionFormat, entries: Sequence[AnyEntry], losses: list[Loss]
) -> Iterator[AnyEntry]:
    """Yield entries with a result for each call that has none.

    Programs leave out a call without a result, or their provider refuses it.
    """
    calls_with_result = {
        entry.message.metadata.parent_tool_use_id
        for entry in entries
        if isinstance(entry, MessageEntry) and entry.message.role is Role.TOOL
    }
    added_results: list[MessageEntry] = []
    for entry in entries:
        is_next = isinstance(entry, MessageEntry) and entry.message.role is not Role.TOOL
        if added_results and (is_next or isinstance(entry, CompactionEntry)):
            yield from added_results
            added_results = []
        yield entry
        if isinstance(entry, MessageEntry) and not foreign_data(entry, file_format.system):
            for block in entry.message.content:
                if isinstance(block, ToolUseBlock) and block.id not in calls_with_result:
                    added_results.append(_missing_result(entry.message, block))
                    losses.append(_result_loss(file_format, entry, block))
    yield from added_results


def _missing_result(message: Message, call: ToolUseBlock) -> MessageEntry:
    result = ToolResultBlock(call.id, (TextBlock(NO_RESULT),), is_error=True)
    return entry_of(
        Message(
            id=new_ulid(),
            session_id=message.session_id,
            role=Role.TOOL,
            content=(result,),
            created_at=message.created_at,
            metadata=MessageMetadata(
                parent_tool_use_id=call.id,
                origin=message.metadata.origin,
                outcome=Outcome(status=OutcomeStatus.ABORTED, tool_name=call.name),
            ),
        )
    )


def _index_of(content: Sequence[ContentBlock], call: ToolUseBlock) -> int:
    # By identity: an equality check would encode both blocks.
    return next(index for index, block in enumerate(content) if block is call)


def _result_loss(file_format: SessionFormat, entry: MessageEntry, call: ToolUseBlock) -> Loss:
    return Loss(
        session_id=entry.session_id,
        message_id=entry.id,
        block_type="tool_result",
        adapter=file_format.name,
        reason=f"the call of {call.name} has no result; one that says so was added",
        change=Change.SYNTHESISED,
        path=f"$.content[{_index_of(entry.message.content, call)}]",
    )
