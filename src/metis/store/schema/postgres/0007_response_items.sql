-- What clients of Responses continue by id, where no provider holds it: the items that a request added
-- and those of its response. `previous_id` is the response that the request continued, empty if none.
CREATE TABLE response_items (
  tenant TEXT NOT NULL,
  id TEXT NOT NULL,
  session_id TEXT NOT NULL,
  previous_id TEXT NOT NULL,
  items_json TEXT NOT NULL,
  PRIMARY KEY (tenant, id)
);
CREATE INDEX idx_response_items_session ON response_items(session_id);
