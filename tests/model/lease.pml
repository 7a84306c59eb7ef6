/* Leases, results and faults: the protocol of batchq, as its code does it.
 *
 * A few workers share a ledger and a result store. A request to either may be answered, may
 * take effect without an answer, or may arrive long after its sender has given it up. Workers
 * die, stall, come back and are told to stop; objects are spoilt and lost. So many of these as
 * FAULTS says happen, of any kind and at any moment, and Spin goes through every order.
 *
 * Checked are the invariants of the protocol by their numbers (docs/how-it-works.md), and
 * progress: once the faults are over, every item ends.
 *
 * A comment such as "worker/claim: Claimer._claim" names the code for which a step stands. A
 * guard is taken out by the environment variable WITHOUT, which holds its number from the list
 * below: test_model.py takes out each in turn, and Spin must find a counterexample.
 *
 * Left out: batches (a worker has one item in hand), the order of claims, pauses and lengths of
 * time (that a beat has expired is an event), tallies, and layout `shard`.
 */

#ifndef ITEMS
#define ITEMS 1
#endif
#ifndef WORKERS
#define WORKERS 2
#endif
#ifndef FAULTS
#define FAULTS 2
#endif
#ifndef OPERATIONS
#define OPERATIONS 0    /* of a person: retries and audits */
#endif
#ifndef MAX_FAILURES
#define MAX_FAILURES 3  /* ledger/records: Policy */
#endif
#define MAX_LOSSES 3
#define PUTS 2          /* store/verified: write_result, which makes 4 attempts */

#define NAMES (WORKERS + FAULTS + WORKERS * OPERATIONS)
#define GENERATIONS (1 + FAULTS + OPERATIONS)
#define TOKENS 24

/* -- the guards, and the invariant that breaks without each ------------------------------- */

#define COMMIT_ASKS_FOR_THE_TOKEN 1          /* 6 */
#define FAIL_ASKS_FOR_THE_TOKEN 2            /* 6 */
#define RELEASE_ASKS_FOR_THE_TOKEN 3         /* 6 */
#define A_REPEATED_COMMIT_IS_KNOWN 4         /* 14 */
#define A_RESULT_IS_NEVER_REPLACED 5         /* 3 */
#define THE_REAPED_MAY_NOT_BEAT 6            /* 8 */
#define THE_LIVING_ARE_NOT_REAPED 7          /* 8 */
#define THE_ENDED_MAY_NOT_CLAIM 8            /* 11 */
#define A_REPEATED_CLAIM_IS_KNOWN 9          /* 7 */
#define A_LATE_CLAIM_IS_REFUSED 10           /* 7 */
#define AN_UNKNOWN_LEASE_GOES_BACK 11        /* 17 */
#define A_BROKEN_OBJECT_GIVES_UP_ITS_KEY 12  /* 11 */
#define REAPING_SPARES_THE_COMMITTED 13      /* 13 */
#define THE_STORE_NEVER_OVERWRITES 14        /* 9 */
#define A_BROKEN_OBJECT_STAYS 15             /* 9 */
#define A_PUT_IS_READ_BACK 16                /* 4 */
#define THE_ADOPTED_IS_THE_ITEMS 17          /* 4 */
#define THE_ADOPTED_IS_DURABLE 18            /* 4 */
#define THE_ADOPTED_WAS_READ_TWICE 19        /* 4 */
#define AN_UNANSWERED_PUT_IS_NO_FAILURE 20   /* 14 */
#define NO_CLAIM_AFTER_A_NOTICE 21           /* 12 */
#define A_CLAIM_IN_FLIGHT_GOES_BACK 22       /* 12 */
#define WHO_LEAVES_RELEASES_ALL 23           /* 12 */
#define THE_LEDGER_SAYS_WHAT_IS_OVER 24      /* 1 */
#define THE_REAPED_DROP_WHAT_THEY_HOLD 25    /* 8 */
#define A_NEW_NAME_HAS_A_NEW_TOKEN 26        /* 7 */
#define A_REOPENING_NAMES_ITS_RESULT 27      /* 13 */
#define AN_ORPHANS_ITEM_IS_AT_AN_END 28      /* 4 */
#define A_RETRY_IS_A_NEW_GENERATION 29       /* 4 */
#define THE_DEAD_ARE_REAPED 30               /* 17 */

