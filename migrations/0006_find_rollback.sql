-- A store that went back in time: files of an earlier moment put in place of those that had acknowledged more.
--
-- To the server nothing happened: it has the same system identifier and timeline, and its rows tell a story that was
-- true once. Only who was answered by it can know. So every statement that admits a write brings along how far its
-- gateway has seen this store come, and a store that has not come so far admits nothing. What is found is kept here,
-- closes the store for everybody, and is ended by an operator alone.

CREATE TABLE fencegate.rollback (
    id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    found_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    found_by     text NOT NULL,
    incarnation  text NOT NULL,
    known_lsn    pg_lsn NOT NULL,  -- where the log had come, and the newest transaction that was acknowledged
    known_xact   xid8 NOT NULL,
    found_lsn    pg_lsn NOT NULL,  -- where they were found, and where the server had set out from
    found_xact   xid8 NOT NULL,
    start_lsn    pg_lsn NOT NULL,
    start_xact   xid8 NOT NULL,
    reopened_at  timestamptz,
    reopened_by  text
);

COMMENT ON TABLE fencegate.rollback IS 'Each time that this store was found to have gone back. Closed while one is not reopened.';

CREATE FUNCTION fencegate.rollback_is_kept() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'fencegate: what was found is kept; % is refused', TG_OP USING ERRCODE = 'ZF500';
END $$;

CREATE TRIGGER rollback_is_kept BEFORE DELETE OR TRUNCATE ON fencegate.rollback
    FOR EACH STATEMENT EXECUTE FUNCTION fencegate.rollback_is_kept();

CREATE FUNCTION fencegate.has_gone_back() RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT EXISTS (SELECT FROM fencegate.rollback WHERE reopened_at IS NULL)
$$;

-- What is learned by a statement that writes, once its commit was answered. SQL, to dissolve into it.
CREATE FUNCTION fencegate.started() RETURNS timestamptz LANGUAGE sql STABLE AS 'SELECT pg_postmaster_start_time()';
CREATE FUNCTION fencegate.log_end() RETURNS pg_lsn LANGUAGE sql VOLATILE AS 'SELECT pg_current_wal_insert_lsn()';
CREATE FUNCTION fencegate.own_xact() RETURNS xid8 LANGUAGE sql STABLE AS 'SELECT pg_current_xact_id_if_assigned()';

-- Where the server is, and where its newest checkpoint has it. A server that starts writes one before it takes
-- sessions: so for a while it tells from where it set out, however much others have written since.
CREATE VIEW fencegate.standing AS
    SELECT fencegate.incarnation() AS incarnation, pg_postmaster_start_time() AS started,
           pg_current_wal_flush_lsn() AS flushed,
           pg_current_wal_insert_lsn() AS lsn,
           pg_snapshot_xmax(pg_current_snapshot()) AS next_xact,
           c.checkpoint_lsn AS start_lsn,
           ((split_part(c.next_xid, ':', 1)::bigint << 32) + split_part(c.next_xid, ':', 2)::bigint)::text::xid8
               AS start_xact,
           (SELECT count(*) FROM fencegate.rollback WHERE reopened_at IS NOT NULL)::integer AS reopened,
           fencegate.has_gone_back() AS gone_back
      FROM pg_control_checkpoint() c;

-- Who compares. A server of another incarnation is judged by the fence's row, and what was known before an operator
-- opened the store again counts no more.
CREATE FUNCTION fencegate.judge_gone_back(
    p_roles text[], p_incarnation text, p_reopened integer, p_started timestamptz, p_lsn pg_lsn, p_xact xid8
) RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE
    s fencegate.standing;
