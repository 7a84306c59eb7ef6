/* DynamoDB: verbs of several writes, any of which may be the last of its sender, or come late.
 *
 * A claim first announces what it wants, in a lease row written in one transaction with the
 * worker's own row and the bundle in which a new item waits, and then takes each item on condition
 * of the revision that it saw. A commit is a write to the item; the lease and the tallies follow.
 * Whoever ends a lease, its owner or the reaper of a dead one, must find all that it holds, and
 * nothing may be taken under it afterwards.
 *
 * Here two workers, each under a new name after a death, share one item. Comments, KINDS and
 * WITHOUT are as in lease.pml; a transaction is one step, since it is repeated until the rows are
 * as they were read.
 */

#ifndef FAULTS
#define FAULTS 2
#endif
#define WORKERS 2
#define NAMES (WORKERS + 2 * FAULTS)
#define TOKENS 12
#ifndef ROUNDS
#define ROUNDS 1                             /* of a claim that finds all taken; 20 in the code */
#endif
#ifndef RELEASES
#define RELEASES 0                           /* of the item, by a worker that cannot finish it */
#endif

#define AN_INTENT_ASKS_WHETHER_ITS_WORKER_LIVES 1   /* 17 */
#define A_TAKE_ASKS_FOR_THE_REVISION 2              /* 6 */
#define WHO_ENDS_A_LEASE_BARS_WHAT_IS_UNDER_WAY 3   /* 7 */
#define AN_IDLE_WORKER_SETTLES_ITS_LEASES 4         /* 17 */
#define A_COMMIT_TO_A_ROW_ASKS_FOR_THE_TOKEN 5      /* 6 */
#define A_COMMIT_IS_COUNTED_ONCE 6                  /* 15 */
#define WHO_ENDS_A_LEASE_COUNTS_ITS_COMMIT 7        /* 17 */
#define AN_INTENT_NAMES_THE_CLAIM_BEFORE 8          /* 15 */
#define WHAT_WAS_NOT_TAKEN_IS_OFFERED_AGAIN 9       /* 17 */

byte without;
#define guarded(guard) (without != guard)
#define invariant(number, holds) assert((holds) || number == 0)

#define NO_ANSWER 1
#define LATE_ARRIVAL 2
#define KILL 4
#define STALL 8
short kinds;
#define may(kind) (faults > 0 && (kinds & kind))

mtype = { READY, LEASED, COMPLETED };
mtype = { INTEND, TAKE, COMMIT };
mtype = { ANSWERED, LOST, LATE };

/* The item's row. */
mtype state = READY;
byte token;
byte rev;

/* ledger/dynamodb/bundles. An item that came back waits in the index instead, where an intent takes
 * nothing out. `offered`: its bundle names it, at its revision. */
bool bundled = true, offered = true;

/* ledger/dynamodb/fleet: LeaseRow, by its token; `at` is the revision in its entry, plus 1. */
byte at[TOKENS];
byte holder[TOKENS];
short closed;                                /* tokens whose lease has ended, as bits */
#define open(t) (at[t] > 0)

/* The rows of processes; `marked` are those that have ended and may still hold something. */
short living, fresh, marked;
byte last_token[NAMES];
byte names, tokens;
#define bit(n) (1 << (n))
#define is(n, these) (these & bit(n))

short leased, completed;                     /* tallies, summed over all processes */
byte commits;
byte faults = FAULTS;
byte releases = RELEASES;

typedef Request { mtype verb; byte name; byte token; byte last; byte rev };
Request late;

#define held(t) (state == LEASED && token == t)
#define committed(t) (state == COMPLETED && token == t)

/* -- single writes ----------------------------------------------------------------------- */

/* ledger/dynamodb/claiming: _intend */
inline intend(n_, t_, last_, rev_, out) {
  if
  :: (is(n_, living) || !guarded(AN_INTENT_ASKS_WHETHER_ITS_WORKER_LIVES)) && !open(t_) &&
     (last_token[n_] == last_ || !guarded(AN_INTENT_NAMES_THE_CLAIM_BEFORE)) &&
     (!bundled || (offered && rev == rev_)) ->
    offered = false;
    at[t_] = rev_ + 1; holder[t_] = n_; last_token[n_] = t_; leased++; out = true
  :: else -> out = false
  fi
}

/* ledger/dynamodb/claiming: _take_one */
inline take(t_, rev_) {
  if
  :: rev == rev_ || (!guarded(A_TAKE_ASKS_FOR_THE_REVISION) && state != COMPLETED) ->
    invariant(6, state == READY);
    invariant(7, !is(t_, closed));
    state = LEASED; token = t_; rev++
  :: else
  fi
}

/* ledger/dynamodb/settling: _complete */
inline complete(t_) {
  if
  :: state == LEASED && (token == t_ || !guarded(A_COMMIT_TO_A_ROW_ASKS_FOR_THE_TOKEN)) ->
    invariant(6, token == t_);
    commits++;
    invariant(3, commits == 1);
    state = COMPLETED; rev++
  :: else
  fi
}

