/* Contact: when an expired beat proves that its worker is dead.
 *
 * A worker lives and beats, and a reaper looks, each three times in a TTL of its own. Then the
 * ledger gives no answers for a while, the reaper is held up, or the machine on which all of them
 * run is suspended: a beat expires although nobody is dead. Nobody must be reaped for that, since
 * losses count against documents. Each of the three comes once, for any length of time: of beats
 * that are lost singly, a second one in a row is as good as a death.
 *
 * Time is in ticks; what is due in one happens in any order before the next. Comments and WITHOUT
 * are as in lease.pml.
 */

#ifndef TTL
#define TTL 6                  /* of the worker, in ticks */
#endif
#ifndef REAPERS_TTL
#define REAPERS_TTL 6
#endif
#define MOST 20                /* ticks beyond which it does not matter how many */

#define A_REAPER_HAS_BEEN_IN_CONTACT 1         /* 11 */
#define A_GAP_BREAKS_CONTACT 2                 /* 11 */
#define CLOCKS_THAT_PART_BREAK_CONTACT 3       /* 11 */
#define THE_WORKERS_TTL_COUNTS_TOO 4           /* 11 */
#define AN_UNANSWERED_BEAT_COMES_AGAIN_SOON 5  /* 11 */

byte without;
#define guarded(guard) (without != guard)
#define invariant(number, holds) assert((holds) || number == 0)

bool outage, hold_up, suspension;              /* have been */
bool up = true;                                /* the ledger answers */
bool held_up;                                  /* the reaper does not run */

/* The worker. */
byte beat_in;                                  /* ticks to its next beat */
byte left = TTL;                               /* ticks to its expiry, on the ledger's clock */

/* The reaper, by its own clock. */
byte look_in;                                  /* ticks to its next look */
byte gap;                                      /* since its last answer */
byte lasts_by_its_own, lasts_by_the_workers;   /* contact, with gaps shorter than half such a TTL */
bool parted;                                   /* the ledger's clock went on, and its own did not */

/* worker/heartbeat: Heartbeat._beat */
proctype Beat() {
end:
  do
  :: atomic { beat_in == 0 ->
      if
      :: up -> left = TTL; beat_in = TTL / 3
      :: else -> beat_in = (guarded(AN_UNANSWERED_BEAT_COMES_AGAIN_SOON) -> TTL / 6 : TTL / 3)
      fi }
  od
}

/* ledger/contact: Contact.seen, and lasted */
inline seen(contact, ttl) {
  if
  :: (parted && guarded(CLOCKS_THAT_PART_BREAK_CONTACT)) ||
     (2 * gap >= ttl && guarded(A_GAP_BREAKS_CONTACT)) -> contact = 0
  :: else -> contact = (contact + gap > MOST -> MOST : contact + gap)
  fi
}

#define lasted (!guarded(A_REAPER_HAS_BEEN_IN_CONTACT) || (lasts_by_its_own >= REAPERS_TTL && \
  (lasts_by_the_workers >= TTL || !guarded(THE_WORKERS_TTL_COUNTS_TOO))))

/* worker/heartbeat: Heartbeat._reap; ledger/memory: MemoryLedger.reap, _mark_the_dead */
proctype Reap() {
end:
  do
  :: atomic { look_in == 0 && !held_up ->
      look_in = REAPERS_TTL / 3;
      if
      :: up ->
        seen(lasts_by_its_own, REAPERS_TTL);
        seen(lasts_by_the_workers, TTL);
        gap = 0; parted = false;
        invariant(11, left > 0 || !lasted)
      :: else -> lasts_by_its_own = 0; lasts_by_the_workers = 0    /* Contact.lost */
      fi }
  od
}

proctype Time() {
end:
  do
  :: atomic { beat_in > 0 && (look_in > 0 || held_up) ->
      beat_in--;
      if :: look_in > 0 -> look_in-- :: else fi;
      if :: left > 0 -> left-- :: else fi;
      if :: gap < MOST -> gap++ :: else fi }
  od
}

proctype Trouble() {
end:
  do
  :: atomic { !outage -> outage = true; up = false }
  :: !up -> up = true
  :: atomic { !hold_up -> hold_up = true; held_up = true }
  :: held_up -> held_up = false
  /* Only the ledger's clock goes on, which is no monotonic one. */
  :: atomic { !suspension -> suspension = true; left = 0; parted = true }
  od
}

init {
  c_code { now.without = getenv("WITHOUT") ? atoi(getenv("WITHOUT")) : 0; };
  atomic { run Beat(); run Reap(); run Time(); run Trouble() }
}
