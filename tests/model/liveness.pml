/* Each closed state has a way to open (R14): once the faults are over, writes are taken again and again.

   Faults: handoffs, one "stop writes" that is carried out late, and either a region that dies or a store that goes
   down, for good. No tokens and no clocks: only who holds the role, and what keeps writes out.

   leadership/machine.py (_acquired, _answered, _renewed_while_handing, _end), election/etcd.py (_is_anothers). */

#ifndef HANDOFFS
#define HANDOFFS 2
#endif
#define NOBODY 2

byte holder = NOBODY;           /* the region whose elector holds the role */
byte reserved = NOBODY;         /* the successor that a release named */
bool dead[2], store_down[2];
bool open[2], draining[2], handing[2], marks[2];
bool undo_repeats[2];           /* for a lease after an undo each renewal says "take writes again" */
bool late_stop[2];
bool a_fault_for_good;
byte handoffs;

#define WRITES_ARE_TAKEN ((open[0] && !draining[0] && !store_down[0]) || (open[1] && !draining[1] && !store_down[1]))

#ifdef WITHOUT_R14_A_STORE_THAT_ANSWERS
#define STANDS(r) true
#else
#define STANDS(r) (!store_down[r])
#endif

proctype elector(byte r) {
  do
  :: d_step { !dead[r] && holder == NOBODY && (reserved == NOBODY || reserved == r) && STANDS(r) ->
      holder = r; reserved = NOBODY;
      late_stop[r] = false; undo_repeats[r] = false;    /* a message names its term: of another one it does nothing */
      if :: !store_down[r] -> open[r] = true; draining[r] = false :: else fi }
#ifndef WITHOUT_R14_A_STORE_THAT_ANSWERS
  :: d_step { !dead[r] && holder == r && store_down[r] -> holder = NOBODY; open[r] = false; handing[r] = false }
#endif
  :: d_step { !dead[r] && holder == r && !store_down[r] && handing[r] && !draining[r] -> draining[r] = true }
  :: d_step { !dead[r] && holder == r && !store_down[r] && handing[r] && draining[r] && !marks[r] ->
      /* sealed and released */
      handing[r] = false; open[r] = false; holder = NOBODY; reserved = 1 - r }
#ifndef WITHOUT_R14_THE_UNDO
  :: d_step { !dead[r] && holder == r && !store_down[r] && handing[r] && draining[r] && marks[r] ->
      /* its time is up */
      handing[r] = false; draining[r] = false; undo_repeats[r] = true }
#endif
#ifndef WITHOUT_R14_THE_UNDO_REPEATED
  :: d_step { !dead[r] && holder == r && !store_down[r] && !handing[r] && draining[r] && undo_repeats[r] ->
      draining[r] = false }
#endif
  od
}

proctype lease(byte r) {        /* a dead holder's lapses */
  do
  :: d_step { dead[r] && holder == r -> holder = NOBODY; open[r] = false; handing[r] = false }
  od
}

#ifndef WITHOUT_R14_THE_HOLD_BACKS_END
active proctype hold_back() {   /* ends after less than a lease */
  do
  :: d_step { holder == NOBODY && reserved != NOBODY -> reserved = NOBODY }
  od
}
#endif

active proctype faults() {
  do
  :: d_step { holder == 0 && handoffs < HANDOFFS -> handoffs++; handing[0] = true }
  :: d_step { holder == 1 && handoffs < HANDOFFS -> handoffs++; handing[1] = true }
  :: d_step { open[0] && !draining[0] && !marks[0] -> marks[0] = true }         /* a write that hangs at the upstream */
  :: d_step { handing[0] && draining[0] && !late_stop[0] -> late_stop[0] = true }
  :: d_step { late_stop[0] -> late_stop[0] = false; if :: open[0] -> draining[0] = true :: else fi }
  :: atomic { !a_fault_for_good -> a_fault_for_good = true;
      if :: dead[0] = true :: dead[1] = true :: store_down[0] = true :: store_down[1] = true fi }
  :: break
  od
}

init {
  atomic { run elector(0); run elector(1); run lease(0); run lease(1) }
}

ltl opens { []<> WRITES_ARE_TAKEN }
