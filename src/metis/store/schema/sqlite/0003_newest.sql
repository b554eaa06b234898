-- The sessions that changed last, of all and of one folder, are found without looking at the others.
CREATE INDEX idx_sessions_updated ON sessions(updated_at, id);
CREATE INDEX idx_sessions_workspace ON sessions(workspace_path, updated_at, id);
