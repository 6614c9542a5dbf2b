/* The mode that trusts no clock (R15): pending under the fence's lock, then the question, then the confirmation.

   store/pending.py: commit. No clock is modelled, because none is trusted: a store that has claimed a term takes its
   writes whenever it likes (its lease is too long, its clock stands still or runs backwards), and the quorum gives
   the role to either region at any moment. Between any two steps a gateway may stop for as long as it likes. A
   transaction that is pending holds the fence's lock, and is voided by a claim, by a seal, and by whoever takes its
   gateway for gone. */

#include "order.inc"

#ifndef TERMS
#define TERMS 3
#endif

byte term = 1;                  /* who leads, by the quorum's word */
byte leads_in;
byte claimed[2];                /* a store's max_token_seen */
byte pending[2];                /* the token of what is pending in it; 0: its lock is free */
byte newest_then[2];            /* the highest token accepted anywhere when that became durable */

bool answered_though_it_was_voided;

active proctype quorum() {
  do
  :: atomic { term < TERMS -> term++; if :: leads_in = 0 :: leads_in = 1 fi }
  :: break
  od
}

active [2] proctype elector() {
  byte here = _pid % 2;
  do
  :: d_step { leads_in == here && claimed[here] < term -> pending[here] = 0; claimed[here] = term }
  :: break
  od
}

active proctype voider() {
  do
  :: d_step { pending[0] -> pending[0] = 0 }
  :: d_step { pending[1] -> pending[1] = 0 }
  :: break
  od
}

inline ask() {
  led = (term == token)
}

inline commit_as_pending() {
  if
  :: d_step { claimed[here] == token && !pending[here] -> pending[here] = token; newest_then[here] = newest }
  :: claimed[here] != token -> goto refused
  fi
}

active [2] proctype gateway() {
  byte here = _pid % 2;
  byte token;
  bool led;
again: skip;
  d_step { claimed[here] -> token = claimed[here] };
#ifdef WITHOUT_R15_THE_READ
  commit_as_pending();
  led = true;                   /* by the store's lease alone */
#elif defined(WITHOUT_R15_PENDING_FIRST)
  ask();                        /* and then everything in one transaction, with the lock held all the time */
  if :: led -> commit_as_pending() :: !led -> goto refused fi;
#elif defined(WITHOUT_R15_A_FRESH_READ)
  ask();                        /* begun before the commit, or answered by a member that is behind */
  commit_as_pending();
#else
  commit_as_pending();
  ask();
#endif
  d_step {
    if
    :: !led -> pending[here] = 0
    :: led && pending[here] == token -> pending[here] = 0
    :: led && pending[here] != token ->
#ifdef WITHOUT_R15_THE_COMPARISON
       answered_though_it_was_voided = true
#else
       led = false
#endif
    fi;
    if
    :: led ->
       an_older_term_wrote_after_a_newer_one = (newest_then[here] > token);
       if :: token > newest -> newest = token :: else fi
    :: else
    fi
  };
  assert(!answered_though_it_was_voided);
  assert(!an_older_term_wrote_after_a_newer_one);
refused: token = 0; led = false;
  if :: goto again :: skip fi
}
