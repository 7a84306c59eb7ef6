/* Supersession: what becomes of a document's versions when enqueues and workers meet.
 *
 * The ledger in PostgreSQL keeps each state in a table of its own, and an enqueue is one
 * transaction of several statements, between which workers move the rows that it looks for.
 * Two people enqueue versions of one document in any order, some of them again because the
 * answer was lost, while workers claim, give back, fail and commit. READY stands for two tables,
 * `ready` and `delayed`.
 *
 * Comments and WITHOUT are as in lease.pml.
 */

#define VERSIONS 2
#define BATCHES 2            /* of each person */
#ifndef RELEASES
#define RELEASES 2           /* how often workers give an item back, in all */
#endif

#define AN_ENQUEUE_LOCKS_ITS_DOCUMENT 1      /* 1 */
#define AN_ITEM_ON_THE_MOVE_IS_FOUND 2       /* 1 */
#define A_BATCH_IS_TAKEN_UP_ONCE 3           /* 10 */
#define A_COMPLETED_ITEM_IS_NOT_SUPERSEDED 4 /* 13 */
#define A_SUPERSEDED_ITEM_IS_FENCED 5        /* 6 */
#define A_SUPERSEDED_ITEM_COMES_BACK 6       /* 1 */

byte without;
#define guarded(guard) (without != guard)
#define invariant(number, holds) assert((holds) || number == 0)

mtype = { NOWHERE, READY, LEASED, COMPLETED, DEAD, SUPERSEDED };

/* The table in which the row of an item stands, and the token that holds it. */
mtype table[VERSIONS] = NOWHERE;
byte token[VERSIONS];
byte tokens;
byte releases = RELEASES;

/* Deleted by a transaction that has not ended: whoever comes for the row waits, or passes by. */
bool taken[VERSIONS];

/* The row of the document: the version that is current, and the lock. */
#define NONE VERSIONS
byte current = NONE;
bool locked;

byte last_batch[2];
byte taken_up[2];            /* how many batches took effect */

#define settled(v) (v == current -> (table[v] != NOWHERE && table[v] != SUPERSEDED) : \
  (table[v] == NOWHERE || table[v] == COMPLETED || table[v] == SUPERSEDED))
#define ended(v) (table[v] == COMPLETED || table[v] == DEAD)

/* ledger/sql/enqueueing: _Intake._supersede. One statement a table. */
inline supersede(v) {
  do
  :: atomic { table[v] == READY -> taken[v] = true; break }
  :: atomic { table[v] != READY -> skip };
     if
     :: atomic { table[v] == LEASED -> taken[v] = true; break }
     :: atomic { table[v] != LEASED -> skip }
     fi;
     if
     :: atomic { table[v] == DEAD -> taken[v] = true; break }
     :: atomic { table[v] != DEAD -> skip }
     fi;
     if
     :: atomic { table[v] == COMPLETED ->
          if :: guarded(A_COMPLETED_ITEM_IS_NOT_SUPERSEDED) :: else -> taken[v] = true fi; break }
     :: atomic { table[v] != COMPLETED ->
          if :: guarded(AN_ITEM_ON_THE_MOVE_IS_FOUND) :: else -> break fi }
     fi
  od
}

/* enqueue/run, and for each of its batches ledger/sql/enqueueing: enqueue */
proctype Enqueue(byte e) {
  byte v, was, batch;
  do
  :: batch < BATCHES ->
    batch++;
    if :: v = 0 :: v = 1 fi;
again:
    atomic { (!locked || !guarded(AN_ENQUEUE_LOCKS_ITS_DOCUMENT)) -> locked = true; was = current };
    if
    :: last_batch[e] >= batch && guarded(A_BATCH_IS_TAKEN_UP_ONCE) ->
      atomic { locked = false; was = NONE }
    :: else ->
      if :: was != NONE && was != v -> supersede(was) :: else fi;
      atomic {
        taken_up[e]++;
        invariant(10, taken_up[e] == batch);
        if
        :: was != NONE && was != v && taken[was] ->
          invariant(13, table[was] != COMPLETED);
          taken[was] = false; table[was] = SUPERSEDED
        :: else
        fi;
        if
        :: table[v] == NOWHERE -> table[v] = READY
        :: table[v] == SUPERSEDED && guarded(A_SUPERSEDED_ITEM_COMES_BACK) -> table[v] = READY
        :: else
        fi;
        current = v; last_batch[e] = batch; locked = false; was = NONE;
        invariant(1, settled(0) && settled(1))
      };
      if :: true :: goto again fi            /* the answer is lost: the same batch again */
    fi
  :: else -> break
  od
}

#define free(i) (table[i] == READY && !taken[i])

inline claim(i_) { i = i_; tokens++; t = tokens; table[i] = LEASED; token[i] = t }

/* Any number of workers: a token is used by whoever drew it, and no two are alike. */
proctype Work() {
  byte i, t;
end:
  do
  /* ledger/sql/hot_postgresql: claim, which passes by what is locked */
  :: atomic { t == 0 && free(0) -> claim(0) }
  :: atomic { t == 0 && free(1) -> claim(1) }

  /* ledger/sql/holding: commit, fail, release; they wait for what is locked */
  :: atomic { t != 0 && !taken[i] ->
      if
      :: table[i] == LEASED && token[i] == t ->
        if
        :: table[i] = COMPLETED
        :: table[i] = DEAD
        :: releases > 0 -> releases--; table[i] = READY
        fi
      :: token[i] == t && !guarded(A_SUPERSEDED_ITEM_IS_FENCED) ->
        invariant(6, table[i] == LEASED);
        table[i] = COMPLETED
      :: else
      fi;
      i = 0; t = 0;
      invariant(1, locked || (settled(0) && settled(1))) }
  od
}

init {
  c_code { now.without = getenv("WITHOUT") ? atoi(getenv("WITHOUT")) : 0; };
  atomic { run Enqueue(0); run Enqueue(1); run Work(); run Work() }
}

/* 1: the current version ends. */
#ifdef PROGRESS
ltl progress { <> [] ((current == 0 && ended(0)) || (current == 1 && ended(1))) }
#endif
