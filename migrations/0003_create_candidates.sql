-- Who stands for a role while another holds it, and to whom a term was handed.
ALTER TABLE fencegate.election ADD COLUMN sealed_successor text;

COMMENT ON COLUMN fencegate.election.sealed_successor IS
    'the region that the sealed term was handed to: others hold back for a while';

-- A candidate says so at each of its turns. The time is this server's, and only ever compared with this server's:
-- it tells an operator whether a handoff has anybody to go to, and decides nothing else.
CREATE TABLE fencegate.election_candidate (
    role           text NOT NULL,
    region         text NOT NULL,
    node           text NOT NULL,
    url            text NOT NULL,
    lease_duration double precision NOT NULL CHECK (lease_duration > 0),
    seen_at        timestamptz NOT NULL,
    PRIMARY KEY (role, region, node)
) WITH (fillfactor = 50);
