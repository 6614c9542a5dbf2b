-- For a store in portability mode, in place of 0006_find_rollback: how far its log has come and when its server was started
-- are words of the server about itself, and there are none here. So a store that went back in time is not found out.
CREATE VIEW fencegate.rollback AS
    SELECT 0::bigint AS id, ''::text AS found_by, now() AS found_at, 0::bigint AS known_xact, 0::bigint AS start_xact,
           NULL::timestamptz AS reopened_at
     WHERE false;

CREATE VIEW fencegate.standing AS
    SELECT fencegate.incarnation() AS incarnation, NULL::timestamptz AS started, 0::bigint AS flushed, 0::bigint AS lsn,
           1::bigint AS next_xact, 0::bigint AS start_lsn, 1::bigint AS start_xact, 0 AS reopened, false AS gone_back;

CREATE FUNCTION fencegate.started() RETURNS timestamptz LANGUAGE sql IMMUTABLE AS 'SELECT NULL::timestamptz';
CREATE FUNCTION fencegate.log_end() RETURNS bigint LANGUAGE sql IMMUTABLE AS 'SELECT NULL::bigint';
CREATE FUNCTION fencegate.own_xact() RETURNS bigint LANGUAGE sql IMMUTABLE AS 'SELECT NULL::bigint';
CREATE FUNCTION fencegate.has_gone_back() RETURNS boolean LANGUAGE sql IMMUTABLE AS 'SELECT false';

CREATE FUNCTION fencegate.unless_gone_back(
    p_roles text[], p_incarnation text, p_reopened integer, p_started timestamptz, p_lsn bigint, p_xact bigint
) RETURNS text[] LANGUAGE sql VOLATILE AS 'SELECT p_roles';

CREATE FUNCTION fencegate.reopen(p_by text) RETURNS integer LANGUAGE sql IMMUTABLE AS 'SELECT 0';
