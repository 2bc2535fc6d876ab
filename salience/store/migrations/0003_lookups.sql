-- What is looked up by name in a session of any length is found by an index: a message or a call that someone cites, and the
-- few events that tell of compactions.

CREATE INDEX messages_by_id ON messages (tenant, session_id, message_id);
CREATE INDEX messages_by_call ON messages (tenant, session_id, ((body::json)->>'tool_call_id')) WHERE kind = 'result';
CREATE INDEX events_of_compactions ON events (tenant, session_id, seq) WHERE type LIKE 'Compaction%';
