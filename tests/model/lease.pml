/* Two regions, a store each; a quorum with leases. Rules R1 to R6, and the quorum that revokes early.

   Time is whole units. The quorum's time is the real one; each store's clock strays from it by up to DRIFT in all,
   to and fro (that is drift, and steps back and forth as well). A process that is paused, and a message that is late,
   are steps that are not taken while time passes; what is lost is a step that is left out.

   Region 0 has every weakness. Region 1 is a rival as quick and exact as can be, since its slowness could only help;
   with -DBOTH it has the same weaknesses.

   fencegate/leadership/machine.py, election/errands.py (_claim, _renew), migrations/0001 (claim, extend, append). */

#ifndef TERMS
#define TERMS 3     /* terms in all */
#endif
#ifndef LEASE
#define LEASE 4     /* lease_duration */
#endif
#define DRIFT 1     /* what a store's clock may stray in all */
#define STALL 1     /* the longest time from the last look at the clock to the commit */

#if defined(WITHOUT_R4_DRIFT)
#define MARGIN STALL
#elif defined(WITHOUT_R4_STALL)
#define MARGIN DRIFT
#else
#define MARGIN (DRIFT + STALL)
#endif
#define STORE_LEASE (LEASE - MARGIN)

/* A reading that old opens nothing, and a lease that ended so long ago stays ended, whatever the clock does. */
#define NO_READING (LEASE + DRIFT)
#define OVER (-DRIFT)

#include "order.inc"

/* The quorum: who leads under which token, what is left of the lease. */
byte key, issued, ttl;
bool restored;

/* Each region's store: the fence row, and how far its clock lags. `valid` counts down on the store's clock and
   may be below 0: a clock that steps back must not open what has ended. */
byte max_seen[2];
short valid[2] = OVER;
byte lag[2];
bool locked[2];
short stall[2] = -1;    /* units since the last look of a write that is about to commit; -1: none */

/* Each region's elector: the ages of its latest reading s0, on the store's clock and in real time. */
short age[2] = NO_READING;
byte asked[2] = LEASE;
byte settling[2];

/* A claim or renewal that was sent, given up, and is carried out late. */
byte late_token[2];
short late_age[2] = NO_READING;
bool late_claim[2];

inline older(reading) { if :: reading < NO_READING -> reading++ :: else fi }
inline younger(reading) { if :: reading < NO_READING -> reading-- :: else fi }

inline store_ticks(r) {
  if :: valid[r] > OVER -> valid[r]-- :: else fi;
  older(age[r]);
  older(late_age[r])
}

inline store_steps_back(r) {
  lag[r]++;
  if :: valid[r] > OVER -> valid[r]++ :: else fi;
  younger(age[r]);
  younger(late_age[r])
}

/* Where nothing is counted it makes no difference when a clock strays. */
#define COUNTS(r) (valid[r] > OVER || age[r] < NO_READING || late_age[r] < NO_READING)

inline real_tick(r) {
  if :: asked[r] < LEASE -> asked[r]++ :: else fi;
  if :: settling[r] -> settling[r]-- :: else fi;
  if :: stall[r] >= 0 -> stall[r]++ :: else fi
}

active proctype time() {
  do
  :: d_step { stall[0] < STALL && stall[1] < STALL ->
      store_ticks(0); store_ticks(1); real_tick(0); real_tick(1);
      if :: ttl -> ttl--; if :: ttl == 0 -> key = 0 :: else fi :: else fi }
  :: d_step { COUNTS(0) && lag[0] < DRIFT -> store_steps_back(0) }
  :: d_step { COUNTS(0) && lag[0] > 0 -> lag[0]--; store_ticks(0) }
#ifdef BOTH
  :: d_step { COUNTS(1) && lag[1] < DRIFT -> store_steps_back(1) }
  :: d_step { COUNTS(1) && lag[1] > 0 -> lag[1]--; store_ticks(1) }
#endif
#ifdef QUORUM_REVOKES_EARLY
  :: d_step { key != 0 -> key = 0; ttl = 0 }
#endif
#ifdef QUORUM_RESTORED
  :: d_step { !restored && issued == 2 -> restored = true; issued = 0; key = 0; ttl = 0 }
#endif
  od
}

/* fencegate.claim and fencegate.extend. `taken`: the row is this term's now. */
inline store_takes(r, token, since, is_claim, taken) {
  taken = false;
  if
  :: is_claim && token > max_seen[r] && STORE_LEASE - since > 0 ->
      valid[r] = STORE_LEASE - since;
#ifndef WITHOUT_R5
      max_seen[r] = token;
#endif
      taken = true
  :: token == max_seen[r] && STORE_LEASE - since > valid[r] -> valid[r] = STORE_LEASE - since; taken = true
  :: token == max_seen[r] && STORE_LEASE - since <= valid[r] -> taken = true
  :: else
  fi
}

