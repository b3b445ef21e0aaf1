/* Locks in memory that processes share, that survive the death of their holders.
 *
 * Who uses the memory is a participant: a process with an entry in a table there. A lock's word
 * names its holder, so that a waiter can look whether that one is still there:
 *
 *     participant  generation of the entry << 8 | its number 1 .. 255; 0 is nobody
 *     word         ticket << 25 | whether there are suspects << 24 | participant
 *
 * The ticket counts acquisitions and stays in the word of a free lock, so no word ever comes
 * again. A holder that is dead is taken over from at once; one that is stopped, after a second.
 * The latter may come back and store what it was about to, and learns only by its release that
 * the lock is lost. It repairs then what it may have damaged; and in case it dies before, it is a
 * suspect of that lock from the takeover on, until it is gone and the damage repaired by others.
 *
 * tests/test_lock_model.py runs these steps in every order.
 */
#ifndef KARY_REPLAY_LOCK_H
#define KARY_REPLAY_LOCK_H

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "_atomic.h"

#define KARY_ENTRIES 256 /* the first is nobody's */
#define KARY_SUSPECTS 4  /* what fits into the lock's cache line */

#define KARY_NUMBER ((uint64_t)0xff)
#define KARY_PARTICIPANT ((uint64_t)0xffffff)
#define KARY_HAS_SUSPECTS ((uint64_t)1 << 24)
#define KARY_TICKET ((uint64_t)1 << 25)

#define KARY_MS ((uint64_t)1000000)                /* in nanoseconds */
#define KARY_LOOK_EVERY (20 * KARY_MS)             /* how often a waiter looks at the holder */
#define KARY_STOPPED_FOR (1000 * KARY_MS)          /* until a stopped holder loses the lock */
#define KARY_LOOK_AT_SUSPECTS_EVERY (10 * KARY_MS)
#define KARY_PATIENCE (5 * KARY_MS)                /* until a waiter asks newcomers to wait */

#define KARY_SPINS 100 /* some microseconds; then a waiter naps, longer every time */
#define KARY_SHORTEST_NAP (KARY_MS / 20)
#define KARY_LONGEST_NAP KARY_MS
#define KARY_ASKED_FOR (3 * KARY_MS / 10) /* two of the shortest naps, as long as they really are */

enum { KARY_DEAD, KARY_STOPPED, KARY_RUNNING };

/* Both are made of zeros. The generation tells a lock held by the one who had the entry before. */
typedef struct {
    uint64_t who;        /* pid << 32 | when the process started; 0: free */
    uint64_t generation; /* how many have had this entry */
} kary_entry;

typedef struct {
    uint64_t word;
    uint64_t asked;                   /* when a waiter last asked newcomers to wait too */
    uint64_t looked;                  /* when a holder last looked at the suspects */
    uint64_t suspects[KARY_SUSPECTS]; /* participants, or 0 */
    int64_t count;                    /* for holders to use: they have the line anyway */
} kary_lock;

/* A process's own view of a table. A forked child inherits it, and joins for itself. */
typedef struct {
    kary_entry *entries;
    uint64_t self; /* a hash of who this process is << 24 | its participant */
    int is_shared; /* or else all that other processes left in the table are copies, by a fork */
} kary_participants;

/* -- Processes ------------------------------------------------------------------------------ */

/* The state of a process as a letter, and when it started in ticks since boot, modulo 2^32.
 * Both 0 where the kernel does not tell.
 */
static inline void kary_look_up(int64_t pid, char *state, uint32_t *started)
{
    char path[32], text[1024];
    *state = 0, *started = 0;
    snprintf(path, sizeof path, "/proc/%lld/stat", (long long)pid);
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return;
    const ssize_t size = read(file, text, sizeof text - 1);
    close(file);
    text[size < 0 ? 0 : size] = 0;
    const char *field = strrchr(text, ')'); /* behind the second; names may hold anything */
    if (field == NULL || field[1] == 0)
        return;
    *state = field[2];
    for (int i = 2; i < 22 && field != NULL; i++)
        field = strchr(field + 1, ' ');
    *started = field == NULL ? 0 : (uint32_t)strtoull(field, NULL, 10);
}