byte without;
#define guarded(guard) (without != guard)
/* Spin prints the number with an assertion that fails. */
#define invariant(number, holds) assert((holds) || number == 0)

/* What may go wrong. The environment variable KINDS holds the sum of those that do, or all do. */
#define NO_ANSWER 1      /* a request takes effect, and nobody hears of it */
#define LATE_ARRIVAL 2   /* a request takes effect when its sender has long asked again, or never */
#define KILL 4
#define STALL 8          /* a beat does not come in time */
#define NOTICE 16
#define SPOILT 32        /* an object or a read */
#define POWER_CUT 64     /* of the store's machine */
#define INTRUDER 128     /* somebody else writes into the store */
#define BAD_DOCUMENT 256 /* fails once, or always */
#define LOSS 512         /* the store loses or spoils what it had */

/* And what a person does; each counts as one of OPERATIONS. */
#define RETRY 1024
#define REPAIR 2048
#define REMOVE_ORPHANS 4096

short kinds;
#define may(kind) (faults > 0 && (kinds & kind))
#define asks_for(kind) (operations > 0 && (kinds & kind))

/* -- the ledger -------------------------------------------------------------------------- */

mtype = { READY, LEASED, COMPLETED, DEAD };            /* READY is `delayed` too */
mtype = { CLAIM, COMMIT, FAIL, DRAIN, STORE, BROKEN, STOP, PUT };  /* requests; 3 are releases */
mtype = { TAKEN, NOTHING, ENDED, ANSWERED, LOST, LATE };           /* answers, or none */

typedef Item {                                         /* ledger/rows: Row */
  mtype state = READY;
  byte token;                                          /* a completed one keeps its last, */
  byte holder;                                         /* and its holder */
  byte generation;
  byte attempts;
  byte failures;
  byte losses;
  byte kept;                                           /* the result: its key's generation, */
  byte digest;                                         /* and its digest */

  byte to_blame;                                       /* how often the document failed */
  byte commits;                                        /* in this generation */
  bool damaged                                         /* the store has lost what was committed */
};
Item item[ITEMS];

/* Names of workers, each a bit: the state of a process, and whether its beat has not expired. */
short living, reaped, fresh;
byte names;
byte last_token[NAMES];                                /* of a claim that brought something */
#define bit(n) (1 << (n))
#define is(n, these) (these & bit(n))

byte tokens;                                           /* drawn so far: 1, 2, ... */
int leased_under;                                      /* tokens that ever leased an item */

byte faults = FAULTS;
bool intruded;                                         /* somebody has written into the store */
bool poison;                                           /* documents fail whenever tried */
byte operations = OPERATIONS;

#define ended(i) (item[i].state == COMPLETED || item[i].state == DEAD)
#define held(i, t) (item[i].state == LEASED && item[i].token == t)
#define owned(i, n) (item[i].state == LEASED && item[i].holder == n)

/* -- the store --------------------------------------------------------------------------- */

/* A result's bytes are known by the token under which it was made: no two are alike. */
#define ABSENT 0
#define GARBAGE 255
#define FOREIGN 254                                    /* the valid result of another item */
#define BITS_FLIPPED 253                               /* valid still, but not what was put */
#define is_result(bytes) (0 < bytes && bytes < BITS_FLIPPED)

byte object[ITEMS * GENERATIONS];
short durable;                                         /* objects that survive a power failure */
#define key(i, g) ((i) * GENERATIONS + (g))

/* 4 and 9: what the ledger says of a completed item is what lies in the store. */
#define sound(i) (item[i].state != COMPLETED || item[i].damaged || \
  (is_result(item[i].digest) && object[key(i, item[i].kept)] == item[i].digest && \
   is(key(i, item[i].kept), durable)))

/* -- the workers ------------------------------------------------------------------------- */

mtype = { DOWN, IDLE, ASKING, LOOKING, ADOPTING, INFERRING, PUTTING, READING, REPLACING, SETTLING,
          LEAVING, GIVEN_UP };

typedef Worker {
  mtype stage = DOWN;
  byte name;                                           /* worker/heartbeat: Registration */
  bool beats;
  bool drains;                                         /* it has seen a notice */
  bool holds;                                          /* worker/holdings: Holdings */
  byte on                                              /* the item */
};
Worker at[WORKERS];

