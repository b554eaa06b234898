-- The bytes of model calls. A request is the first `prefix` bytes of the request of `base_id`, then
-- `request`, then its last `suffix` bytes; without a base, `request` is all of it. Both columns with
-- bytes are compressed with zlib, or have a zero byte before what is too short for that. `id` is that
-- of the response, or of the exchange of the gateway.
CREATE TABLE wire_bodies (
  session_id TEXT NOT NULL,
  id TEXT NOT NULL,
  provider TEXT NOT NULL,
  path TEXT NOT NULL,
  status INTEGER NOT NULL,
  base_id TEXT NOT NULL,
  prefix INTEGER NOT NULL,
  suffix INTEGER NOT NULL,
  request_bytes INTEGER NOT NULL,
  response_bytes INTEGER NOT NULL,
  checksum INTEGER NOT NULL,
  request BLOB NOT NULL,
  response BLOB NOT NULL,
  PRIMARY KEY (session_id, id)
);