/* A killed child that nobody has waited for is dead, though its pid is there. */
static inline int kary_state_of_process(uint64_t who)
{
    char state;
    uint32_t started;
    const int64_t pid = (int64_t)(who >> 32);
    if (kill((pid_t)pid, 0) != 0 && errno == ESRCH)
        return KARY_DEAD;
    kary_look_up(pid, &state, &started);
    if (state == 0)
        return KARY_RUNNING;
    if (started != (uint32_t)who || strchr("ZXx", state) != NULL)
        return KARY_DEAD;
    return strchr("Tt", state) != NULL ? KARY_STOPPED : KARY_RUNNING;
}

static uint64_t kary_who_cached; /* getpid would take as long as a small insert */

static inline void kary_forget_who(void) { kary_store_relaxed(&kary_who_cached, 0); }

/* This process, as in an entry. */
static inline uint64_t kary_who(void)
{
    static int is_registered;
    uint64_t who = kary_load_relaxed(&kary_who_cached);
    if (who != 0)
        return who;
    if (!kary_load_relaxed(&is_registered)) { /* twice, by two threads, does no harm */
        kary_store_relaxed(&is_registered, 1);
        pthread_atfork(NULL, NULL, kary_forget_who);
    }
    char state;
    uint32_t started;
    kary_look_up(getpid(), &state, &started);
    who = (uint64_t)getpid() << 32 | started;
    kary_store_relaxed(&kary_who_cached, who);
    return who;
}

/* -- Participants --------------------------------------------------------------------------- */

static inline int kary_state_of_who(const kary_participants *table, uint64_t who)
{
    if (who == kary_who())
        return KARY_RUNNING;
    return table->is_shared ? kary_state_of_process(who) : KARY_DEAD;
}

static inline int kary_state(const kary_participants *table, uint64_t participant)
{
    const kary_entry *entry = &table->entries[participant & KARY_NUMBER];
    const uint64_t who = kary_load_acquire(&entry->who);
    const uint64_t generation = kary_load_acquire(&entry->generation);
    if (who == 0 || (generation << 8 & KARY_PARTICIPANT) != (participant & ~KARY_NUMBER))
        return KARY_DEAD;
    return kary_state_of_who(table, who);
}

/* Of whoever has the entry of this number now. */
static inline int kary_state_of_number(const kary_participants *table, uint64_t number)
{
    const uint64_t who = kary_load_acquire(&table->entries[number].who);
    return who == 0 ? KARY_DEAD : kary_state_of_who(table, who);
}

/* The upper 40 bits of kary_participants.self. */
static inline uint64_t kary_hash(uint64_t who)
{
    return who * UINT64_C(0x9e3779b97f4a7c15) & ~KARY_PARTICIPANT;
}

/* Takes an entry that is free, or else one whose process is dead. 0 if all are in use. */
static inline uint64_t kary_take_entry(kary_participants *table)
{
    for (int take_dead = 0; take_dead < 2; take_dead++) {
        for (uint64_t number = 1; number < KARY_ENTRIES; number++) {
            kary_entry *entry = &table->entries[number];
            const uint64_t who = kary_load_acquire(&entry->who);
            if (who != 0 && (!take_dead || kary_state_of_who(table, who) != KARY_DEAD))
                continue;
            if (kary_compare_and_swap(&entry->who, who, kary_who()))
                return ((kary_fetch_add(&entry->generation, 1) + 1) << 8 & KARY_PARTICIPANT)
                       | number;
        }
    }
    return 0;
}

static inline void kary_free_entry(kary_participants *table, uint64_t participant)
{
    kary_store_release(&table->entries[participant & KARY_NUMBER].who, 0);
}

static inline uint64_t kary_join(kary_participants *table, uint64_t before)
{
    const uint64_t mine = kary_take_entry(table);
    if (mine == 0 || kary_compare_and_swap(&table->self, before, kary_hash(kary_who()) | mine))
        return mine;
    kary_free_entry(table, mine); /* another thread was faster */
    return kary_load_acquire(&table->self) & KARY_PARTICIPANT;
}

