/* Token mode: one shared store, leaders that are application processes. Seeding after a failover (R9), an issuer that
   has gone back (R10), tokens that nobody issued (R11).

   Terms follow one another at any moment; whoever led before goes on writing under its token. The store may fail over,
   once, to a standby that lacks what was raised last; the old primary serves nobody from then on. The quorum may be
   restored, once, from an older snapshot. Not both, unless -DBOTH_GO_BACK: a limit, see the README.

   election/follower.py (look), gateway/admission.py (judge_above), migrations/0001 (decide, claim, append). */

#ifndef TERMS
#define TERMS 3
#endif

#include "order.inc"

#define FORGED (TERMS + 1)

byte issued, current;           /* the quorum: the highest number given out, the term that stands */
bool restored, promoted;
#ifdef BOTH_GO_BACK
#define NOTHING_ELSE true
#else
#define NOTHING_ELSE (!restored && !promoted)
#endif

byte max_seen, row_incarnation; /* the fence row; 0: closed */
byte here = 1;                  /* the incarnation of the server that statements reach */
byte copy_max_seen, copy_incarnation;

byte held[3];                   /* leaders 0 and 1 won their tokens before the restore, leader 2 after it */
bool proved[3];                 /* its gateway has just read, linearizably, that this very token stands */

bool written_anew[TERMS + 1];   /* a token that was given out again, and written under */
bool two_holders_wrote_under_one_token;
bool a_token_never_issued_raised_the_fence;

#define OPEN (row_incarnation == here)

inline accept_of(i) {
  two_holders_wrote_under_one_token = (i < 2 && written_anew[held[i]]);
  assert(!two_holders_wrote_under_one_token);
  if :: i == 2 -> written_anew[held[i]] = true :: else fi;
  accept(held[i])
}

inline is_gone(i) { if :: restored && held[i] == issued -> held[i] = 0; proved[i] = false :: else fi }

active proctype quorum() {
  do
  :: d_step { issued < TERMS -> issued++; current = issued;
#ifndef HOLDERS_OUTLIVE_THEIR_NUMBER
      is_gone(0); is_gone(1)    /* a number comes again only when its first holder is gone: a limit, see the README */
#endif
      }
  :: current = 0
  :: d_step { !restored && NOTHING_ELSE && issued > 1 -> restored = true; issued = 0; current = 0 }
  od
}

/* fencegate.claim in token mode: the same term may be seeded again on a promoted server. */
inline store_takes(token, asked) {
#ifdef WITHOUT_R10
  if :: here == asked -> max_seen = token; row_incarnation = here :: else fi
#else
  if :: here == asked && token >= max_seen -> max_seen = token; row_incarnation = here :: else fi
#endif
}

active proctype follower() {
  byte asked, term;
  do
  :: current ->
#ifdef WITHOUT_R9_THE_READ_AFTER
     term = current;
     asked = here;
#else
     asked = here;
     term = current;
#endif
     d_step { if :: term -> store_takes(term, asked) :: else fi; term = 0; asked = 0 }
  od
}

#ifdef WITHOUT_R9
#define ADMITS(t) (row_incarnation && t >= max_seen)
#else
#define ADMITS(t) (OPEN && t >= max_seen)
#endif

/* Writes under its token, from whenever it won; a raise needs the proof that it stands now. */
proctype leader(byte i) {
  do
  :: d_step { current && restored == (i == 2) -> held[i] = current; proved[i] = false }
  :: d_step { held[i] && held[i] == current -> proved[i] = true }
  :: d_step { held[i] && ADMITS(held[i]) && (held[i] == max_seen || proved[i]) ->
      max_seen = held[i]; proved[i] = false; accept_of(i) }
  od
}

active proctype forger() {
  do
#ifdef WITHOUT_R11
  :: d_step { ADMITS(FORGED) -> max_seen = FORGED;
#else
  :: d_step { ADMITS(FORGED) && FORGED == current -> max_seen = FORGED;
#endif
      a_token_never_issued_raised_the_fence = true;
      assert(!a_token_never_issued_raised_the_fence) }
  od
}

active proctype store() {
  do
  :: d_step { !promoted -> copy_max_seen = max_seen; copy_incarnation = row_incarnation }       /* replication, late */
  :: d_step { !promoted && NOTHING_ELSE ->
      promoted = true; here = 2; max_seen = copy_max_seen; row_incarnation = copy_incarnation }
  od
}

#ifdef THE_OLD_PRIMARY_GOES_ON
/* Somebody still reaches it, and its row stays as it was: see the README, a limit. */
active proctype old_primary() {
  byte its_max;
  d_step { row_incarnation == 1 && here == 1 -> its_max = max_seen };
  promoted -> accept(its_max)
}
#endif

init {
  atomic { run leader(0); run leader(1); run leader(2) }
}
