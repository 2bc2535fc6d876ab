#!/bin/sh
# Whether the worker of a role is past its start and alive: healthy.sh ROLE
set -eu
kill -0 "$(cat "$SALIENCE_HOME/run/worker.$1.ready")"
