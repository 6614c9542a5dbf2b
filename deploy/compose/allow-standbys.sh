#!/bin/bash
# Run once, when the primary's data is made: standbys of this network may follow it, and from its next start on each commit
# is on one of them before it is answered. Where the standby is gone, commits wait for it.
set -eu
echo "host replication fencegate samenet scram-sha-256" >> "$PGDATA/pg_hba.conf"
echo "synchronous_standby_names = '*'" >> "$PGDATA/postgresql.conf"