/* -- transactions ------------------------------------------------------------------------ */

inline come_back() { state = READY; token = 0; rev++; bundled = false; leased-- }
inline close(t_) { at[t_] = 0; holder[t_] = 0; closed = closed | bit(t_) }

/* ledger/dynamodb/unit: Unit.settle, Unit.leave: by the committer, or by who ends the lease */
inline count_commit(t_) {
  if
  :: open(t_) || !guarded(A_COMMIT_IS_COUNTED_ONCE) ->
    leased--; completed++; close(t_);
    invariant(15, completed == 1)
  :: else
  fi
}

/* ledger/dynamodb/reaping: Ending._end. `moves`: what is held goes back, and else stays. */
inline end_lease(t_, moves) {
  if
  :: !open(t_)
  :: open(t_) && held(t_) ->
    if :: moves -> come_back(); close(t_) :: else fi
  :: open(t_) && committed(t_) ->
    if :: guarded(WHO_ENDS_A_LEASE_COUNTS_ITS_COMMIT) -> count_commit(t_) :: else fi
  :: open(t_) && !held(t_) && !committed(t_) ->
    if
    :: rev + 1 == at[t_] && guarded(WHO_ENDS_A_LEASE_BARS_WHAT_IS_UNDER_WAY) ->
      rev++;
      offered = bundled && guarded(WHAT_WAS_NOT_TAKEN_IS_OFFERED_AGAIN)
    :: else
    fi;
    leased--; close(t_)
  fi
}

/* -- a worker ---------------------------------------------------------------------------- */

mtype = { DOWN, ENTERING, CHOOSING, INTENDING, TAKING, AGAIN, GIVING_UP, NOTHING, WORKING,
          COMMITTING, COUNTING, STOPPING };
typedef Worker { mtype stage = DOWN; byte name };
Worker who[WORKERS];

#define to(next) who[w].stage = next
#define up(w) (who[w].stage != DOWN)

inline send() {
  if
  :: how = ANSWERED
  :: may(NO_ANSWER) -> faults--; how = LOST
  :: may(LATE_ARRIVAL) && late.verb == 0 -> faults--; how = LATE
  fi
}

inline leave_behind(v_) {
  late.verb = v_; late.name = n; late.token = t; late.last = last; late.rev = seen
}

inline life_ends() {
  t = 0; last = 0; seen = 0; round = 0; how = 0; n = 0; done = false;
  fresh = fresh & ~bit(who[w].name); to(DOWN)
}

