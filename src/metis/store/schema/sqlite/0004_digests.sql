-- Checksums of messages and entries, by which damage on the disk is noticed: one row for up to some
-- dozens of them, as JSON from message id (or `#` and the number of an entry) to checksum. Of two rows
-- about one message the one with the higher number holds; rewritten messages have numbers of their own.
CREATE TABLE digests (
  session_id TEXT NOT NULL,
  number INTEGER NOT NULL,
  digests_json TEXT NOT NULL,
  PRIMARY KEY (session_id, number)
) WITHOUT ROWID;
