/* A region's store fails over in lease mode (R9); a seal counts only on the server where the term was open (R8).

   Region 0 has a primary, and a standby whose copy of the fence row lags. After the promotion the old primary goes on
   serving whoever still reaches it, and every statement may reach either of them. Region 1 is a quick and exact rival.
   A term lapses when its lease has ended on every server, which lease.pml shows.

   election/errands.py (_claim, _renew, _seal, _reclaim), migrations/0001 (decide, claim, extend, seal). */

#ifndef TERMS
#define TERMS 3
#endif

#include "order.inc"

#define PRIMARY 0
#define STANDBY 1
#define RIVAL 2                 /* region 1's store */
#define INCARNATION(s) (s + 1)  /* the system identifier and timeline of a server; 0 stands for none */

byte key, issued;
bool owner[TERMS + 1];
bool promoted;

byte max_seen[3], sealed[3], incarnation[3];    /* the fence row on each server */
bool open[3];

byte asked;                                     /* region 0's reading: the incarnation; 0: none, or too old by now */
byte late_token, late_incarnation;              /* a claim or renewal of region 0 that is carried out late */
bool late_claim;

byte wrote_at = 9;              /* the server that took the latest write */
bool one_term_wrote_on_two_servers;

inline accept_at(s, token) {
  one_term_wrote_on_two_servers = (token == newest && s != wrote_at);
  assert(!one_term_wrote_on_two_servers);
  wrote_at = s;
  accept(token)
}

#ifdef WITHOUT_R9_A_NEW_TERM
#define SAME_SERVER(s, asked) true
#define SAME_TERMS_SERVER(s, asked) true
#else
#define SAME_SERVER(s, asked) (INCARNATION(s) == asked)
#define SAME_TERMS_SERVER(s, asked) (incarnation[s] == asked)
#endif

/* fencegate.claim and fencegate.extend; `asked` is the incarnation that was read before the quorum was asked. */
inline store_takes(s, token, asked, is_claim) {
  if
  :: SAME_SERVER(s, asked) && token > sealed[s] && is_claim && token > max_seen[s] ->
      max_seen[s] = token; incarnation[s] = INCARNATION(s); open[s] = true
  :: SAME_SERVER(s, asked) && token > sealed[s] && token == max_seen[s] && SAME_TERMS_SERVER(s, asked) ->
      incarnation[s] = INCARNATION(s); open[s] = true
  :: else
  fi
}

/* fencegate.seal: `known` where it stands on the server on which the term was open, or can never open any more. */
inline store_seals(s, token, asked, known) {
#ifdef WITHOUT_R8_THE_SERVER
  known = true;
#else
  known = (INCARNATION(s) == asked && (incarnation[s] == asked || max_seen[s] < token));
#endif
  if :: token > sealed[s] -> sealed[s] = token :: else fi;
  if :: max_seen[s] <= token -> open[s] = false :: else fi
}

#define REACHES(s) (s == PRIMARY || promoted)

