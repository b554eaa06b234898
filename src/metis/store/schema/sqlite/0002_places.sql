-- A message stands in `journal` only where its row alone does not tell its place: with a time that
-- is not later than all before it, still being written, not whole in its columns, or as one of the
-- marks from which the others are counted. `latest_at` is the latest time up to there.
CREATE TABLE places (
  session_id TEXT NOT NULL,
  seq INTEGER NOT NULL,
  message_id TEXT,
  entry_json TEXT,
  latest_at INTEGER NOT NULL,
  PRIMARY KEY (session_id, seq),
  FOREIGN KEY (session_id) REFERENCES sessions(id)
) WITHOUT ROWID;
INSERT INTO places SELECT j.session_id, j.seq, j.message_id, j.entry_json,
  coalesce(max(m.created_at) OVER (PARTITION BY j.session_id ORDER BY j.seq), -4611686018427387904)
  FROM journal j LEFT JOIN messages m ON m.id = j.message_id;
DROP TABLE journal;
ALTER TABLE places RENAME TO journal;