/* This process, which joins if it has not yet, as a forked child has not. All its threads are
 * one participant. 0 if the table is full: 255 processes that are alive.
 */
static inline uint64_t kary_participant(kary_participants *table)
{
    const uint64_t self = kary_load_acquire(&table->self);
    if ((self & ~KARY_PARTICIPANT) == kary_hash(kary_who()) && self != 0)
        return self & KARY_PARTICIPANT;
    return kary_join(table, self);
}

/* Gives the entry back; nothing, if this process has none. Of locks that it holds others will
 * think that their holder is dead.
 */
static inline void kary_leave(kary_participants *table)
{
    const uint64_t self = kary_load_acquire(&table->self);
    const int is_mine = self != 0 && (self & ~KARY_PARTICIPANT) == kary_hash(kary_who());
    if (is_mine && kary_compare_and_swap(&table->self, self, 0))
        kary_free_entry(table, self & KARY_PARTICIPANT);
}

/* -- Locks ---------------------------------------------------------------------------------- */

static inline uint64_t kary_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 * KARY_MS + (uint64_t)now.tv_nsec;
}

/* No sched_yield: Linux moves those who call it behind the others, and from 6.18 on each call
 * costs a whole slice; ten in a row were seen to make waits of 100 ms.
 */
static inline void kary_pause(uint64_t round)
{
    if (round < KARY_SPINS) {
#if defined(__x86_64__) || defined(__i386__)
        __builtin_ia32_pause();
#elif defined(__aarch64__) || defined(__arm__)
        __asm__ volatile("yield");
#endif
    } else {
        const uint64_t nap = KARY_SHORTEST_NAP * (round - KARY_SPINS + 1);
        const struct timespec time = {0, (long)(nap < KARY_LONGEST_NAP ? nap : KARY_LONGEST_NAP)};
        nanosleep(&time, NULL);
    }
}

static inline uint64_t kary_next_word(uint64_t word, uint64_t me)
{
    return ((word & ~KARY_PARTICIPANT) + KARY_TICKET) | me;
}

/* Makes the holder of `word` a suspect. Before the takeover, lest the taker die in between; one
 * too many does no harm. False if there is no room: then it must not be taken over from.
 */
static inline int kary_suspect(kary_lock *lock, uint64_t word)
{
    const uint64_t participant = word & KARY_PARTICIPANT;
    for (int i = 0; i < KARY_SUSPECTS; i++) {
        if (kary_load_acquire(&lock->suspects[i]) == participant
            || kary_compare_and_swap(&lock->suspects[i], 0, participant))
            return 1;
    }
    return 0;
}

/* Whether a suspect is gone, whose last stores nobody has repaired: then its holder must.
 *
 * Every 10 ms, because it takes some 10 us for each. May change the holder's word.
 */
static inline int kary_look_at_suspects(kary_lock *lock, const kary_participants *table,
                                        uint64_t *mine)
{
    int gone = 0, left = 0;
    const uint64_t now = kary_now(), word = *mine;
    if (now - kary_load_relaxed(&lock->looked) < KARY_LOOK_AT_SUSPECTS_EVERY)
        return 0;
    kary_store_relaxed(&lock->looked, now);
    for (int i = 0; i < KARY_SUSPECTS; i++) {
        const uint64_t suspect = kary_load_acquire(&lock->suspects[i]);
        if (suspect == 0)
            continue;
        const int is_dead = kary_state(table, suspect) == KARY_DEAD;
        if (is_dead)
            kary_store_release(&lock->suspects[i], 0);
        gone += is_dead, left += !is_dead;
    }
    if (!left && kary_compare_and_swap(&lock->word, word, word & ~KARY_HAS_SUSPECTS))
        *mine = word & ~KARY_HAS_SUSPECTS;
    return gone > 0;
}

/* What a waiter that naps knows. */
typedef struct {
    uint64_t began, now;
    uint64_t looked;
    uint64_t word;          /* of the holder then */
    uint64_t stopped_since; /* 0: the holder is not */
    uint64_t suspects;      /* KARY_HAS_SUSPECTS if it made the holder one */
} kary_watch;

