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
  prefix BIGINT NOT NULL,
  suffix BIGINT NOT NULL,
  request_bytes BIGINT NOT NULL,
  response_bytes BIGINT NOT NULL,
  checksum BIGINT NOT NULL,
  request BYTEA NOT NULL,
  response BYTEA NOT NULL,
  PRIMARY KEY (session_id, id)
);
