/* Threads that read and write under a lock, and rows that are read while they are written.
 *
 * For tests/tsan.sh: clean as it is. With an argument the lock is left out, and ThreadSanitizer
 * must report the race.
 */
#include <pthread.h>
#include <stdio.h>

#include "_lock.h"

enum { THREADS = 4, TIMES = 20000, ROW = 72 };

static _Alignas(64) kary_entry table[KARY_ENTRIES];
static _Alignas(64) kary_lock lock;
static kary_participants participants = {table, 0, 0};
static int without_lock;

static int64_t count;   /* under the lock */
static int64_t version; /* of the row: odd while it is being written */
static uint8_t row[ROW];

static void write_row(uint8_t value)
{
    uint8_t values[ROW];
    memset(values, value, ROW);
    kary_store_relaxed(&version, version + 1);
    kary_fence_release();
    kary_copy_racing(row, values, ROW);
    kary_store_release(&version, version + 1);
}

/* Whether a copy that must be whole is torn. */
static int is_torn(void)
{
    uint8_t copy[ROW];
    const int64_t before = kary_load_acquire(&version);
    kary_copy_racing(copy, row, ROW);
    kary_fence_acquire();
    if (before % 2 != 0 || kary_load_relaxed(&version) != before)
        return 0;
    return memcmp(copy, copy + 1, ROW - 1) != 0;
}

static void *work(void *torn)
{
    const uint64_t me = kary_participant(&participants);
    for (int i = 0; i < TIMES; i++) {
        int taken_over = 0;
        uint64_t ticket = 0;
        if (!without_lock)
            ticket = kary_acquire(&lock, &participants, me, &taken_over);
        count += 1;
        write_row((uint8_t)count);
        if (!without_lock)
            kary_release(&lock, ticket);
        *(int *)torn += is_torn() + taken_over;
    }
    return NULL;
}

int main(int argc, char **argv)
{
    (void)argv;
    without_lock = argc > 1;
    pthread_t threads[THREADS];
    int torn[THREADS] = {0}, bad = 0;
    for (int i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, work, &torn[i]);
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        bad += torn[i];
    }
    for (int number = 2; number < KARY_ENTRIES; number++)
        bad += table[number].who != 0; /* all threads are one participant */
    printf("counted %lld of %d, %d bad\n", (long long)count, THREADS * TIMES, bad);
    return bad > 0 || count != THREADS * TIMES;
}