BEGIN
    SELECT * INTO s FROM fencegate.standing;
    IF p_incarnation <> s.incarnation OR s.reopened > p_reopened THEN RETURN p_roles; END IF;
    IF s.lsn >= p_lsn AND s.next_xact > p_xact AND s.reopened = p_reopened
       AND (p_started = s.started OR (s.start_lsn >= p_lsn AND s.start_xact > p_xact)) THEN RETURN p_roles; END IF;
    RAISE EXCEPTION 'fencegate: the store has gone back: it had come to %, transaction %, and is at % (%), transaction % (%)',
        p_lsn, p_xact, s.lsn, s.start_lsn, s.next_xact, s.start_xact USING ERRCODE = 'ZF503';
END $$;

-- p_roles, unless this store lacks what is known of it. An argument is evaluated before the call that it is for: so
-- it is found out before anything is written. SQL, to dissolve into the statement: three comparisons a batch.
--
-- The log's end never falls behind what was flushed, nor the next transaction's number behind one that was
-- acknowledged, whatever crashes. Others' writes may make up for what is lacking, and the first pages written after a
-- restart are long: so a server that was started since is asked from where it set out. (One whose machine was put
-- back with its memory was not.)
CREATE FUNCTION fencegate.unless_gone_back(
    p_roles text[], p_incarnation text, p_reopened integer, p_started timestamptz, p_lsn pg_lsn, p_xact xid8
) RETURNS text[] LANGUAGE sql VOLATILE AS $$
    SELECT CASE WHEN p_incarnation = ''  -- of who knows nothing
                     OR (pg_postmaster_start_time() = p_started AND pg_current_wal_insert_lsn() >= p_lsn
                         AND pg_snapshot_xmax(pg_current_snapshot()) > p_xact) THEN p_roles
                ELSE fencegate.judge_gone_back(p_roles, p_incarnation, p_reopened, p_started, p_lsn, p_xact) END
$$;

-- Closes every fence of the store, for every gateway, until it is reopened. Locks in the order in which batches do.
CREATE FUNCTION fencegate.close_gone_back(
    p_by text, p_incarnation text, p_reopened integer, p_lsn pg_lsn, p_xact xid8
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM fencegate.require_safe_session();
    PERFORM FROM fencegate.fence ORDER BY role COLLATE "C" FOR NO KEY UPDATE;
    IF fencegate.has_gone_back() OR p_incarnation <> fencegate.incarnation()
       OR (SELECT count(*) FROM fencegate.rollback WHERE reopened_at IS NOT NULL) > p_reopened THEN
        RETURN;
    END IF;
    UPDATE fencegate.fence SET incarnation = 'gone back';  -- of no server: rule R9 closes it
    INSERT INTO fencegate.rollback (found_by, incarnation, known_lsn, known_xact, found_lsn, found_xact, start_lsn, start_xact)
    SELECT p_by, p_incarnation, p_lsn, p_xact, s.lsn, s.next_xact, s.start_lsn, s.start_xact FROM fencegate.standing s;
END $$;

-- A claim would bring the row to this server again. Only claims name the column.
CREATE FUNCTION fencegate.refuse_while_gone_back() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF fencegate.has_gone_back() THEN
        RAISE EXCEPTION 'fencegate: the store has gone back, and is closed' USING ERRCODE = 'ZF503',
            HINT = 'Put the newest files back, or open it as it is: fencegate reopen.';
    END IF;
    RETURN NEW;
END $$;

CREATE TRIGGER fence_stays_closed BEFORE UPDATE OF incarnation ON fencegate.fence FOR EACH ROW
    EXECUTE FUNCTION fencegate.refuse_while_gone_back();

-- The operator's word: what is lost is lost. How many findings it ends. Each role then needs a new term.
CREATE FUNCTION fencegate.reopen(p_by text) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    v_ended integer;
BEGIN
    PERFORM fencegate.require_safe_session();
    UPDATE fencegate.rollback SET reopened_at = clock_timestamp(), reopened_by = p_by WHERE reopened_at IS NULL;
    GET DIAGNOSTICS v_ended = ROW_COUNT;
    RETURN v_ended;
END $$;
