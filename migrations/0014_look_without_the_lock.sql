-- Rule R12 for the usual admission: where this gateway's mark stands already, nothing has to be written, and no lock is needed.
--
-- admit() locks the fence row, which writes it and with that the log: a flush of the disk for each look, and all gateways of one
-- store behind one another. It stays what makes marks, raises the fence, takes keys and refuses.

-- For how many seconds from the statement's start the lease still lasts, where that is enough to admit to p_token: NULL
-- sends the caller to admit(). p_seconds: how long what is admitted may be under way.
--
-- One statement, and so one snapshot, shows all that counts: the fence at this very term, the mark with all the time that is
-- needed, and no older mark. Whoever raises the fence commits that, and looks for older marks with the row's lock held; a mark
-- that stands here was committed before. So a raise that the snapshot does not show finds it and waits.
-- A server that may not write by itself is not looked at: it may have been left behind by a failover, and only a write
-- brings that out. (A standby fails at incarnation().)
CREATE FUNCTION fencegate.look(p_role text, p_token bigint, p_mark text, p_seconds double precision)
RETURNS double precision LANGUAGE plpgsql AS $$
BEGIN
    RETURN (
        SELECT fencegate.seconds_left(f.valid_until)
          FROM fencegate.fence f JOIN fencegate.mark m ON m.role_id = f.role_id AND m.token = f.max_token_seen
         WHERE f.role = p_role AND f.max_token_seen = p_token AND m.gateway = p_mark
           AND fencegate.decide(f, p_token, 0, clock_timestamp(), fencegate.incarnation()) = 0
           -- As admit() leaves it: the time, and a second of grace.
           AND m.expires_at >= clock_timestamp() + make_interval(secs => p_seconds) + interval '1 second'
           AND NOT EXISTS (SELECT FROM fencegate.mark o WHERE o.role_id = f.role_id AND o.token < p_token)
           AND fencegate.unsafe_setting() IS NULL AND current_setting('transaction_read_only') = 'off'
           AND coalesce(current_setting('synchronous_standby_names', true), '') = '');
END $$;
