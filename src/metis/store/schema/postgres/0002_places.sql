-- A message stands in `journal` only where its row alone does not tell its place: with a time that
-- is not later than all before it, still being written, not whole in its columns, or as one of the
-- marks from which the others are counted. `latest_at` is the latest time up to there.
ALTER TABLE journal ADD COLUMN latest_at BIGINT NOT NULL DEFAULT -4611686018427387904;
UPDATE journal SET latest_at = told.latest_at FROM (
  SELECT j.session_id, j.seq,
    max(m.created_at) OVER (PARTITION BY j.session_id ORDER BY j.seq) AS latest_at
  FROM journal j LEFT JOIN messages m ON m.id = j.message_id
) told
WHERE journal.session_id = told.session_id AND journal.seq = told.seq
  AND told.latest_at IS NOT NULL;
ALTER TABLE journal ALTER COLUMN latest_at DROP DEFAULT;