proctype Work(byte w) {
  byte n, t, last, seen, round, k;
  mtype how;
  bool done;
end:
  do
  /* Somebody starts a worker where there is work, or where something stays leased. */
  :: atomic { !up(w) && (w == 0 || names > 0) &&
              (state != COMPLETED || (leased > 0 && !up(1 - w))) ->
      assert(names < NAMES);
      n = names; who[w].name = n; names++;
      living = living | bit(n); fresh = fresh | bit(n);
      to(ENTERING) }

  /* ledger/dynamodb/claiming: Claiming.claim. After a claim without an answer the same token. */
  :: atomic { who[w].stage == ENTERING ->
      if :: t == 0 -> tokens++; assert(tokens < TOKENS); t = tokens :: else fi;
      last = last_token[n]; round = 0;
      if
      :: !is(n, living) -> life_ends()
      :: is(n, living) && last == t -> to(AGAIN)
      :: is(n, living) && last != t -> to(CHOOSING)
      fi }
  :: atomic { who[w].stage == CHOOSING ->
      round++;
      if
      :: state == READY && (!bundled || offered) && round <= ROUNDS -> seen = rev; to(INTENDING)
      :: else -> to(NOTHING)
      fi }
  :: atomic { who[w].stage == INTENDING ->
      send();
      if :: how == LATE -> leave_behind(INTEND) :: else -> intend(n, t, last, seen, done) fi;
      if
      :: how != ANSWERED -> to(ENTERING)
      :: how == ANSWERED && done -> last = t; to(TAKING)
      :: how == ANSWERED && !done ->
        last = last_token[n];
        if
        :: !is(n, living) -> life_ends()
        :: is(n, living) && last == t -> to(AGAIN)
        :: is(n, living) && last != t -> to(CHOOSING)
        fi
      fi;
      how = 0; done = false }
  :: atomic { who[w].stage == TAKING ->
      send();
      if :: how == LATE -> leave_behind(TAKE) :: else -> take(t, seen) fi;
      if
      :: how != ANSWERED -> to(TAKING)
      :: how != ANSWERED -> to(ENTERING)
      :: how == ANSWERED -> if :: held(t) -> to(WORKING) :: else -> to(GIVING_UP) fi
      fi;
      how = 0 }
  :: atomic { who[w].stage == GIVING_UP ->             /* Claiming._give_up */
      if :: open(t) -> leased--; at[t] = 0; holder[t] = 0 :: else fi;
      if :: done -> done = false; to(NOTHING) :: else -> to(CHOOSING) fi }
  :: atomic { who[w].stage == AGAIN ->                 /* Claiming._again */
      if
      :: !open(t) -> to(NOTHING)
      :: open(t) && held(t) -> to(WORKING)
      :: open(t) && !held(t) && rev + 1 == at[t] -> seen = rev; to(TAKING)
      :: open(t) && !held(t) && rev + 1 != at[t] -> done = true; to(GIVING_UP)
      fi }
  /* ledger/dynamodb/ledger: DynamoLedger.claim, where nothing was brought */
  :: atomic { who[w].stage == NOTHING ->
      k = 1;
      do
      :: k <= tokens ->
        if
        :: open(k) && holder[k] == n && guarded(AN_IDLE_WORKER_SETTLES_ITS_LEASES) ->
          end_lease(k, false)
        :: else
        fi;
        k++
      :: else -> break
      od;
      k = 0; round = 0; seen = 0; last = 0;
      /* Nobody knows a token that was never written. */
      if :: last_token[n] == t || late.token == t || open(t) || is(t, closed) -> t = 0 :: else fi;
      if :: state == COMPLETED && leased == 0 -> to(STOPPING) :: else -> to(ENTERING) fi }

  :: atomic { who[w].stage == WORKING ->
      if
      :: to(COMMITTING)
      :: releases > 0 ->                               /* ledger/dynamodb/settling: release */
        releases--;
        if :: held(t) -> come_back(); close(t) :: else fi;
        t = 0; seen = 0; last = 0; to(ENTERING)
      fi }
  /* ledger/dynamodb/settling: commit, _commit_one */
  :: atomic { who[w].stage == COMMITTING ->
      send();
      if :: how == LATE -> leave_behind(COMMIT) :: else -> complete(t) fi;
      if
      :: how != ANSWERED
      :: how == ANSWERED && committed(t) -> to(COUNTING)
      :: how == ANSWERED && !committed(t) -> t = 0; seen = 0; last = 0; to(ENTERING)   /* fenced */
      fi;
      how = 0 }
  :: atomic { who[w].stage == COUNTING ->              /* Settling._settle */
      count_commit(t); t = 0; seen = 0; last = 0; to(ENTERING) }

  /* ledger/dynamodb/reaping: stop, as if it came no further than `end`; the rest is below */
  :: atomic { who[w].stage == STOPPING ->
      if :: is(n, living) -> living = living & ~bit(n); marked = marked | bit(n) :: else fi;
      life_ends() }

  /* It is killed, in the middle of a write or not. */
  :: atomic { may(KILL) && up(w) ->
      faults--;
      if
      :: late.verb == 0 && who[w].stage == INTENDING -> leave_behind(INTEND)
      :: late.verb == 0 && who[w].stage == TAKING -> leave_behind(TAKE)
      :: late.verb == 0 && who[w].stage == COMMITTING -> leave_behind(COMMIT)
      :: true
      fi;
      life_ends() }
  od
}

/* worker/heartbeat: Heartbeat; ledger/dynamodb/reaping: reap, end, Ending */
proctype Beat(byte w) {
  byte k;
end:
  do
  :: atomic { up(w) && is(who[w].name, living) && !is(who[w].name, fresh) ->
      fresh = fresh | bit(who[w].name) }
  :: atomic { up(w) && (living & ~fresh & ~bit(who[w].name)) ->
      marked = marked | (living & ~fresh & ~bit(who[w].name));
      living = living & ~marked }
  /* One lease, of any process that has ended: page by page. */
  :: atomic { up(w) && marked ->
      k = 1;
      do
      :: k <= tokens && !(open(k) && is(holder[k], marked)) -> k++
      :: else -> break
      od;
      if
      :: k <= tokens -> end_lease(k, true)
      :: else -> marked = 0
      fi;
      k = 0 }
  od
}

proctype Network() {
  bool done;
end:
  do
  :: atomic { late.verb != 0 ->
      if
      :: late.verb == INTEND -> intend(late.name, late.token, late.last, late.rev, done)
      :: late.verb == TAKE -> take(late.token, late.rev)
      :: late.verb == COMMIT -> complete(late.token)
      :: true
      fi;
      late.verb = 0; late.name = 0; late.token = 0; late.last = 0; late.rev = 0; done = false }
  :: atomic { may(STALL) && up(0) && is(who[0].name, fresh) ->
      faults--; fresh = fresh & ~bit(who[0].name) }
  :: atomic { may(STALL) && up(1) && is(who[1].name, fresh) ->
      faults--; fresh = fresh & ~bit(who[1].name) }
  od
}

init {
  c_code {
    now.without = getenv("WITHOUT") ? atoi(getenv("WITHOUT")) : 0;
    now.kinds = getenv("KINDS") ? atoi(getenv("KINDS")) : 15;
  };
  atomic { run Work(0); run Beat(0); run Work(1); run Beat(1); run Network() }
}

/* 17 and 15: the item is completed, and the tallies say so. */
#ifdef PROGRESS
ltl progress { <> [] (state == COMPLETED && leased == 0 && completed == 1) }
#endif
