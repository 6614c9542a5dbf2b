#!/bin/bash
# Run once, when the primary's data is made: standbys of this network may follow it.
set -eu
echo "host replication fencegate samenet scram-sha-256" >> "$PGDATA/pg_hba.conf"
