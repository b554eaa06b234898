"""Saving: a message that was being written gets its end; what is complete is not rewritten."""

from metis.canonical.errors import MetisError, StoreError
from metis.canonical.message import Message
from metis.canonical.metadata import MessageStatus
from metis.store.appending import Append, Prepared, add_calls, add_parents
from metis.store.database import Transaction
from metis.store.places import write_places
from metis.store.reading import read_message
from metis.store.tables import Tables
from metis.store.work import Work

_PLACED = "UPDATE journal SET entry_json = ? WHERE session_id = ? AND message_id = ?"
_UPDATE = (
    "UPDATE messages SET role = ?, content_json = ?, metadata_json = ?, created_at = ?, "
    "schema_version = ? WHERE id = ?"
)


class Save(Work):
    """A message that is in the store already, in its new form."""

    def __init__(self, prepared: Prepared) -> None:
        self._prepared = prepared
        self.session_ids = [prepared.message.session_id]
        self.size = prepared.size

    def write(self, tables: Tables) -> Message:
        """Write the new form, if the old one was partial or says the same."""
        one = self._prepared
        message_id, session_id = one.message.id, one.message.session_id
        tables.head(session_id)
        old = read_message(tables, session_id, message_id)
        was_open = old.metadata.status == MessageStatus.PARTIAL
        if not was_open and old != one.message:
            raise _finished(message_id)
        tables.change(_UPDATE, (*one.row[2:], message_id))
        self._place(old, tables)
        if was_open:
            self._finish(old, tables)
        return one.message

    def _place(self, old: Message, tables: Tables) -> None:
        """Keep what the columns cannot hold, and the place if the row no longer tells it."""
        one = self._prepared
        values = (one.whole, one.message.session_id, one.message.id)
        if one.message.created_at != old.created_at:
            write_places(tables, one.message.session_id)
        if not tables.change(_PLACED, values) and one.whole is not None:
            write_places(tables, one.message.session_id)
            tables.change(_PLACED, values)

    def _finish(self, old: Message, tables: Tables) -> None:
        one = self._prepared
        if one.message.metadata.parents != old.metadata.parents:
            tables.change("DELETE FROM message_parents WHERE message_id = ?", (one.message.id,))
            add_parents(one, tables)
        if one.message.metadata.status != MessageStatus.PARTIAL:
            tables.change("DELETE FROM open_messages WHERE message_id = ?", (one.message.id,))
            add_calls(one, tables)

    def explain(self, transaction: Transaction) -> MetisError | None:
        """Which of its calls or results did not fit to what is there."""
        return Append([self._prepared]).explain(transaction, is_there=True)


def _finished(message_id: str) -> StoreError:
    hint = "what changes a conversation afterwards is an entry behind it"
    return StoreError(f"message {message_id} is finished and cannot be rewritten", hint=hint)
