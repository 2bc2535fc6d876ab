-- The journal and its read models. Everything but events and archives is a cache or a ledger: see docs/event-log.md.
-- Tenant first in every key. The runtime role owns nothing and may only append to the log tables (spec EVT-3).

CREATE TABLE sessions (
    tenant       text NOT NULL,
    session_id   text NOT NULL,
    seq          bigint NOT NULL DEFAULT 0,        -- the last journal row
    head         text NOT NULL DEFAULT '',         -- the hash chain's head at seq
    run_id       text NOT NULL DEFAULT '',         -- the run that was projected last
    history_id   bigint NOT NULL DEFAULT 0,        -- up to which of its history events
    status       text NOT NULL DEFAULT 'active',
    end_reason   text,
    model        text NOT NULL DEFAULT '',
    title        text NOT NULL DEFAULT '',
    created_at   text NOT NULL DEFAULT '',
    updated_at   text NOT NULL DEFAULT '',
    projection   text,                             -- the fold at seq, a cache (PRJ-2)
    PRIMARY KEY (tenant, session_id)
);
CREATE INDEX sessions_by_update ON sessions (tenant, updated_at DESC);

CREATE TABLE runs (
    tenant        text NOT NULL,
    session_id    text NOT NULL,
    run_id        text NOT NULL,
    generation    int NOT NULL,
    decoder_version int NOT NULL,
    base_seq      bigint NOT NULL,                 -- the journal's seq when the run began
    reset_from    text,                            -- the base run, when Temporal made this one by reset
    shared_until  bigint NOT NULL DEFAULT 0,
    history_events bigint,                         -- known when the run is closed and archived
    archive_ref   text,
    PRIMARY KEY (tenant, session_id, run_id),
    UNIQUE (tenant, session_id, generation)
);

CREATE TABLE events (
    tenant         text NOT NULL,
    session_id     text NOT NULL,
    seq            bigint NOT NULL,
    event_id       text NOT NULL,
    run_id         text NOT NULL,
    type           text NOT NULL,
    metadata       text NOT NULL,                  -- canonical JSON: everything but the payload
    payload        text,                           -- canonical JSON; NULL once erased
    payload_digest text NOT NULL,
    hash           text NOT NULL,                  -- sha256(previous hash, metadata, payload digest)
    PRIMARY KEY (tenant, session_id, seq),
    UNIQUE (tenant, session_id, event_id)
);

CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'the event journal is append-only: % on % is refused', TG_OP, TG_TABLE_NAME
        USING ERRCODE = 'insufficient_privilege';
END $$;
CREATE TRIGGER events_append_only BEFORE UPDATE OR DELETE ON events
    FOR EACH ROW EXECUTE FUNCTION refuse_change();
CREATE TRIGGER events_no_truncate BEFORE TRUNCATE ON events
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();

CREATE TABLE messages (
    tenant      text NOT NULL,
    session_id  text NOT NULL,
    position    int NOT NULL,
    message_id  text NOT NULL,
    kind        text NOT NULL,
    seq         bigint NOT NULL,
    body        text NOT NULL,
    PRIMARY KEY (tenant, session_id, position)
);

CREATE TABLE state_snapshots (
    tenant      text NOT NULL,
    session_id  text NOT NULL,
    seq         bigint NOT NULL,
    head        text NOT NULL,
    body        text NOT NULL,
    PRIMARY KEY (tenant, session_id, seq)
);

CREATE TABLE artifacts (
    tenant          text NOT NULL,
    session_id      text NOT NULL,
    artifact_id     text NOT NULL,
    kind            text NOT NULL,
    content_hash    text NOT NULL,
    size_bytes      bigint NOT NULL,
    source_event_id text NOT NULL,
    seq             bigint NOT NULL,
    body            text NOT NULL,
    PRIMARY KEY (tenant, session_id, artifact_id, source_event_id)
);

CREATE TABLE bundles (
    tenant      text NOT NULL,
    session_id  text NOT NULL,
    bundle_id   text NOT NULL,
    turn        int NOT NULL,
    epoch       int NOT NULL,
    source_seq  bigint NOT NULL,
    bundle_hash text NOT NULL,
    manifest    text NOT NULL,
    summary     text NOT NULL,
    PRIMARY KEY (tenant, session_id, bundle_id)
);
CREATE INDEX bundles_by_epoch ON bundles (tenant, session_id, epoch, source_seq);

CREATE TABLE segments (
    tenant      text NOT NULL,
    digest      text NOT NULL,
    body        bytea NOT NULL,
    PRIMARY KEY (tenant, digest)
);

CREATE TABLE model_responses (
    tenant      text NOT NULL,
    session_id  text NOT NULL,
    run_id      text NOT NULL,
    activity_id text NOT NULL,
    body        text NOT NULL,
    stored_at   timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant, session_id, run_id, activity_id)
);

CREATE TABLE effects (
    tenant       text NOT NULL,
    session_id   text NOT NULL,
    run_id       text NOT NULL,
    tool_call_id text NOT NULL,
    name         text NOT NULL,
    tool_class   text NOT NULL,
    attempt      int NOT NULL,
    worker       text NOT NULL,
    manifest_ref text,
    intent       text,
    outcome      text,
    claimed_at   timestamptz NOT NULL DEFAULT now(),
    settled_at   timestamptz,
    PRIMARY KEY (tenant, session_id, run_id, tool_call_id)
);

CREATE TABLE attempts (
    tenant      text NOT NULL,
    session_id  text NOT NULL,
    run_id      text NOT NULL,
    activity_id text NOT NULL,
    attempt     int NOT NULL,
    worker      text NOT NULL,
    started_at  timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant, session_id, run_id, activity_id, attempt)
);

-- One projection in one statement: a turn's writes cost one round trip, and the comparison with the expected cursor happens
-- under the session's row lock (EVT-3). Returns false, having written nothing, when the journal stands elsewhere.
CREATE FUNCTION record_projection(
    p_tenant text, p_session text, p_seq bigint, p_head text, p_row json, p_projection text,
    p_events json, p_messages json, p_artifacts json, p_bundles json, p_texts json, p_snapshot boolean
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
        updated_at = p_row->>'updated_at', projection = p_projection
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
    IF p_snapshot THEN
        INSERT INTO state_snapshots (tenant, session_id, seq, head, body)
            VALUES (p_tenant, p_session, (p_row->>'seq')::bigint, p_row->>'head', p_projection)
            ON CONFLICT DO NOTHING;
    END IF;
    RETURN true;
END $$;

GRANT USAGE ON SCHEMA public TO salience_runtime;
GRANT SELECT, INSERT ON events TO salience_runtime;
GRANT SELECT, INSERT, UPDATE ON sessions, runs, effects TO salience_runtime;
GRANT SELECT, INSERT, UPDATE, DELETE ON messages, state_snapshots, artifacts, bundles, segments TO salience_runtime;
GRANT SELECT, INSERT ON model_responses, attempts TO salience_runtime;
GRANT SELECT ON schema_migrations TO salience_runtime;
