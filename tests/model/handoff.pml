/* A planned handoff with writes under way at an upstream that both regions share: nothing of the old term may come
   after the first write of the new one (R12). It can be undone, asked for again, and its messages can be late.

   No time here: a term lapses when its store's lease has ended, which lease.pml shows, and, unless
   -DUNPLANNED, when the limits of its writes under way have passed: a limit, see the README.

   leadership/machine.py (ANNOUNCING, YIELDING, UNDOING, SEALING, RELEASING), election/errands.py (_drain, _renew,
   _seal, Release), migrations/0001 (set_draining, seal, admit). */

#ifndef HANDOFFS
#define HANDOFFS 2
#endif

#include "order.inc"

bool led = true, sealed, draining;      /* the row of region 0, which leads term 1 */
byte under_way;                         /* its marks: writes that were admitted and whose outcome is not known */
bool key = true;                        /* the quorum's record names term 1 */
bool late_stop, late_go;                /* "stop writes" and "take writes again", carried out late */
byte handoffs;

#define OPEN (led && !sealed)

active proctype elector() {
  do
  :: d_step { OPEN && key && handoffs < HANDOFFS -> handoffs++ };
     /* YIELDING: so that the pause is short. Safety does not hang on it. */
     if
     :: draining = true
     :: d_step { !late_stop -> late_stop = true }; goto undo            /* no answer */
     fi;
     if
     :: under_way == 0
     :: goto undo
     fi;
     /* SEALING: from here on nothing is undone */
     d_step { sealed = true; draining = false };
     /* RELEASING */
#ifndef WITHOUT_R12_AFTER_THE_SEAL
     if
     :: under_way == 0
     :: break                                   /* not in time: the lease lapses */
     fi;
#endif
     key = false;
     break;
undo: if
     :: draining = false
     :: d_step { !late_go -> late_go = true }; draining = false         /* its first try is carried out late */
     fi
  :: d_step { OPEN && key -> sealed = true };
     break                                      /* resigns, is cut off, dies: the lease lapses */
  od
}

active proctype network() {
  do
  :: d_step { late_stop -> late_stop = false; if :: OPEN -> draining = true :: else fi }
  :: d_step { late_go -> late_go = false; if :: OPEN -> draining = false :: else fi }
  od
}

proctype write() {
  do
  :: d_step { OPEN && !draining -> under_way++ };
     if
     :: accept(1)                               /* the upstream applies it */
     :: true                                    /* or does not, and its limit passes */
     fi;
     under_way--
  od
}

active proctype time() {
#ifdef UNPLANNED
  key -> led = false; key = false
#else
  atomic { key && under_way == 0 -> led = false; key = false }
#endif
}

active proctype successor() {
  !key -> accept(2)
}

init {
  atomic { run write(); run write() }
}
