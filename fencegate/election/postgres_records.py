"""The statements of the elections over Postgres, and what a row of ``fencegate.election`` says."""

from __future__ import annotations

from typing import Final

import asyncpg

from fencegate.lease import SealRecord

# A LEFT JOIN, so that a standby is told apart even where a role has no row.
READ: Final = """
SELECT pg_is_in_recovery() OR current_setting('transaction_read_only')::boolean AS standby, e.*
  FROM unnest($1::text[]) AS asked (role) LEFT JOIN fencegate.election e ON e.role = asked.role
"""

TAKE: Final = """
INSERT INTO fencegate.election AS e (role, token, renewals, campaign, node, region, url, active, lease_duration)
VALUES ($1, 1, 0, $2, $3, $4, $5, false, $6)
ON CONFLICT (role) DO UPDATE
   SET token = greatest(e.token, e.token_floor) + 1, renewals = 0, campaign = $2, node = $3, region = $4, url = $5,
       active = false, lease_duration = $6, draining_to = NULL
 WHERE e.token = $7 AND e.renewals = $8
RETURNING token
"""

RENEW: Final = """
UPDATE fencegate.election
   SET renewals = renewals + 1, active = $4, url = $5, lease_duration = $6, draining_to = $7
 WHERE role = $1 AND token = $2 AND campaign = $3 AND sealed_token IS DISTINCT FROM token
RETURNING renewals
"""

RELEASE: Final = """
UPDATE fencegate.election
   SET renewals = renewals + 1, active = false, sealed_token = token, sealed_region = $3, sealed_successor = $4,
       draining_to = NULL
 WHERE role = $1 AND token = $2 AND sealed_token IS DISTINCT FROM token
RETURNING token
"""

STAND: Final = """
INSERT INTO fencegate.election_candidate AS c (role, region, node, url, lease_duration, seen_at)
VALUES ($1, $2, $3, $4, $5, clock_timestamp())
ON CONFLICT (role, region, node) DO UPDATE
   SET url = excluded.url, lease_duration = excluded.lease_duration, seen_at = excluded.seen_at
"""

LEAVE: Final = "DELETE FROM fencegate.election_candidate WHERE role = $1 AND region = $2 AND node = $3"

CANDIDATES: Final = """
SELECT c.node, c.region, c.url
  FROM fencegate.election_candidate c LEFT JOIN fencegate.election e USING (role)
 WHERE c.role = $1 AND c.seen_at > clock_timestamp() - make_interval(secs => c.lease_duration)
   AND (e.role IS NULL OR e.sealed_token = e.token OR (e.region, e.node) <> (c.region, c.node))
 ORDER BY c.seen_at
"""

# A row made here is no term: nobody's campaign, never active. One that was restored may say that its term was given
# back, although others came after it: it says so no longer, and its sign of life makes every candidate wait a lease.
REBASE: Final = """
WITH moved AS (
    INSERT INTO fencegate.election AS e
           (role, token, renewals, campaign, node, region, url, active, lease_duration, token_floor)
    VALUES ($1, $2, 0, gen_random_uuid(), 'rebase', '', '', false, $3, $2)
    ON CONFLICT (role) DO UPDATE
       SET token_floor = $2, renewals = e.renewals + 1,
           campaign = CASE WHEN e.sealed_token = e.token THEN excluded.campaign ELSE e.campaign END,
           sealed_token = CASE WHEN e.sealed_token IS DISTINCT FROM e.token THEN e.sealed_token END
     WHERE greatest(e.token, e.token_floor) = $4
    RETURNING role
), kept AS (
    INSERT INTO fencegate.election_rebase (role, by, from_token, to_token) SELECT role, $5, $4, $2 FROM moved
)
SELECT role FROM moved
"""


def released(row: asyncpg.Record) -> bool:
    return bool(row["sealed_token"] == row["token"])


def predecessor(row: asyncpg.Record) -> SealRecord | None:
    """The seal of the term directly before: tokens here have no gaps, and each is one term."""
    if row["sealed_token"] == row["token"] - 1:
        return seal_of(row)
    return None


def seal_of(row: asyncpg.Record) -> SealRecord:
    return SealRecord(row["sealed_token"], row["sealed_region"], row["sealed_successor"])


def issued_up_to(row: asyncpg.Record | None) -> int:
    """Every later token is above this."""
    return 0 if row is None else max(int(row["token"]), int(row["token_floor"]))
