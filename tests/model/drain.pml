/* Writes that leave the store: marks, the drain barrier, and what a crash leaves behind (R12).

   Two gateways share a store and forward to one upstream; term 2 begins while writes of term 1 are under way.
   The upstream applies what it was sent at any time up to the deadline that it was given, or not at all. A gateway can
   be frozen with an admitted write in its hand: its mark expires, and it looks at the clock once more before it sends.

   store/forward.py (admit, settle), store/marks.py, store/look.py, gateway/last_look.py, migrations/0001 (admit), 0014 (look). */

#define LIVES 2                 /* lives of a mark at each gateway */

#include "order.inc"

byte max_seen = 1;              /* the fence row, */
bool locked;                    /* and whether a raise that is not committed yet has its lock */
bool mark[2 * LIVES + 1];       /* the rows of term 1's marks */
#define ROW(g, life) (g * LIVES + life)

byte under_way[2];              /* in a gateway's memory: its writes of term 1, and the name of their mark */
byte name[2], lives[2];
byte life_of_gateway[2];

byte at_upstream[2];            /* writes of term 1 that may still be applied there */
byte deadlines[2];              /* how often the time of all that was admitted here has passed */
byte late_removal;              /* a mark's removal that the server carries out late: its row */

#define STANDS(g) (mark[ROW(g, 1)] || mark[ROW(g, LIVES)])
#define UNDRAINED (STANDS(0) || STANDS(1))

#ifdef WITHOUT_R12_A_NAME_PER_LIFE
#define NEW_NAME(g) 1
#else
#define NEW_NAME(g) lives[g]
#endif

inline goes_under_way(g) {
  under_way[g]++; life = life_of_gateway[g]; time = deadlines[g]
}

inline marks_in_flight(g) {
  goes_under_way(g);
  if
  :: name[g] == 0 -> lives[g]++; name[g] = NEW_NAME(g)
  :: else
  fi;
  mark[ROW(g, name[g])] = true
}

#ifdef WITHOUT_R12_THE_LAST_LOOK
#define IN_TIME true
#else
#define IN_TIME (time == deadlines[g])
#endif

#define CAN_BE_NAMED(g) (name[g] || lives[g] < LIVES)

#ifdef WITHOUT_R12_THE_MARK_IN_THE_LOOK
#define MARK_SEEN(g) name[g]
#else
#define MARK_SEEN(g) (name[g] && mark[ROW(g, name[g])])
#endif

/* Writes of term 1 through one gateway, one after the other. */
proctype older(byte g) {
  byte life, time;
  do
  :: if
     :: atomic {
#ifdef WITHOUT_R12_THE_MARK_FIRST
          max_seen == 1 && !locked && CAN_BE_NAMED(g) -> skip }; atomic { marks_in_flight(g) }
#else
          max_seen == 1 && !locked && CAN_BE_NAMED(g) -> marks_in_flight(g) }   /* one transaction, with the row's lock */
#endif
     :: atomic { max_seen == 1 && MARK_SEEN(g) -> goes_under_way(g) }           /* one snapshot, without it */
     fi;
     if
     :: d_step { life == life_of_gateway[g] && IN_TIME -> at_upstream[g]++ };   /* sends it, unless it has crashed */
        if
        :: accept(1)                            /* the upstream applies it, */
        :: true                                 /* or does not, and the deadline passes */
        fi;
        at_upstream[g]--
     :: true                                    /* never sent: no connection, too late, the admission's answer lost */
     fi;
     d_step {
       if :: life == life_of_gateway[g] -> under_way[g]-- :: else fi;
       life = 0; time = 0 }
  od
}

#ifdef WITHOUT_R12_EVERY_WRITE_WAITS
#define MUST_WAIT (max_seen == 1 && UNDRAINED)
#else
#define MUST_WAIT UNDRAINED
#endif

proctype newer() {
  do
  :: d_step { !locked && !MUST_WAIT -> locked = true }; d_step { max_seen = 2; locked = false }; accept(2)
  :: d_step { !locked && max_seen == 1 && MUST_WAIT -> max_seen = 2 }     /* raises, is told to wait, asks again */
  od
}

inline removes(g) {
  if
  :: d_step { name[g] && under_way[g] == 0 -> mark[ROW(g, name[g])] = false; name[g] = 0 }
  :: d_step { name[g] && under_way[g] == 0 && late_removal == 0 -> late_removal = ROW(g, name[g]); name[g] = 0 }
  fi
}

#ifdef WITHOUT_R12_THE_DEADLINE
#define MAY_EXPIRE(g) true
#else
#define MAY_EXPIRE(g) (at_upstream[g] == 0)
#endif

inline expires(g) {
  d_step { STANDS(g) && MAY_EXPIRE(g) && deadlines[g] < 2 -> deadlines[g]++; mark[ROW(g, 1)] = false; mark[ROW(g, LIVES)] = false }
}

active proctype world() {
  do
  :: removes(0)
  :: removes(1)
  :: d_step { late_removal -> mark[late_removal] = false; late_removal = 0 }
  :: expires(0)
  :: expires(1)
  :: d_step { life_of_gateway[0] == 0 -> life_of_gateway[0] = 1; under_way[0] = 0; name[0] = 0 }        /* a crash */
#ifdef WITHOUT_R12_A_ROW
  :: d_step { STANDS(1) -> mark[ROW(1, 1)] = false; mark[ROW(1, LIVES)] = false }       /* gone with its connection */
#endif
  od
}

init {
  atomic { run older(0); run older(0); run older(1); run newer(); run newer() }
}
