-- The election over Postgres: one row per role, never deleted, or the numbering would start again.
--
-- A candidate takes the row only after it has seen the same (token, renewals) for a whole lease on its own
-- steady clock, or where the holder gave it back (sealed_token = token). No column holds a time: no clock of
-- any server is trusted, and stepping one changes nothing.
CREATE TABLE fencegate.election (
    role           text PRIMARY KEY,
    token          bigint NOT NULL CHECK (token > 0),
    renewals       bigint NOT NULL,
    campaign       uuid NOT NULL,
    node           text NOT NULL,
    region         text NOT NULL,
    url            text NOT NULL,
    active         boolean NOT NULL,
    lease_duration double precision NOT NULL CHECK (lease_duration > 0),
    draining_to    text,
    sealed_token   bigint,
    sealed_region  text
) WITH (fillfactor = 50);

COMMENT ON COLUMN fencegate.election.token IS 'raised in the statement that takes the lease; never falls';
COMMENT ON COLUMN fencegate.election.renewals IS 'changes with every sign of life';
COMMENT ON COLUMN fencegate.election.campaign IS 'names one candidacy of one process';
COMMENT ON COLUMN fencegate.election.sealed_token IS 'the latest term that was given back, its store being sealed';

CREATE FUNCTION fencegate.election_keeps_its_number() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'UPDATE' THEN
        IF NEW.token >= OLD.token AND NEW.role = OLD.role THEN
            RETURN NEW;
        END IF;
    END IF;
    RAISE EXCEPTION 'rows of fencegate.election are never removed and tokens never fall: an old leader would be let in again'
        USING HINT = 'To end a term early, let its lease lapse or hand it over.';
END $$;

CREATE TRIGGER election_keeps_its_number BEFORE UPDATE OR DELETE ON fencegate.election
    FOR EACH ROW EXECUTE FUNCTION fencegate.election_keeps_its_number();

CREATE TRIGGER election_is_not_emptied BEFORE TRUNCATE ON fencegate.election
    FOR EACH STATEMENT EXECUTE FUNCTION fencegate.election_keeps_its_number();

-- A hint, for those who listen; nothing depends on its arrival. A mere renewal is not worth one.
CREATE FUNCTION fencegate.election_tells() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'INSERT' OR (NEW.token, NEW.active, NEW.draining_to, NEW.sealed_token)
            IS DISTINCT FROM (OLD.token, OLD.active, OLD.draining_to, OLD.sealed_token) THEN
        PERFORM pg_notify('fencegate_election', NEW.role);
    END IF;
    RETURN NULL;
END $$;

CREATE TRIGGER election_tells AFTER INSERT OR UPDATE ON fencegate.election
    FOR EACH ROW EXECUTE FUNCTION fencegate.election_tells();
