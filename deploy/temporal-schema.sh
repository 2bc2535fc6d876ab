#!/bin/sh
# Brings the two databases of Temporal to the schema of this release; again and again without harm.
set -eu
for pair in temporal:temporal temporal_visibility:visibility; do
  database=${pair%%:*}
  temporal-sql-tool --db "$database" setup-schema -v 0.0
  temporal-sql-tool --db "$database" update-schema -d "/etc/temporal/schema/postgresql/v12/${pair##*:}/versioned"
done
