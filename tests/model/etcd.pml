/* A renewal in etcd: what it promises is kept, though its transactions are applied late and their answers lost (R3).

   The promise: the role is ours for a full lease from no later than the renewal's start. A renewal grants a new lease,
   which counts from the grant, and moves the key to it, comparing the key's last modification.

   election/etcd.py (renew, _move), election/DESIGN.md ("The renewal in etcd, argued"). */

#ifndef LEASE
#define LEASE 4
#endif
#ifndef ROUNDS
#define ROUNDS 4
#endif

#include "order.inc"

byte key_ttl = LEASE, key_round, mod = 1;       /* the key: its lease's rest, whose lease that is, its modification */
byte round, known = 1;                          /* the elector: this renewal, the modification that it expects */
byte age, granted;                              /* since its start; the rest of the lease that it was granted */
bool late;                                      /* a transaction in a frozen member's queue, and its lease */
byte late_ttl, late_round, late_mod;
byte promised;                                  /* the rest of what the best renewal has promised */
bool renewed_late;

bool the_key_went_before_its_promise;

inline passes(rest) { if :: rest -> rest-- :: else fi }

active proctype time() {
  do
  :: d_step { key_ttl -> key_ttl--; passes(granted); passes(late_ttl); passes(promised);
      if :: age < LEASE -> age++ :: else fi;
      the_key_went_before_its_promise = (key_ttl == 0 && promised);
      assert(!the_key_went_before_its_promise) }
  od
}

inline moves(ttl, whose) { key_ttl = ttl; key_round = whose; mod++ }
inline succeeds() { known = mod; if :: LEASE - age > promised -> promised = LEASE - age :: else fi }

#ifdef WITHOUT_R3_THE_SECOND_COMPARISON
#define SAME(expected) true
#else
#define SAME(expected) (mod == expected)
#endif

active proctype elector() {
  do
  :: d_step { key_ttl && round < ROUNDS -> round++; age = 0 };
     d_step { granted = LEASE };
     do
     :: d_step { key_ttl && granted && SAME(known) -> moves(granted, round); succeeds() }; break
     :: d_step { key_ttl && granted && !SAME(known) && key_round == round -> succeeds() }; break   /* sent twice */
     :: d_step { key_ttl && granted && !SAME(known) && key_round != round -> known = mod }
     :: d_step { !late && granted -> late = true; late_ttl = granted; late_round = round; late_mod = known }
     :: break                                   /* no answer in time */
     od;
     atomic { age = LEASE; granted = 0 }
  od
}

active proctype frozen_member() {
  do
  :: d_step { late && key_ttl && late_ttl && SAME(late_mod) -> moves(late_ttl, late_round); renewed_late = true;
      late = false; late_ttl = 0; late_round = 0; late_mod = 0 }
  :: d_step { late -> late = false; late_ttl = 0; late_round = 0; late_mod = 0 }
  od
}
