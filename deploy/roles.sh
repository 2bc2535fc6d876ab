#!/bin/sh
# Databases and roles, at the first start of an empty Postgres. The owner owns the schema; the runtime role owns nothing and
# has what the migrations grant it. Temporal has databases of its own, which neither of them may enter.
set -eu
psql --no-psqlrc --quiet --set=ON_ERROR_STOP=1 --username=postgres --dbname=postgres \
  --set=owner="$SALIENCE_OWNER_PASSWORD" --set=runtime="$SALIENCE_RUNTIME_PASSWORD" --set=temporal="$TEMPORAL_PASSWORD" <<'SQL'
CREATE ROLE salience_owner LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE PASSWORD :'owner';
CREATE ROLE salience_runtime LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE PASSWORD :'runtime';
CREATE ROLE temporal LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE PASSWORD :'temporal';
CREATE DATABASE salience OWNER salience_owner;
CREATE DATABASE temporal OWNER temporal;
CREATE DATABASE temporal_visibility OWNER temporal;
REVOKE ALL ON DATABASE salience, temporal, temporal_visibility, postgres, template1 FROM PUBLIC;
GRANT CONNECT ON DATABASE salience TO salience_runtime;
SQL