active proctype elector() {
  byte mine, claimed, here;             /* claimed, here: which term it tried to claim, on which incarnation */
  bool leads, leaving, known;
  byte s;
  do
  :: d_step { mine == 0 && key == 0 && issued < TERMS -> issued++; key = issued; mine = issued; leads = false }
  :: mine && !leaving && key == mine ->
      if :: s = PRIMARY :: promoted -> s = STANDBY fi;          /* reads the clock and the incarnation here */
      if
#ifndef WITHOUT_R9_ONE_SERVER_PER_CLAIM
      :: d_step { claimed == mine && here != INCARNATION(s) -> leaving = true }
      :: d_step { (claimed != mine || here == INCARNATION(s)) && key == mine ->
#else
      :: d_step { key == mine ->
#endif
          claimed = mine; here = INCARNATION(s); asked = here };
          if :: s = PRIMARY :: promoted -> s = STANDBY fi;      /* a pooler may reconnect unseen */
          if
          :: d_step { asked -> store_takes(s, mine, asked, !leads);
              if :: max_seen[s] == mine && open[s] && incarnation[s] == asked -> leads = true :: else fi }
          :: d_step { asked -> store_takes(s, mine, asked, !leads) }    /* its answer is lost */
          :: d_step { asked && late_token == 0 -> late_token = mine; late_incarnation = asked; late_claim = !leads }
          :: true                                               /* lost on the way, or given up */
          fi
      :: key != mine -> leaving = true
      fi;
      d_step { s = 0; asked = 0 }
  :: d_step { mine && !leaving -> leaving = true }
  :: leaving && !known ->
      if :: s = PRIMARY :: promoted -> s = STANDBY fi;
      d_step { if :: here -> store_seals(s, mine, here, known) :: else fi; s = 0 }
  :: d_step { known -> if :: key == mine -> key = 0 :: else fi; mine = 0; leaving = false; known = false }
  :: d_step { mine -> mine = 0; leaving = false; known = false }        /* gives up: the lease lapses */
  :: d_step { mine -> mine = 0; leaving = false; known = false; claimed = 0; here = 0 }         /* a crash */
  :: d_step { mine == 0 && key && !owner[key] && max_seen[PRIMARY] == key ->    /* a restart finds its own term */
      mine = key; leaving = true; here = incarnation[PRIMARY] }
  :: d_step { mine == 0 && key && !owner[key] && promoted && max_seen[STANDBY] == key ->
      mine = key; leaving = true; here = incarnation[STANDBY] }
  od
}

active proctype rival() {
  byte mine;
  do
  :: d_step { mine == 0 && key == 0 && issued && issued < TERMS ->
      issued++; key = issued; owner[key] = 1; mine = issued }
  :: d_step { mine && key == mine -> store_takes(RIVAL, mine, INCARNATION(RIVAL), true) }
  :: d_step { mine -> mine = 0 }
  :: d_step { open[RIVAL] -> accept_at(RIVAL, max_seen[RIVAL]) }
  od
}

active proctype world() {
  do
  :: d_step { !promoted -> max_seen[STANDBY] = max_seen[PRIMARY]; sealed[STANDBY] = sealed[PRIMARY];
      incarnation[STANDBY] = incarnation[PRIMARY]; open[STANDBY] = open[PRIMARY] }
  :: promoted = true
  :: d_step { late_token -> store_takes(PRIMARY, late_token, late_incarnation, late_claim);
      late_token = 0; late_incarnation = 0; late_claim = false }
  :: d_step { late_token && promoted -> store_takes(STANDBY, late_token, late_incarnation, late_claim);
      late_token = 0; late_incarnation = 0; late_claim = false }
  :: d_step { key ->                                                    /* a lease passes without a renewal */
      if :: max_seen[PRIMARY] == key -> open[PRIMARY] = false :: else fi;
      if :: max_seen[STANDBY] == key -> open[STANDBY] = false :: else fi;
      if :: max_seen[RIVAL] == key -> open[RIVAL] = false :: else fi;
      if :: late_token == key -> late_token = 0; late_incarnation = 0; late_claim = false :: else fi;
      asked = 0; key = 0 }
  od
}

#ifdef WITHOUT_R9
#define ITS_SERVER(s) true
#else
#define ITS_SERVER(s) (incarnation[s] == INCARNATION(s))
#endif

active proctype gateways() {
  do
  :: d_step { open[PRIMARY] && ITS_SERVER(PRIMARY) && sealed[PRIMARY] < max_seen[PRIMARY] ->
      accept_at(PRIMARY, max_seen[PRIMARY]) }
  :: d_step { promoted && open[STANDBY] && ITS_SERVER(STANDBY) && sealed[STANDBY] < max_seen[STANDBY] ->
      accept_at(STANDBY, max_seen[STANDBY]) }
  od
}
