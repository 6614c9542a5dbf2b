/* Drill 26 against the second naive fence: the highest token seen, and a gateway that first asks itself "do I lead?".

   The flag is exact: it is false from the very moment that another region leads. It does not help, since a process can
   stop for any time between the question and the write. */

#include "order.inc"

byte term = 2;                          /* DR leads under token 2 */
byte max_seen[2];
#define DR_LEADS (term == 2)
#define PRIMARY_LEADS (term == 3)

active proctype operator() {
  d_step { term == 2 -> term = 3;
    printf("The failback: the primary is elected, token 3. DR's flag is false at once.\n") }
}

active proctype gateway_of_dr() {
  do
  :: d_step { DR_LEADS -> printf("DR's gateway has a write under token 2 and asks itself: do I lead? Yes.\n") };
     d_step { 2 >= max_seen[1] -> max_seen[1] = 2;
       if
       :: DR_LEADS -> printf("DR's gateway writes under token 2: accepted.\n")
       :: else -> printf("DR's gateway wakes and writes under token 2. DR's store has seen no other: accepted.\n")
       fi;
       accept(2) }
  od
}

active proctype gateway_of_primary() {
  do
  :: d_step { PRIMARY_LEADS && 3 >= max_seen[0] -> max_seen[0] = 3;
       printf("The primary writes under token 3: accepted.\n"); accept(3) }
  od
}
