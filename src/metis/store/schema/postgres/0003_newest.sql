-- The sessions that changed last are found without looking at the others. There is no second index
-- by folder: a key of the server has less room than a path may need.
CREATE INDEX idx_sessions_updated ON sessions(updated_at, id);