/* 8: the worker works on the item, has not given it back, and its beat has not expired. */
#define busy(w) (at[w].stage == LOOKING || at[w].stage == ADOPTING || at[w].stage == INFERRING || \
  at[w].stage == PUTTING)
#define works(w, i) (at[w].holds && at[w].on == i && busy(w) && is(at[w].name, fresh))

#if ITEMS == 1
#define EACH_HAS_ENDED ended(0)
#define EACH_IS_SOUND sound(0)
#define OWNS_NOTHING(n) (!owned(0, n))
#else
#define EACH_HAS_ENDED (ended(0) && ended(1))
#define EACH_IS_SOUND (sound(0) && sound(1))
#define OWNS_NOTHING(n) (!owned(0, n) && !owned(1, n))
#endif
#if WORKERS == 1
#define NOBODY_WORKS_ON(i) !works(0, i)
#elif WORKERS == 2
#define NOBODY_WORKS_ON(i) !(works(0, i) || works(1, i))
#else
#define NOBODY_WORKS_ON(i) !(works(0, i) || works(1, i) || works(2, i))
#endif

typedef Request {                                      /* under way, given up by its sender */
  mtype verb;
  byte name;
  byte token;
  byte last;
  byte on;
  byte generation;
  byte digest
};
Request late;

#if OPERATIONS > 0
byte maker[TOKENS];                                    /* in the envelope: who made the result */
#endif

/* -- what the ledger does ---------------------------------------------------------------- */

inline lease(n_, t_, i_) {                             /* ledger/rows: Tables.lease */
  invariant(7, !(leased_under & bit(t_)));
  invariant(8, NOBODY_WORKS_ON(i_));
  leased_under = leased_under | bit(t_);
  item[i_].state = LEASED;
  item[i_].token = t_;
  item[i_].holder = n_;
  item[i_].attempts++;
  /* An intruder's object ends one worker after the other, until a person moves it away. */
  invariant(11, intruded || item[i_].attempts <= 1 + item[i_].to_blame +
                                     (FAULTS - faults) + (OPERATIONS - operations));
  last_token[n_] = t_
}

inline lease_any(n_, t_, i_, out) {
  if
  :: item[0].state == READY -> i_ = 0; lease(n_, t_, i_); out = TAKEN
#if ITEMS == 2
  :: item[1].state == READY -> i_ = 1; lease(n_, t_, i_); out = TAKEN
#endif
  :: else -> out = NOTHING
  fi
}

inline give_back(i_) {
  invariant(13, item[i_].state == LEASED);
  item[i_].state = READY;
  item[i_].token = 0;
  item[i_].holder = 0
}

inline begin_anew(i_) {                                /* ledger/rows: Row.begin_anew */
  item[i_].generation++;
  assert(item[i_].generation < GENERATIONS);
  item[i_].commits = 0
}

/* ledger/memory: MemoryLedger.claim; ledger/sql/holding: claim, and where nothing is unusual
 * ledger/sql/hot_sqlite: claim, ledger/sql/hot_postgresql: claim.
 * `last_`: the token of the sender's last claim that it knows to have brought something. */
inline claim(n_, t_, last_, i_, out) {
  if
  :: !is(n_, living) && guarded(THE_ENDED_MAY_NOT_CLAIM) -> out = ENDED
  :: else ->
    if
    :: last_token[n_] == t_ && guarded(A_REPEATED_CLAIM_IS_KNOWN) ->
      if
      :: held(0, t_) -> i_ = 0; out = TAKEN
#if ITEMS == 2
      :: held(1, t_) -> i_ = 1; out = TAKEN
#endif
      :: else -> out = NOTHING
      fi
    :: else ->
      if
      :: last_token[n_] != last_ && guarded(AN_UNKNOWN_LEASE_GOES_BACK) ->
        if :: held(0, last_token[n_]) -> give_back(0) :: else fi;
#if ITEMS == 2
        if :: held(1, last_token[n_]) -> give_back(1) :: else fi
#endif
      :: else
      fi;
      lease_any(n_, t_, i_, out)
    fi
  fi
}

/* One that arrives late. Only a single statement can, and what that does not expect it leaves
 * to the claim's second part, for which nobody asks any more. */
