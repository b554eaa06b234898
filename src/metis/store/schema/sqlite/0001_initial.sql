CREATE TABLE sessions (
  id TEXT PRIMARY KEY,
  workspace_path TEXT NOT NULL,
  active_model TEXT,
  routing_policy_json TEXT,
  schema_version INTEGER NOT NULL,
  created_at INTEGER NOT NULL,
  updated_at INTEGER NOT NULL
);

CREATE TABLE messages (
  id TEXT PRIMARY KEY,
  session_id TEXT NOT NULL,
  role TEXT NOT NULL,
  content_json TEXT NOT NULL,
  metadata_json TEXT NOT NULL,
  created_at INTEGER NOT NULL,
  schema_version INTEGER NOT NULL,
  FOREIGN KEY (session_id) REFERENCES sessions(id)
);
CREATE INDEX idx_messages_session_created ON messages(session_id, created_at);

CREATE TABLE tool_calls (
  id TEXT PRIMARY KEY,
  session_id TEXT NOT NULL,
  message_id TEXT NOT NULL,
  result_message_id TEXT,
  name TEXT NOT NULL,
  status TEXT NOT NULL,
  provider_id TEXT,
  provider TEXT,
  created_at INTEGER NOT NULL,
  completed_at INTEGER,
  FOREIGN KEY (session_id) REFERENCES sessions(id),
  FOREIGN KEY (message_id) REFERENCES messages(id),
  FOREIGN KEY (result_message_id) REFERENCES messages(id)
);
CREATE INDEX idx_tool_calls_session_status ON tool_calls(session_id, status);

-- The order of a session. A message has its row in `messages`; here stands its place. Everything
-- else is here as JSON, and so is a message that the columns of `messages` cannot hold whole.
CREATE TABLE journal (
  session_id TEXT NOT NULL,
  seq INTEGER NOT NULL,
  message_id TEXT,
  entry_json TEXT,
  PRIMARY KEY (session_id, seq),
  FOREIGN KEY (session_id) REFERENCES sessions(id)
) WITHOUT ROWID;

CREATE TABLE message_parents (
  message_id TEXT NOT NULL,
  position INTEGER NOT NULL,
  parent_id TEXT NOT NULL,
  session_id TEXT NOT NULL,
  PRIMARY KEY (message_id, position)
) WITHOUT ROWID;
CREATE INDEX idx_message_parents_session ON message_parents(session_id);

CREATE TABLE bookmarks (
  session_id TEXT NOT NULL,
  name TEXT NOT NULL,
  message_id TEXT NOT NULL,
  PRIMARY KEY (session_id, name),
  FOREIGN KEY (session_id) REFERENCES sessions(id)
) WITHOUT ROWID;

CREATE TABLE tool_id_map (
  session_id TEXT NOT NULL,
  tool_use_id TEXT NOT NULL,
  provider TEXT NOT NULL,
  provider_id TEXT NOT NULL,
  PRIMARY KEY (session_id, tool_use_id, provider),
  FOREIGN KEY (session_id) REFERENCES sessions(id)
) WITHOUT ROWID;
CREATE INDEX idx_tool_id_map_provider ON tool_id_map(session_id, provider, provider_id);

-- Messages that are still being written.
CREATE TABLE open_messages (
  message_id TEXT PRIMARY KEY,
  session_id TEXT NOT NULL
) WITHOUT ROWID;

CREATE TABLE price_versions (
  pricing_version TEXT PRIMARY KEY,
  table_json TEXT NOT NULL,
  created_at INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TABLE events (
  id TEXT PRIMARY KEY,
  timestamp_us INTEGER NOT NULL,
  session_id TEXT,
  turn_id TEXT,
  parent_event_id TEXT,
  type TEXT NOT NULL,
  actor TEXT NOT NULL,
  sensitivity TEXT NOT NULL,
  payload_json TEXT NOT NULL
);
CREATE INDEX idx_events_session ON events(session_id, id);
CREATE INDEX idx_events_type ON events(type, timestamp_us);
CREATE INDEX idx_events_turn ON events(turn_id);
CREATE INDEX idx_events_parent ON events(parent_event_id);
CREATE INDEX idx_events_timestamp ON events(timestamp_us);

-- One row for each open store that has written; who closes in order takes it away.
CREATE TABLE writers (
  id TEXT PRIMARY KEY,
  created_at INTEGER NOT NULL
) WITHOUT ROWID;
