-- A turn writes what is small or new, whatever the session's age and the size of its state (PRJ-2).
-- `projection` holds the fold without the state from here on. The state is written while it is small, and with a snapshot;
-- a reader folds the events that came since. A state that another version of the fold made is not read (state_fold, fold):
-- rows of before this migration have version 0, and their state comes from the events.

ALTER TABLE sessions
    ADD COLUMN state text,
    ADD COLUMN state_seq bigint NOT NULL DEFAULT 0,    -- the journal row up to which `state` is folded
    ADD COLUMN state_fold int NOT NULL DEFAULT 0;
ALTER TABLE state_snapshots ADD COLUMN fold int NOT NULL DEFAULT 0;

-- The ledger looks calls up by their id alone; without this, by walking all calls of the session.
CREATE INDEX effects_by_call ON effects (tenant, session_id, tool_call_id);
-- The ids of the user's messages are needed whole, the rest of a transcript is not.
CREATE INDEX messages_prompts ON messages (tenant, session_id, position) WHERE kind = 'prompt';

DROP FUNCTION record_projection(
    text, text, bigint, text, json, text, json, json, json, json, json, boolean
);

-- As before, one projection in one statement under the session's row lock (EVT-3). p_standing is the fold without the
-- state; p_state is NULL to leave the stored state as it is; p_snapshot is NULL when none is due.
CREATE FUNCTION record_projection(
    p_tenant text, p_session text, p_seq bigint, p_head text, p_row json,
    p_standing text, p_state text, p_snapshot text, p_fold int,
    p_events json, p_messages json, p_artifacts json, p_bundles json, p_texts json
) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    at_seq bigint;
    at_head text;
    written bigint;
BEGIN
    SELECT seq, head INTO at_seq, at_head FROM sessions
        WHERE tenant = p_tenant AND session_id = p_session FOR UPDATE;
    IF NOT FOUND THEN
        INSERT INTO sessions (tenant, session_id) VALUES (p_tenant, p_session) ON CONFLICT DO NOTHING;
        SELECT seq, head INTO at_seq, at_head FROM sessions
            WHERE tenant = p_tenant AND session_id = p_session FOR UPDATE;
    END IF;
    IF at_seq <> p_seq OR at_head <> p_head THEN
        RETURN false;
    END IF;

    INSERT INTO events (tenant, session_id, seq, event_id, run_id, type, metadata, payload, payload_digest, hash)
        SELECT p_tenant, p_session, e.* FROM json_to_recordset(p_events) AS e(
            seq bigint, event_id text, run_id text, type text, metadata text, payload text, payload_digest text, hash text)
        ON CONFLICT DO NOTHING;
    GET DIAGNOSTICS written = ROW_COUNT;
    IF written <> json_array_length(p_events) THEN
        -- A row that is already there must be identical, but for a payload that was erased since.
        SELECT e.seq INTO at_seq FROM json_to_recordset(p_events) AS e(
                seq bigint, event_id text, metadata text, payload_digest text, hash text)
            LEFT JOIN events s ON s.tenant = p_tenant AND s.session_id = p_session AND s.seq = e.seq
            WHERE (s.event_id, s.metadata, s.payload_digest, s.hash)
                IS DISTINCT FROM (e.event_id, e.metadata, e.payload_digest, e.hash)
            ORDER BY e.seq LIMIT 1;
        IF FOUND THEN
            RAISE EXCEPTION 'journal row % differs', at_seq USING ERRCODE = 'SL001', DETAIL = at_seq::text;
        END IF;
    END IF;

    UPDATE sessions SET
        seq = (p_row->>'seq')::bigint, head = p_row->>'head', run_id = p_row->>'run_id',
        history_id = (p_row->>'history_id')::bigint, status = p_row->>'status', end_reason = p_row->>'end_reason',
        model = p_row->>'model', title = p_row->>'title', created_at = p_row->>'created_at',
        updated_at = p_row->>'updated_at', projection = p_standing,
        state = coalesce(p_state, state),
        state_seq = CASE WHEN p_state IS NULL THEN state_seq ELSE (p_row->>'seq')::bigint END,
        state_fold = CASE WHEN p_state IS NULL THEN state_fold ELSE p_fold END
        WHERE tenant = p_tenant AND session_id = p_session;
    INSERT INTO messages (tenant, session_id, position, message_id, kind, seq, body)
        SELECT p_tenant, p_session, m.* FROM json_to_recordset(p_messages) AS m(
            position int, message_id text, kind text, seq bigint, body text)
        ON CONFLICT DO NOTHING;
    INSERT INTO artifacts (tenant, session_id, artifact_id, kind, content_hash, size_bytes, source_event_id, seq, body)
        SELECT p_tenant, p_session, a.* FROM json_to_recordset(p_artifacts) AS a(
            artifact_id text, kind text, content_hash text, size_bytes bigint, source_event_id text, seq bigint, body text)
        ON CONFLICT DO NOTHING;
    INSERT INTO segments (tenant, digest, body)
        SELECT p_tenant, t.digest, convert_to(t.body, 'UTF8') FROM json_to_recordset(p_texts) AS t(digest text, body text)
        ON CONFLICT DO NOTHING;
    INSERT INTO bundles (tenant, session_id, bundle_id, turn, epoch, source_seq, bundle_hash, manifest, summary)
        SELECT p_tenant, p_session, b.* FROM json_to_recordset(p_bundles) AS b(
            bundle_id text, turn int, epoch int, source_seq bigint, bundle_hash text, manifest text, summary text)
        ON CONFLICT DO NOTHING;
    IF p_snapshot IS NOT NULL THEN
        INSERT INTO state_snapshots (tenant, session_id, seq, head, fold, body)
            VALUES (p_tenant, p_session, (p_row->>'seq')::bigint, p_row->>'head', p_fold, p_snapshot)
            ON CONFLICT DO NOTHING;
    END IF;
    RETURN true;
END $$;
