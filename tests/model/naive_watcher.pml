/* Drill 26 against the third naive fence: besides the flag, a watcher raises DR's fence when it hears of a newer term.

   The word takes its time: a watch can be silent on a frozen quorum member, a process can be paused. Whatever closes
   the old store by telling it something comes too late for what happens before it is told. */

#include "order.inc"

byte term = 2;
byte max_seen[2];
#define DR_LEADS (term == 2)
#define PRIMARY_LEADS (term == 3)

active proctype operator() {
  d_step { term == 2 -> term = 3; printf("The failback: the primary is elected, token 3.\n") }
}

active proctype watcher_of_dr() {
  d_step { PRIMARY_LEADS -> max_seen[1] = 3; printf("DR's watcher hears of it and raises DR's fence to 3.\n") }
}

active proctype gateway_of_dr() {
  do
  :: d_step { DR_LEADS -> printf("DR's gateway has a write under token 2 and asks itself: do I lead? Yes.\n") };
     if
     :: d_step { 2 >= max_seen[1] -> max_seen[1] = 2;
          if
          :: DR_LEADS -> printf("DR's gateway writes under token 2: accepted.\n")
          :: else -> printf("DR's gateway writes under token 2. DR's watcher has not heard yet: accepted.\n")
          fi;
          accept(2) }
     :: d_step { 2 < max_seen[1] -> printf("DR's store refuses token 2.\n") }
     fi
  od
}

active proctype gateway_of_primary() {
  do
  :: d_step { PRIMARY_LEADS && 3 >= max_seen[0] -> max_seen[0] = 3;
       printf("The primary writes under token 3: accepted.\n"); accept(3) }
  od
}
