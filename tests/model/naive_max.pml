/* Drill 26 against the first naive fence: each store refuses a token below the highest that it has seen, and no more.

   The primary region fails over to DR and back. Clients whose DNS is stale go on writing to DR. */

#include "order.inc"

#define PRIMARY 0
#define DR 1

byte term = 1;          /* the quorum's: 1 primary, 2 DR after the failover, 3 primary after the failback */
byte max_seen[2];

active proctype operator() {
  d_step { term == 1 -> term = 2; printf("The primary fails. DR is elected: token 2.\n") };
  d_step { term == 2 -> term = 3; printf("The primary is back, DNS points at it again, it is elected: token 3.\n") }
}

inline write(at, t) {
  d_step { (term == t || t == 2 && term == 3) && t >= max_seen[at] -> max_seen[at] = t;
    if
    :: at == DR && term == 3 ->
        printf("A client with stale DNS writes to DR under token 2. DR has seen no other: accepted.\n")
    :: at == DR && term != 3 -> printf("A client writes to DR under token 2: accepted.\n")
    :: at == PRIMARY -> printf("A client writes to the primary under token %d: accepted.\n", t)
    fi;
    accept(t) }
}

active proctype clients() {
  do
  :: write(PRIMARY, 1)
  :: write(DR, 2)
  :: write(PRIMARY, 3)
  od
}