inline claim_late(n_, t_, last_, i_, out) {
  if
  :: (is(n_, living) || !guarded(THE_ENDED_MAY_NOT_CLAIM)) &&
     (last_token[n_] == last_ || (!guarded(A_LATE_CLAIM_IS_REFUSED) && last_token[n_] != t_)) ->
    lease_any(n_, t_, i_, out)
  :: else
  fi
}

/* ledger/memory: MemoryLedger.commit, fail, release; ledger/sql/holding: commit, fail, release */
inline settle(v_, t_, i_, g_, d_) {
  if
  :: v_ == COMMIT ->
    if
    :: held(i_, t_) || (!guarded(COMMIT_ASKS_FOR_THE_TOKEN) && item[i_].state == LEASED) ||
       (!guarded(A_RESULT_IS_NEVER_REPLACED) && item[i_].state == COMPLETED) ->
      item[i_].commits++;
      invariant(3, item[i_].commits == 1);
      invariant(6, item[i_].token == t_);
      item[i_].state = COMPLETED;
      item[i_].token = t_;
      item[i_].kept = g_;
      item[i_].digest = d_;
      invariant(4, sound(i_))
    :: else ->
      /* Fenced, unless it is this very result that was committed before. */
      invariant(14, !(item[i_].state == COMPLETED && item[i_].token == t_) ||
                    (item[i_].digest == d_ && guarded(A_REPEATED_COMMIT_IS_KNOWN)))
    fi
  :: v_ == FAIL ->
    if
    :: held(i_, t_) || (!guarded(FAIL_ASKS_FOR_THE_TOKEN) && item[i_].state == LEASED) ->
      invariant(6, item[i_].token == t_);
      item[i_].failures++;
      invariant(14, item[i_].failures <= item[i_].to_blame);
      give_back(i_);
      if :: item[i_].failures >= MAX_FAILURES -> item[i_].state = DEAD :: else fi
    :: else
    fi
  :: v_ == DRAIN || v_ == STORE || v_ == BROKEN ->
    if
    :: held(i_, t_) || (!guarded(RELEASE_ASKS_FOR_THE_TOKEN) && item[i_].state == LEASED) ->
      invariant(6, item[i_].token == t_);
      give_back(i_);
      if :: v_ == BROKEN && guarded(A_BROKEN_OBJECT_GIVES_UP_ITS_KEY) -> begin_anew(i_)
         :: else fi
    :: else
    fi
  fi
}

inline stop(n_) {                                      /* ledger/memory: MemoryLedger.stop */
  if
  :: is(n_, living) ->
    living = living & ~bit(n_);
    if :: owned(0, n_) -> give_back(0) :: else fi;
#if ITEMS == 2
    if :: owned(1, n_) -> give_back(1) :: else fi
#endif
  :: else
  fi
}

/* -- what the store does ----------------------------------------------------------------- */

/* store/local: LocalStore.put_if_absent; store/s3: S3Store.put_if_absent. An answer, either
 * way, says that what lies there survives a power failure from now on. */
inline put(i_, g_, bytes, answered) {
  if
  :: object[key(i_, g_)] == ABSENT || !guarded(THE_STORE_NEVER_OVERWRITES) ->
    object[key(i_, g_)] = bytes
  :: else
  fi;
  if :: answered -> durable = durable | bit(key(i_, g_)) :: else fi;
  invariant(9, EACH_IS_SOUND)
}

/* -- a worker ---------------------------------------------------------------------------- */

inline register(w_) {                                  /* worker/heartbeat: Registration.register */
  assert(names < NAMES);
  at[w_].name = names;
  living = living | bit(names);
  fresh = fresh | bit(names);
  names++
}

inline renew(w_, lost) {                               /* worker/heartbeat: Registration.renew */
  if
  :: at[w_].name == lost ->
    if :: guarded(THE_REAPED_DROP_WHAT_THEY_HOLD) -> at[w_].holds = false :: else fi;
    register(w_)
  :: else
  fi
}

inline draw_token() {                                  /* lease: new_token */
  if
  :: t != 0 && late.token != t && !(leased_under & bit(t))  /* drawn, and still known to nobody */
  :: else -> tokens++; assert(tokens < TOKENS); t = tokens
  fi
}

/* The request that is under way is given up. It may arrive later, or never. */
inline leave_behind(v_, d_) {
  if
  :: late.verb == 0 ->
    late.verb = v_; late.name = n; late.token = t; late.last = last;
    late.on = i; late.generation = g; late.digest = d_
  :: true
  fi
}

