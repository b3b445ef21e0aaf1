/* Memory that several threads or processes use at once: atomic loads and stores, and copies.
 *
 * They work on plain integers and doubles, wherever these lie, as the builtins of GCC and Clang
 * do; <stdatomic.h> would want each of them declared _Atomic.
 */
#ifndef KARY_REPLAY_ATOMIC_H
#define KARY_REPLAY_ATOMIC_H

#include <stdint.h>
#include <string.h>

#if defined(__SANITIZE_THREAD__)
#define KARY_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define KARY_TSAN 1
#endif
#endif

/* Integers of any width. What comes after a load-acquire has seen all that came before the
 * store-release of the value loaded.
 */
#define kary_load_acquire(address) __atomic_load_n(address, __ATOMIC_ACQUIRE)
#define kary_store_release(address, value) __atomic_store_n(address, value, __ATOMIC_RELEASE)
#define kary_load_relaxed(address) __atomic_load_n(address, __ATOMIC_RELAXED)
#define kary_store_relaxed(address, value) __atomic_store_n(address, value, __ATOMIC_RELAXED)

/* These three return the value before; both an acquire and a release. */
#define kary_fetch_add(address, value) __atomic_fetch_add(address, value, __ATOMIC_ACQ_REL)
#define kary_fetch_or(address, value) __atomic_fetch_or(address, value, __ATOMIC_ACQ_REL)
#define kary_fetch_and(address, value) __atomic_fetch_and(address, value, __ATOMIC_ACQ_REL)

#define kary_fence_acquire() __atomic_thread_fence(__ATOMIC_ACQUIRE)
#define kary_fence_release() __atomic_thread_fence(__ATOMIC_RELEASE)

/* Whether *address was `expected`, and now is `desired`; both an acquire and a release. */
#define kary_compare_and_swap(address, expected, desired) \
    __extension__({ \
        __typeof__(*(address)) kary_before = (expected); \
        __atomic_compare_exchange_n(address, &kary_before, desired, 0, __ATOMIC_ACQ_REL, \
                                    __ATOMIC_RELAXED); \
    })

static inline double kary_load_double(const double *address)
{
    double value;
    __atomic_load(address, &value, __ATOMIC_RELAXED);
    return value;
}

static inline void kary_store_double(double *address, double value)
{
    __atomic_store(address, &value, __ATOMIC_RELAXED);
}

/* The same for loops over many doubles: compilers may take several at once, or one twice, and need
 * not take each through an integer register. An aligned double is never torn for all that; but
 * C11 does not know this, and ThreadSanitizer goes by the letter. So in its builds they are atomic,
 * and what it still reports is a race.
 */
#ifdef KARY_TSAN
#define kary_load_racing(address) kary_load_double(address)
#define kary_store_racing(address, value) kary_store_double(address, value)
#else
#define kary_load_racing(address) (*(const double *)(address))
#define kary_store_racing(address, value) (*(double *)(address) = (value))
#endif

/* Whether *address had the bits of `expected`, and now is `desired`; an acquire and a release. */
static inline int kary_compare_and_swap_double(double *address, double expected, double desired)
{
    return __atomic_compare_exchange(address, &expected, &desired, 0, __ATOMIC_ACQ_REL,
                                     __ATOMIC_RELAXED);
}

/* Copies bytes that somebody may be overwriting, or reading, at this moment.
 *
 * The copy may be torn, and its reader must find that out afterwards: by a version loaded before
 * it, and again behind it and a kary_fence_acquire. In the letter of C11 each byte would have to
 * be an atomic one, at an eighth of the speed; memcpy does the same on every machine there is,
 * for whatever it reads, it stores nothing else than what it read. ThreadSanitizer goes by the
 * letter, and it would report every copy; so in its builds the copies are atomic, relaxed loads
 * and stores, and what it still reports is a race.
 *
 * kary_equal_racing compares such bytes, to be checked likewise. Scalars, and rows
 * of 16 to 256 bytes, are copied without the call of memcpy.
 */
#ifdef KARY_TSAN
static inline void kary_copy_racing(uint8_t *target, const uint8_t *source, int64_t size)
{
    for (int64_t i = 0; i < size; i++)
        kary_store_relaxed(target + i, kary_load_relaxed(source + i));
}

static inline int kary_equal_racing(const uint8_t *a, const uint8_t *b, int64_t size)
{
    int64_t i = 0;
    while (i < size && kary_load_relaxed(a + i) == kary_load_relaxed(b + i))
        i++;
    return i == size;
}
#else
static inline void kary_copy_racing(uint8_t *target, const uint8_t *source, int64_t size)
{
    if (size == 4)
        memcpy(target, source, 4);
    else if (size == 1)
        target[0] = source[0];
    else if (size == 8)
        memcpy(target, source, 8);
    else if (size < 16 || size > 256)
        memcpy(target, source, (size_t)size);
    else {  // the last piece overlaps the one before it
        for (int64_t i = 0; i < size - 16; i += 16)
            memcpy(target + i, source + i, 16);
        memcpy(target + size - 16, source + size - 16, 16);
    }
}

static inline int kary_equal_racing(const uint8_t *a, const uint8_t *b, int64_t size)
{
    return memcmp(a, b, (size_t)size) == 0;
}
#endif

#endif
