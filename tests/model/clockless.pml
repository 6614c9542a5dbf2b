/* The mode that trusts no clock (R15): commit as pending, ask the quorum, confirm by comparing, then answer.

   There are no leases and no clocks here: the other region may win at any moment. A reconciler voids what is
   pending in a term that has ended; what it has voided is reported as not applied. Not built yet: this is the rule,
   not code. */

#include "order.inc"

#define NOTHING 0
#define PENDING 1
#define CONFIRMED 2
#define VOID 3

byte key = 1;                   /* the term that leads: 1 here, then 2 in the other region */
byte write;                     /* a write of term 1 in this region's store */
bool stood;                     /* it was in the store at a moment at which its term led */

bool answered_though_its_term_had_ended_before;
bool answered_though_it_was_voided;

#define LOOK d_step { if :: write == PENDING && key == 1 -> stood = true :: else fi }

active proctype quorum() {
  d_step { key == 1 -> key = 2 }
}

active proctype gateway() {
#ifdef WITHOUT_R15_PENDING_FIRST
  key == 1;                                     /* asks, and then commits */
  d_step { write = PENDING; if :: key == 1 -> stood = true :: else fi };
#else
  d_step { write = PENDING; if :: key == 1 -> stood = true :: else fi };
#ifdef WITHOUT_R15_A_FRESH_READ
  true;                                 /* a read that was begun before the commit, or a member that is behind */
#else
  if
  :: key == 1
  :: key != 1 -> goto refused
  fi;
#endif
#endif
#ifdef WITHOUT_R15_THE_COMPARISON
  d_step { answered_though_it_was_voided = (write == VOID); write = CONFIRMED };
#else
  if
  :: d_step { write == PENDING -> write = CONFIRMED }
  :: write == VOID -> goto refused
  fi;
#endif
  assert(!answered_though_it_was_voided);
  answered_though_its_term_had_ended_before = !stood;
  assert(!answered_though_its_term_had_ended_before);
refused: skip
}

active proctype reconciler() {
  do
  :: d_step { key == 2 && write == PENDING -> write = VOID }
  od
}
