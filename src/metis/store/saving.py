"""Saving: a message that was being written gets its end; what is complete is not rewritten."""

from metis.canonical.errors import MetisError, StoreError, UnknownMessageError
from metis.canonical.message import Message
from metis.canonical.metadata import MessageStatus
from metis.store.appending import Append, Prepared, add_calls, add_parents
from metis.store.database import Transaction
from metis.store.rows import from_row
from metis.store.tables import Tables

MESSAGE_COLUMNS = (
    "m.id, m.session_id, m.role, m.content_json, m.metadata_json, m.created_at, m.schema_version, "
    "j.entry_json"
)
_FIND = (
    f"SELECT {MESSAGE_COLUMNS}, j.seq FROM journal j JOIN messages m ON m.id = j.message_id "  # noqa: S608 - no input
    "WHERE j.session_id = ? AND j.message_id = ? ORDER BY j.seq DESC LIMIT 1"
)
_UPDATE = (
    "UPDATE messages SET role = ?, content_json = ?, metadata_json = ?, created_at = ?, "
    "schema_version = ? WHERE id = ?"
)


class Save:
    """A message that is in the store already, in its new form."""

    def __init__(self, prepared: Prepared) -> None:
        self._prepared = prepared
        self.session_ids = [prepared.row.session_id]
        self.size = prepared.size

    def write(self, tables: Tables) -> Message:
        """Write the new form, if the old one was partial or says the same."""
        one, row = self._prepared, self._prepared.row
        tables.head(row.session_id)
        found = tables.run(_FIND, (row.session_id, row.id))
        if not found:
            raise UnknownMessageError(row.session_id, row.id)
        old, seq = from_row(found[0][:8]), found[0][8]
        was_open = old.metadata.status == MessageStatus.PARTIAL
        if not was_open and old != one.message:
            raise _finished(row.id)
        tables.change(_UPDATE, (*row[2:], row.id))
        sql = "UPDATE journal SET entry_json = ? WHERE session_id = ? AND seq = ?"
        tables.change(sql, (one.whole, row.session_id, seq))
        if was_open:
            self._finish(old, tables)
        return one.message

    def _finish(self, old: Message, tables: Tables) -> None:
        one = self._prepared
        if one.message.metadata.parents != old.metadata.parents:
            tables.change("DELETE FROM message_parents WHERE message_id = ?", (one.row.id,))
            add_parents(one, tables)
        if one.message.metadata.status != MessageStatus.PARTIAL:
            tables.change("DELETE FROM open_messages WHERE message_id = ?", (one.row.id,))
            add_calls(one, tables)

    def explain(self, transaction: Transaction) -> MetisError | None:
        """Which of its calls or results did not fit to what is there."""
        return Append([self._prepared]).explain(transaction, is_there=True)


def _finished(message_id: str) -> StoreError:
    hint = "what changes a conversation afterwards is an entry behind it"
    return StoreError(f"message {message_id} is finished and cannot be rewritten", hint=hint)
