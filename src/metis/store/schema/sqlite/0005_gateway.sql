-- One row for each request that went through the gateway: what it was, where it went, what it cost.
CREATE TABLE exchanges (
  id TEXT PRIMARY KEY,
  session_id TEXT NOT NULL,
  tenant TEXT NOT NULL,
  record_json TEXT NOT NULL
) WITHOUT ROWID;
CREATE INDEX idx_exchanges_session ON exchanges(session_id);
-- Where the histories that clients of the gateway sent end in stored sessions, by digests of their
-- messages: the next request of a conversation is stored behind the longest history that it begins
-- with. `call_ids` are the tool calls that its last response made, with spaces between them.
CREATE TABLE history_ends (
  scope TEXT NOT NULL,
  digest TEXT NOT NULL,
  session_id TEXT NOT NULL,
  message_id TEXT NOT NULL,
  call_ids TEXT NOT NULL,
  PRIMARY KEY (scope, digest)
) WITHOUT ROWID;
CREATE INDEX idx_history_ends_session ON history_ends(session_id);