/* Whether the lock may be taken from the holder of `word`; looks every 20 ms. */
static inline int kary_may_take_over(kary_lock *lock, const kary_participants *table,
                                     kary_watch *watch, uint64_t word)
{
    if (watch->now - watch->looked < KARY_LOOK_EVERY)
        return 0;
    const int state = kary_state(table, word & KARY_PARTICIPANT);
    if (state != KARY_STOPPED || word != watch->word)
        watch->stopped_since = 0;
    watch->looked = watch->now, watch->word = word;
    if (state != KARY_STOPPED)
        return state == KARY_DEAD;
    if (watch->stopped_since == 0)
        watch->stopped_since = watch->now;
    if (watch->now - watch->stopped_since < KARY_STOPPED_FOR || !kary_suspect(lock, word))
        return 0;
    watch->suspects = KARY_HAS_SUSPECTS; /* if the takeover fails, the next acquisition tells */
    return 1;
}

/* Whether someone who lost patience asked so, a moment ago. Who is served or has died asks no more,
 * and is forgotten.
 */
static inline int kary_is_asked_to_wait(kary_lock *lock)
{
    const uint64_t asked = kary_load_relaxed(&lock->asked);
    if (asked == 0)
        return 0;
    if (kary_now() - asked < KARY_ASKED_FOR)
        return 1;
    kary_store_relaxed(&lock->asked, 0);
    return 0;
}

/* Who comes right when the lock is released has it, at the cost of those who nap; so these ask
 * for it when they have lost patience.
 */
static inline uint64_t kary_wait(kary_lock *lock, const kary_participants *table, uint64_t me,
                                 int *taken_over)
{
    kary_watch watch = {0, 0, 0, 0, 0, 0};
    uint64_t mine;
    for (uint64_t round = 0;; round++) {
        const uint64_t word = kary_load_relaxed(&lock->word);
        const int impatient = watch.now - watch.began > KARY_PATIENCE;
        *taken_over = (word & KARY_PARTICIPANT) != 0;
        mine = kary_next_word(word, me);
        if ((*taken_over ? kary_may_take_over(lock, table, &watch, word)
                         : impatient || !kary_is_asked_to_wait(lock))
            && kary_compare_and_swap(&lock->word, word, mine | watch.suspects))
            break;
        if (impatient)
            kary_store_relaxed(&lock->asked, watch.now);
        kary_pause(impatient ? KARY_SPINS : round);
        if (round >= KARY_SPINS)
            watch.now = kary_now();
        if (round == KARY_SPINS)
            watch.began = watch.looked = watch.now;
    }
    mine |= watch.suspects;
    if (mine & KARY_HAS_SUSPECTS)
        *taken_over |= kary_look_at_suspects(lock, table, &mine);
    return mine;
}

/* Waits for the lock and returns the ticket to release it by. Never with the GIL.
 *
 * taken_over: whether what the lock protects must be rebuilt before anything else, because
 * someone died on it. There is no order among waiters, and no second acquisition by a thread.
 */
static inline uint64_t kary_acquire(kary_lock *lock, const kary_participants *table, uint64_t me,
                                    int *taken_over)
{
    const uint64_t word = kary_load_relaxed(&lock->word);
    const uint64_t mine = kary_next_word(word, me);
    *taken_over = 0;
    if ((word & (KARY_PARTICIPANT | KARY_HAS_SUSPECTS)) == 0
        && !kary_load_relaxed(&lock->asked)
        && kary_compare_and_swap(&lock->word, word, mine))
        return mine;
    return kary_wait(lock, table, me, taken_over);
}

/* Whether the lock was still ours. If not, this process was stopped for so long that another
 * took over, and stored afterwards, perhaps: acquire again, rebuild, and release that.
 */
static inline int kary_release(kary_lock *lock, uint64_t ticket)
{
    return kary_compare_and_swap(&lock->word, ticket, ticket & ~KARY_PARTICIPANT);
}

#endif
