-- The way out where a restore took the tokens back (rule R10): the next term is numbered above token_floor.
ALTER TABLE fencegate.election ADD COLUMN token_floor bigint NOT NULL DEFAULT 0 CHECK (token_floor >= 0);

COMMENT ON COLUMN fencegate.election.token_floor IS
    'read in the statement that takes the lease: every later token is above it; never falls';

CREATE OR REPLACE FUNCTION fencegate.election_keeps_its_number() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'UPDATE' THEN
        IF NEW.token >= OLD.token AND NEW.token_floor >= OLD.token_floor AND NEW.role = OLD.role THEN
            RETURN NEW;
        END IF;
    END IF;
    RAISE EXCEPTION 'rows of fencegate.election are never removed and tokens never fall: an old leader would be let in again'
        USING HINT = 'To end a term early, let its lease lapse or hand it over.';
END $$;

-- Who moved a role's numbers up, when, and from where to where.
CREATE TABLE fencegate.election_rebase (
    role        text NOT NULL,
    at          timestamptz NOT NULL DEFAULT clock_timestamp(),
    by          text NOT NULL,
    from_token  bigint NOT NULL,
    to_token    bigint NOT NULL
);

CREATE FUNCTION fencegate.election_rebase_is_kept() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'fencegate.election_rebase is append-only; % is refused', TG_OP;
END $$;

CREATE TRIGGER election_rebase_is_kept BEFORE UPDATE OR DELETE OR TRUNCATE ON fencegate.election_rebase
    FOR EACH STATEMENT EXECUTE FUNCTION fencegate.election_rebase_is_kept();