/* What becomes of the request that is sent now. */
inline send() {
  if
  :: how = ANSWERED
  :: may(NO_ANSWER) -> faults--; how = LOST
  :: may(LATE_ARRIVAL) && late.verb == 0 -> faults--; how = LATE
  fi
}

inline give_up_request() {
  if
  :: at[w].stage == ASKING -> leave_behind(CLAIM, 0)
  :: at[w].stage == PUTTING -> leave_behind(PUT, t)
  :: at[w].stage == SETTLING -> leave_behind(verb, d)
  :: at[w].stage == LEAVING -> n = at[w].name; leave_behind(STOP, 0)
  :: else
  fi
}

inline to(next) { at[w].stage = next }
inline settle_with(v_) { verb = v_; to(SETTLING) }

inline next_item() {
  t = 0; i = 0; g = 0; d = 0; verb = 0; tries = 0; answer = 0; how = 0;
  at[w].holds = false; at[w].on = 0; to(IDLE)
}

inline end_of_life() {
  next_item(); n = 0; last = 0; finished = false;
  at[w].beats = false; at[w].drains = false;
  fresh = fresh & ~bit(at[w].name);
  to(DOWN)
}

inline no_answer_of_store(stage_) {                    /* store/verified: _persistently */
  tries++;
  if
  :: !guarded(AN_UNANSWERED_PUT_IS_NO_FAILURE) -> settle_with(FAIL)
  :: else -> if :: tries == PUTS -> settle_with(STORE) :: else -> to(stage_) fi
  fi
}

/* What lies under the key: nothing, or with `d` a result, its own or to be adopted; what is
 * neither is settled here. store/verified: _read_settled, _adopt. A read may be damaged on its
 * way, and only a second one tells. */
inline judge() {
  answer = TAKEN;
  if
  :: object[key(i, g)] == ABSENT -> answer = NOTHING
  :: object[key(i, g)] == GARBAGE ->
    answer = ENDED;
    if :: guarded(A_BROKEN_OBJECT_STAYS) -> settle_with(BROKEN) :: else -> to(REPLACING) fi
  :: object[key(i, g)] == FOREIGN ->
    d = FOREIGN;
    if :: guarded(THE_ADOPTED_IS_THE_ITEMS) -> answer = ENDED; to(LEAVING) :: else fi
  :: is_result(object[key(i, g)]) -> d = object[key(i, g)]
  :: is_result(object[key(i, g)]) && may(SPOILT) && !guarded(THE_ADOPTED_WAS_READ_TWICE) ->
    faults--; d = BITS_FLIPPED
  fi
}

