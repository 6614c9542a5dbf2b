/* Giving a term back early: the seal (R7) and the release (R8), with late renewals, lost answers, crashes, restarts.

   No time here: a term lapses when its store's lease has ended, which lease.pml shows. Only a release lets another
   region open before that.

   fencegate/leadership/machine.py (_leave, _sealed, _end), election/errands.py (_seal, _reclaim),
   election/etcd.py (release), migrations/0001 (claim, extend, seal). */

#ifndef TERMS
#define TERMS 3
#endif

#include "order.inc"

byte key, issued;
bool owner[TERMS + 1];          /* the region of each token */

byte max_seen[2], sealed[2];
bool open[2];                   /* valid_until lies ahead */
bool locked[2];                 /* a write is between its check and its commit */
bool sealed_flag[2];            /* the naive seal: a boolean */

byte late_renewal[2];           /* a claim or renewal that is carried out late */
byte late_release;

bool a_later_term_is_shut_out;

/* fencegate.claim, which takes all that fencegate.extend does. */
inline store_takes(r, token) {
#if defined(WITHOUT_R7_A_TOKEN_FLAG_STAYS)
  a_later_term_is_shut_out = (sealed_flag[r] && token > sealed[r] && token > max_seen[r]);
  assert(!a_later_term_is_shut_out);
  if :: token >= max_seen[r] && !sealed_flag[r] -> max_seen[r] = token; open[r] = true :: else fi
#elif defined(WITHOUT_R7_A_TOKEN_FLAG_CLEARED)
  if :: token >= max_seen[r] -> max_seen[r] = token; open[r] = true; sealed_flag[r] = false :: else fi
#else
  if :: token >= max_seen[r] && token > sealed[r] -> max_seen[r] = token; open[r] = true :: else fi
#endif
}

inline store_seals(r, token) {
#if defined(WITHOUT_R7_A_TOKEN_FLAG_STAYS) || defined(WITHOUT_R7_A_TOKEN_FLAG_CLEARED)
  sealed_flag[r] = true; open[r] = false
#elif defined(WITHOUT_R7_A_TOKEN)
  open[r] = false                               /* valid_until := now, and nothing else */
#else
  if :: token > sealed[r] -> sealed[r] = token :: else fi;
  if :: max_seen[r] <= token -> open[r] = false :: else fi
#endif
}

#ifdef WITHOUT_R7_THE_WAIT
#define CAN_SEAL(r) true
#else
#define CAN_SEAL(r) (!locked[r])
#endif

proctype elector(byte r) {
  byte mine;
  bool leaving, known;
  do
  :: d_step { mine == 0 && key == 0 && issued < TERMS && (issued || r == 0) ->   /* region 0 wins first */
      issued++; key = issued; owner[issued] = r; mine = issued }
  :: d_step { mine && !leaving && key == mine && !locked[r] -> store_takes(r, mine) }
  :: d_step { mine && !leaving && key == mine && late_renewal[r] == 0 -> late_renewal[r] = mine }
  :: d_step { mine && !leaving -> leaving = true }              /* resigns, hands over, is refused */
  :: d_step { leaving && !known && CAN_SEAL(r) -> store_seals(r, mine); known = true }
  :: d_step { leaving && !known && CAN_SEAL(r) -> store_seals(r, mine) }      /* done, and its answer lost */
  :: d_step { leaving && !known -> mine = 0; leaving = false }  /* gives the seal up: the lease lapses */
#if defined(WITHOUT_R8_A_SEAL)
  :: d_step { mine && key == mine -> key = 0; mine = 0; leaving = false; known = false }
#elif defined(WITHOUT_R8_A_SEAL_THAT_IS_KNOWN)
  :: d_step { leaving -> known = true }                         /* it was sent: that will do */
#endif
  :: d_step { known -> if :: key == mine -> key = 0 :: else fi; mine = 0; leaving = false; known = false }
  :: d_step { known && late_release == 0 -> late_release = mine; mine = 0; leaving = false; known = false }
  :: d_step { mine -> mine = 0; leaving = false; known = false }                /* a crash */
  :: d_step { mine == 0 && key && owner[key] == r && max_seen[r] == key ->      /* a restart finds its own term */
      mine = key; leaving = true }
  od
}

active proctype network() {
  do
  :: d_step { late_renewal[0] && !locked[0] -> store_takes(0, late_renewal[0]); late_renewal[0] = 0 }
  :: d_step { late_renewal[1] && !locked[1] -> store_takes(1, late_renewal[1]); late_renewal[1] = 0 }
#ifdef WITHOUT_R8_THE_COMPARISON
  :: d_step { late_release -> late_release = 0; key = 0 }
#else
  :: d_step { late_release -> if :: key == late_release -> key = 0 :: else fi; late_release = 0 }
#endif
  od
}

inline ends_in(r) {
  if :: max_seen[r] == key -> open[r] = false :: else fi;
  if :: late_renewal[r] == key -> late_renewal[r] = 0 :: else fi
}

/* A lease passes without a renewal: the store's ends first, and what was asked for before it opens nothing more. */
active proctype time() {
  do
  :: d_step { key && !(locked[0] && max_seen[0] == key) && !(locked[1] && max_seen[1] == key) ->
      ends_in(0); ends_in(1); key = 0 }
  od
}

proctype gateway(byte r) {
  byte token;
  do
  :: d_step { open[r] && !locked[r] && !sealed_flag[r] && sealed[r] < max_seen[r] ->
        token = max_seen[r]; locked[r] = true };
     d_step { accept(token); locked[r] = false; token = 0 }
  od
}

init {
  atomic { run elector(0); run elector(1); run gateway(0); run gateway(1) }
}