proctype elector(byte r) {
  byte mine;
  bool claimed, taken;
#ifdef WITHOUT_R3_ITS_OWN_ANSWER
  bool an_answer_comes_late;
#endif
  do
  :: d_step { mine == 0 && key == 0 && issued < TERMS && (issued || r == 0) ->   /* region 0 wins first */
      issued++; key = issued; ttl = LEASE; mine = issued; claimed = false;
#ifdef STRICT_WAIT
      settling[r] = LEASE + MARGIN - DRIFT    /* on a clock of its own, which strays too */
#endif
      }
  :: d_step { mine != 0 -> mine = 0 }           /* a crash: it remembers nothing, the lease lapses */
  :: d_step { mine != 0 -> age[r] = 0; asked[r] = 0 };      /* s0: the store's clock, and when it was asked */
      if
      :: d_step { key == mine -> if :: LEASE - asked[r] > ttl -> ttl = LEASE - asked[r] :: else fi; asked[r] = LEASE }
#ifdef WITHOUT_R3_ITS_OWN_ANSWER
      :: d_step { key == mine -> ttl = LEASE - asked[r]; an_answer_comes_late = true }; goto again
      :: d_step { an_answer_comes_late -> an_answer_comes_late = false }
#endif
#ifdef WITHOUT_R3_A_PROOF
      :: true                                   /* a member that was deposed unawares says yes */
#endif
      :: d_step { key != mine -> mine = 0 }; goto again
      :: goto again                             /* no answer in time */
      fi;
#ifdef STRICT_WAIT
      if :: settling[r] -> goto again :: else fi;
#endif
      if
      :: d_step { !locked[r] ->
#ifdef WITHOUT_R3_CLOCK_FIRST
          age[r] = 0;
#endif
          store_takes(r, mine, age[r], !claimed, taken);
          if :: taken -> claimed = true :: !taken && mine < max_seen[r] -> mine = 0 :: else fi; taken = false }
      :: d_step { late_token[r] == 0 -> late_token[r] = mine; late_age[r] = age[r]; late_claim[r] = !claimed }
      :: true                                   /* lost on the way */
      fi;
again: atomic { age[r] = NO_READING; asked[r] = LEASE }
  od
}

proctype late_message(byte r) {
  bool taken;
  do
  :: d_step { late_token[r] && !locked[r] ->
      store_takes(r, late_token[r], late_age[r], late_claim[r], taken);
      late_token[r] = 0; late_age[r] = NO_READING; late_claim[r] = false; taken = false }
  od
}

#ifdef WITHOUT_R5
#define IN_TERM(r, t) (t >= max_seen[r])
#define RAISES(r, t) max_seen[r] = t
#else
#define IN_TERM(r, t) (t == max_seen[r])
#define RAISES(r, t) skip
#endif

/* The row's lock is taken before the check and held to the commit. */
#if defined(WITHOUT_R1) || defined(WITHOUT_R1_A_FRESH_SNAPSHOT) || defined(A_CLIENT_DRIVES)
#define LOCKS(r) skip
#define UNLOCKED(r) true
#else
#define LOCKS(r) locked[r] = true
#define UNLOCKED(r) (!locked[r])
#endif

#define ADMITS(r, t) (UNLOCKED(r) && t <= issued && valid[r] > 0 && IN_TERM(r, t))
#define LETS_IN(t) d_step { ADMITS(r, t) -> token = t; RAISES(r, t); LOCKS(r) }

#if defined(A_CLIENT_DRIVES) && !defined(WITHOUT_R6_THE_TOKEN)
#define STILL(r) (valid[r] > 0 && IN_TERM(r, token))    /* R6: all of it again, at COMMIT */
#else
#define STILL(r) (valid[r] > 0)
#endif

/* A write under any token that was ever issued: a client with stale DNS, a gateway that was frozen.

   With -DA_CLIENT_DRIVES the client holds the transaction open between its statement and its COMMIT. */
proctype gateway(byte r) {
  byte token;
  do
  :: if
     :: LETS_IN(1)
     :: LETS_IN(2)
     :: LETS_IN(3)
#if TERMS > 3
     :: LETS_IN(4)
#endif
     fi;
#if defined(WITHOUT_R1_A_FRESH_SNAPSHOT) || defined(A_CLIENT_DRIVES)
      d_step { !locked[r] -> locked[r] = true };    /* waits for the lock, and goes by what it saw before */
#endif
#if !defined(WITHOUT_R2) && !defined(WITHOUT_R6)
      if
      :: d_step { STILL(r) -> stall[r] = 0 }        /* the last look at the clock */
      :: d_step { !STILL(r) -> locked[r] = false; token = 0 }; goto refused
      fi;
#endif
      d_step { accept(token); locked[r] = false; stall[r] = -1; token = 0 };
refused: skip
  od
}

#ifndef BOTH
proctype rival() {
  byte mine;
  bool taken;
  do
  :: d_step { mine == 0 && key == 0 && issued && issued < TERMS ->
      issued++; key = issued; ttl = LEASE; mine = issued;
#ifdef STRICT_WAIT
      settling[1] = LEASE + MARGIN - DRIFT
#endif
      }
  :: d_step { mine != 0 -> mine = 0 }
  :: d_step { mine != 0 && key == mine -> ttl = LEASE;
      if :: settling[1] == 0 -> store_takes(1, mine, 0, true, taken); taken = false :: else fi }
#ifdef WITHOUT_R5
  :: d_step { valid[1] > 0 && mine >= max_seen[1] -> max_seen[1] = mine; accept(mine) }
#else
  :: d_step { valid[1] > 0 -> accept(max_seen[1]) }
#endif
  od
}
#endif

init {
  atomic {
    run elector(0); run late_message(0); run gateway(0);
#ifdef BOTH
    run elector(1); run late_message(1); run gateway(1)
#else
    run rival()
#endif
  }
}