proctype Work(byte w) {
  byte n, t, last, i, g, d, tries;
  mtype verb, answer, how;
  bool finished;
end:
  do
  /* worker/worker: run_worker. Somebody starts a worker wherever there is work. */
  :: atomic { at[w].stage == DOWN && !EACH_HAS_ENDED && (w == 0 || names > 0) ->
      register(w); n = at[w].name; at[w].beats = true; to(IDLE) }

  /* worker/claim: Claimer._closed, and if it is not, a claim is under way */
  :: atomic { at[w].stage == IDLE ->
      if
      :: at[w].drains && guarded(NO_CLAIM_AFTER_A_NOTICE) -> to(LEAVING)
      :: else ->
        invariant(12, !at[w].drains);
        if
        :: answer == LOST && (n == at[w].name || !guarded(A_NEW_NAME_HAS_A_NEW_TOKEN))
        :: else -> draw_token()
        fi;
        if :: n != at[w].name -> n = at[w].name; last = 0 :: else fi;
        answer = 0;
        to(ASKING)
      fi }

  /* worker/claim: Claimer._claim */
  :: atomic { at[w].stage == ASKING ->
      send();
      if :: how == LATE -> leave_behind(CLAIM, 0) :: else -> claim(n, t, last, i, answer) fi;
      if :: how != ANSWERED -> answer = LOST :: else fi;
      how = 0;
      if
      :: answer == LOST -> i = 0; to(IDLE)
      :: answer == ENDED -> renew(w, n); to(IDLE)
      :: answer == NOTHING ->
        if :: EACH_HAS_ENDED -> finished = true; to(LEAVING) :: else -> to(IDLE) fi
      :: answer == TAKEN ->
        last = t;
        if
        /* Reaped between the claim and here. In the code a moment is left between this look and
         * the next line; what is taken then is worked on in vain, and fenced. */
        :: at[w].name != n -> next_item()
        :: else ->
          at[w].holds = true; at[w].on = i;
          g = item[i].generation;
          /* worker/pipeline: Pipeline._hand_out, _load */
          if
          :: at[w].drains && guarded(A_CLAIM_IN_FLIGHT_GOES_BACK) -> settle_with(DRAIN)
          :: else -> if :: item[i].attempts > 1 -> to(LOOKING) :: else -> to(INFERRING) fi
          fi
        fi
      fi;
      if :: answer != LOST -> answer = 0 :: else fi }

  /* store/verified: find_result, before inference */
  :: atomic { at[w].stage == LOOKING ->
      judge();
      if
      :: answer == NOTHING -> to(INFERRING)
      :: answer == TAKEN ->
        if :: guarded(THE_ADOPTED_IS_DURABLE) -> to(ADOPTING) :: else -> settle_with(COMMIT) fi
      :: else
      fi;
      answer = 0 }
  :: atomic { at[w].stage == ADOPTING ->
      if :: object[key(i, g)] == ABSENT -> answer = NOTHING :: else fi;   /* it has vanished */
      if :: how = ANSWERED :: may(NO_ANSWER) -> faults--; how = LOST fi;
      put(i, g, d, how == ANSWERED);
      if
      :: how == LOST || answer == NOTHING -> no_answer_of_store(LOOKING)
      :: else -> settle_with(COMMIT)
      fi;
      how = 0; answer = 0 }

  /* worker/pipeline: Pipeline._infer_stage */
  :: atomic { at[w].stage == INFERRING ->
      if
      :: at[w].drains && guarded(A_CLAIM_IN_FLIGHT_GOES_BACK) -> settle_with(DRAIN)
      :: !at[w].holds -> next_item()
      :: else ->
        invariant(12, !at[w].drains);
        if
        :: !poison ->
#if OPERATIONS > 0
          maker[t] = at[w].name;
#endif
          to(PUTTING)
        :: poison || may(BAD_DOCUMENT) ->
          if :: !poison -> faults-- :: else fi;
          item[i].to_blame++; settle_with(FAIL)
        fi
      fi }

  /* worker/put: Putter._put; store/verified: write_result */
  :: atomic { at[w].stage == PUTTING ->
      if
      :: at[w].drains -> settle_with(DRAIN)            /* it does not fit the deadline */
      :: !at[w].holds -> next_item()
      :: else ->
        d = t;
        if :: send() :: may(SPOILT) -> faults--; how = ANSWERED; d = GARBAGE fi;
        if :: how == LATE -> leave_behind(PUT, t) :: else -> put(i, g, d, how == ANSWERED) fi;
        d = 0;
        if
        :: how != ANSWERED -> no_answer_of_store(PUTTING)
        :: how == ANSWERED && !guarded(A_PUT_IS_READ_BACK) -> d = t; settle_with(COMMIT)
        :: how == ANSWERED && guarded(A_PUT_IS_READ_BACK) -> to(READING)
        fi;
        how = 0
      fi;
      if
      :: at[w].stage == READING ->                     /* store/verified: _put_and_read_back */
        judge();
        if
        :: answer == NOTHING -> no_answer_of_store(PUTTING)
        :: answer == TAKEN -> settle_with(COMMIT)
        :: else
        fi;
        answer = 0
      :: else
      fi }

  /* Nothing in the code: how a broken object might be replaced under its key. */
  :: atomic { at[w].stage == REPLACING ->
      object[key(i, g)] = t; d = t; durable = durable | bit(key(i, g));
      invariant(9, EACH_IS_SOUND);
      settle_with(COMMIT) }

  /* worker/settle: Settler._ask, for as long as it takes */
  :: atomic { at[w].stage == SETTLING ->
      send();
      if :: how == LATE -> leave_behind(verb, d) :: else -> settle(verb, t, i, g, d) fi;
      if :: how == ANSWERED -> next_item() :: else fi;
      how = 0 }

  /* worker/pipeline: Pipeline._over. Nothing is held, or the time of a drain is up. */
  :: atomic { at[w].drains && at[w].stage != LEAVING ->
      give_up_request(); to(LEAVING) }

  /* worker/worker: _Life._leave and _exit_code. Each of the two last calls is made once. */
  :: atomic { at[w].stage == LEAVING ->
      n = at[w].name;
      send();
      if
      :: how == LATE -> leave_behind(STOP, 0)
      :: how != LATE && guarded(WHO_LEAVES_RELEASES_ALL) -> stop(n)
      :: else
      fi;
      invariant(12, how != ANSWERED || is(at[w].name, reaped) || OWNS_NOTHING(at[w].name));
      if
      :: d == FOREIGN -> end_of_life(); to(GIVEN_UP)       /* 14 */
      :: else ->
        if
        :: guarded(THE_LEDGER_SAYS_WHAT_IS_OVER) && at[w].drains &&
           (at[w].holds || how != ANSWERED || !EACH_HAS_ENDED)           /* 75 */
        :: guarded(THE_LEDGER_SAYS_WHAT_IS_OVER) && !at[w].drains && how != ANSWERED
        :: else -> invariant(1, finished || EACH_HAS_ENDED)              /* 0 or 3 */
        fi;
        end_of_life()
      fi }

  /* It is killed. */
  :: atomic { may(KILL) && at[w].stage != DOWN && at[w].stage != GIVEN_UP ->
      faults--; give_up_request(); end_of_life() }
  od
}

