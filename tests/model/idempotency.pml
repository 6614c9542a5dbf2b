/* One idempotency key, several tries of it through two gateways: at most once, and exactly what was answered (R13).

   The `http` target is the harder case: the key's row is made with the admission and settled after the upstream's
   answer, and each of these statements can be carried out late. A try that was admitted and never sent gives its
   row back.

   store/forward.py (admit, settle, _forget), migrations/0001 (admit, settle, take_back). */

#ifndef TRIES
#define TRIES 3
#endif

#define NO_ROW 0
#define RUNNING 1
#define SETTLED 2

byte row, owner;                /* the key's row, and the try that made it */
byte tries, applied;
byte late_take_back, late_settlement;   /* a statement that is carried out late, and of which try */

bool one_key_was_applied_twice;
bool answered_though_not_applied;

inline takes_back(try) {
#ifdef WITHOUT_R13_AN_OWNER
  if :: row == RUNNING -> row = NO_ROW; owner = 0 :: else fi
#else
  if :: row == RUNNING && owner == try -> row = NO_ROW; owner = 0 :: else fi
#endif
}

inline settles(try) { if :: row == RUNNING && owner == try -> row = SETTLED :: else fi }

proctype caller() {
  byte me;
  do
  :: d_step { tries < TRIES -> tries++; me = tries };
     if
#ifdef WITHOUT_R13_ONE_TRANSACTION
     :: row == NO_ROW -> d_step { row = RUNNING; owner = me }
#else
     :: d_step { row == NO_ROW -> row = RUNNING; owner = me }
#endif
     :: row == RUNNING -> goto ended            /* in progress, or of unknown outcome: never sent again */
     :: d_step { row == SETTLED ->              /* replayed */
          answered_though_not_applied = (applied == 0);
          assert(!answered_though_not_applied) }; goto ended
     fi;
     if
     :: d_step { applied++; one_key_was_applied_twice = (applied > 1);
          assert(!one_key_was_applied_twice) };                         /* sent, and the upstream applies it */
        if
        :: d_step { settles(me) }
        :: d_step { late_settlement == 0 -> late_settlement = me }
        :: true                                                         /* the answer is lost */
        fi
     :: d_step { takes_back(me) }                                       /* not one byte was sent */
     :: d_step { late_take_back == 0 -> late_take_back = me }
     :: d_step { takes_back(me); if :: late_take_back == 0 -> late_take_back = me :: else fi }  /* twice, once late */
     :: true                                                            /* sent, and lost on the way */
     fi;
ended: me = 0
  od
}

active proctype network() {
  do
  :: d_step { late_take_back -> takes_back(late_take_back); late_take_back = 0 }
  :: d_step { late_settlement -> settles(late_settlement); late_settlement = 0 }
  od
}

#ifdef THE_KEYS_FOLLOW_LATER
/* Another region takes over before the key's row was copied to it: a limit, see the README. */
active proctype failover() { applied -> d_step { row = NO_ROW; owner = 0 } }
#endif

init {
  atomic { run caller(); run caller() }
}
