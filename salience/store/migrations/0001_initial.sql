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

GRANT USAGE ON SCHEMA public TO salience_runtime;
GRANT SELECT, INSERT ON events TO salience_runtime;
GRANT SELECT, INSERT, UPDATE ON sessions, runs, effects TO salience_runtime;
GRANT SELECT, INSERT, UPDATE, DELETE ON messages, state_snapshots, artifacts, bundles, segments TO salience_runtime;
GRANT SELECT, INSERT ON model_responses, attempts TO salience_runtime;
GRANT SELECT ON schema_migrations TO salience_runtime;