#define lost(i) (is(item[i].holder, reaped) && (item[i].state == LEASED || \
  (item[i].state == COMPLETED && !guarded(REAPING_SPARES_THE_COMMITTED))))

inline take_back(i_) {                                 /* ledger/rows: Tables.lose */
  give_back(i_);
  item[i_].losses++;
  if :: item[i_].losses >= MAX_LOSSES -> item[i_].state = DEAD :: else fi
}

/* worker/heartbeat: Heartbeat */
proctype Beat(byte w) {
end:
  do
  :: atomic { at[w].beats && !is(at[w].name, fresh) &&
              (is(at[w].name, living) || !guarded(THE_REAPED_MAY_NOT_BEAT)) ->
      fresh = fresh | bit(at[w].name) }
  :: atomic { at[w].beats && !is(at[w].name, living) && guarded(THE_REAPED_MAY_NOT_BEAT) ->
      renew(w, at[w].name) }
  /* ledger/memory: MemoryLedger._mark_the_dead, and only then page by page reap */
  :: atomic { at[w].beats && guarded(THE_DEAD_ARE_REAPED) && (living & ~fresh & ~bit(at[w].name)) ->
      reaped = reaped | (living & ~fresh & ~bit(at[w].name));
      living = living & ~reaped }
  :: atomic { faults > 0 && !guarded(THE_LIVING_ARE_NOT_REAPED) && at[w].beats &&
              (living & ~bit(at[w].name)) ->
      faults--;
      reaped = reaped | (living & ~bit(at[w].name));
      living = living & ~reaped }
  :: atomic { at[w].beats && lost(0) -> take_back(0) }
#if ITEMS == 2
  :: atomic { at[w].beats && lost(1) -> take_back(1) }
#endif
  od
}

/* -- the world ---------------------------------------------------------------------------- */

/* What was given up arrives after all, or is dropped for good. */
proctype Network() {
  mtype answer;
  byte i;
end:
  do
  :: atomic { late.verb != 0 ->
      if
      :: late.verb == CLAIM -> claim_late(late.name, late.token, late.last, i, answer)
      :: late.verb == PUT -> put(late.on, late.generation, late.digest, false)
      :: late.verb == STOP -> stop(late.name)
      :: late.verb != CLAIM && late.verb != PUT && late.verb != STOP ->
        settle(late.verb, late.token, late.on, late.generation, late.digest)
      :: true
      fi;
      late.verb = 0; late.name = 0; late.token = 0; late.last = 0; late.on = 0;
      late.generation = 0; late.digest = 0; i = 0; answer = 0 }
  od
}

proctype Trouble() {
  byte i;
end:
  do
  :: atomic { faults > 0 ->
      i = 0; do :: i < WORKERS - 1 -> i++ :: break od;
      if
      :: may(STALL) && at[i].beats && is(at[i].name, fresh) ->
        faults--; fresh = fresh & ~bit(at[i].name)
      :: may(NOTICE) && at[i].beats && !at[i].drains -> faults--; at[i].drains = true
      :: else
      fi; i = 0 }
  :: atomic { may(POWER_CUT) ->
      faults--;
      do
      :: i < ITEMS * GENERATIONS -> if :: !is(i, durable) -> object[i] = ABSENT :: else fi; i++
      :: else -> break
      od;
      i = 0;
      invariant(9, EACH_IS_SOUND) }
#if OPERATIONS > 0
  :: atomic { may(LOSS) && item[0].state == COMPLETED && !item[0].damaged ->
      faults--; item[0].damaged = true;
      if
      :: object[key(0, item[0].kept)] = ABSENT; durable = durable & ~bit(key(0, item[0].kept))
      :: object[key(0, item[0].kept)] = GARBAGE
      fi }
#endif
  :: atomic { may(INTRUDER) && !intruded ->
      faults--; intruded = true;
      do :: i < ITEMS * GENERATIONS - 1 -> i++ :: break od;
      if :: object[i] == ABSENT -> object[i] = FOREIGN; durable = durable | bit(i) :: else fi;
      i = 0 }
  od
}

#if OPERATIONS > 0
/* A person at work on the run, perhaps one of several. */
proctype Operator() {
  byte g, d, k;
  short over_by_then;
  bool orphan;
end:
  do
  /* ledger/memory: MemoryLedger.retry */
  :: atomic { asks_for(RETRY) && item[0].state == DEAD ->
      operations--;
      item[0].state = READY; item[0].failures = 0; item[0].losses = 0;
      if :: guarded(A_RETRY_IS_A_NEW_GENERATION) -> begin_anew(0) :: else fi }

  /* verify/verb: _Audit.results, and later _Audit.settle_damage */
  :: atomic { asks_for(REPAIR) && item[0].state == COMPLETED && item[0].damaged ->
      operations--;
      g = item[0].kept; d = item[0].digest };
     atomic {                                          /* ledger/memory: MemoryLedger.reopen */
      if
      :: item[0].state == COMPLETED &&
         ((item[0].kept == g && item[0].digest == d) || !guarded(A_REOPENING_NAMES_ITS_RESULT)) ->
        invariant(13, item[0].damaged);
        item[0].damaged = false;
        item[0].state = READY; item[0].token = 0; item[0].holder = 0;
        item[0].kept = 0; item[0].digest = 0; item[0].failures = 0; item[0].losses = 0;
        begin_anew(0)
      :: else
      fi;
      g = 0; d = 0 }

  /* verify/verb: _Audit.objects, and later remove_orphans. verify/objects: judge_objects looks at
   * the workers, then at the object, then at the item. */
  :: atomic { asks_for(REMOVE_ORPHANS) && (is_result(object[0]) || is_result(object[1])) ->
      operations--;
      if :: is_result(object[0]) :: is_result(object[1]) -> k = 1 fi;
      over_by_then = (bit(names) - 1) & ~living };
     d = object[k];
     atomic {                                          /* verify/rule: judge */
      orphan = is_result(d) && !(item[0].state == COMPLETED && item[0].kept == k) &&
        (item[0].state == COMPLETED ||
         (is(maker[d], over_by_then) && item[0].state != LEASED &&
          (ended(0) || !guarded(AN_ORPHANS_ITEM_IS_AT_AN_END)))) };
     atomic {
      if :: orphan -> object[k] = ABSENT; durable = durable & ~bit(k); invariant(9, sound(0))
         :: else fi;
      d = 0; k = 0; orphan = false; over_by_then = 0 }
  od
}
#endif

init {
  c_code {
    now.without = getenv("WITHOUT") ? atoi(getenv("WITHOUT")) : 0;
    now.kinds = getenv("KINDS") ? atoi(getenv("KINDS")) : 8191;
  };
  atomic {
    if :: kinds & BAD_DOCUMENT -> poison = true :: true fi;
    byte w = 0;
    do
    :: w < WORKERS -> run Work(w); run Beat(w); w++
    :: else -> break
    od;
    run Network();
    run Trouble()
#if OPERATIONS > 0
    ; run Operator(); run Operator()
#endif
  }
}

/* 17: once the faults are over, every item ends, unless somebody else writes into the store. */
#define over (EACH_HAS_ENDED || intruded)
#ifdef PROGRESS
ltl progress { <> [] over }
#endif
