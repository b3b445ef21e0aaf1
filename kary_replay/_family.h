/* The inner loops of the sum tree on one family: the `fanout` children of a node.
 *
 * Others may be storing what they load.
 */
#ifndef KARY_REPLAY_FAMILY_H
#define KARY_REPLAY_FAMILY_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "_atomic.h"

/* Not under ThreadSanitizer: the plain loops have atomic loads there, see kary_load_racing. */
#if (defined(__SSE2__) || defined(_M_X64)) && !defined(KARY_TSAN)
#include <emmintrin.h>
#define KARY_SSE2 1
#endif

#define KARY_CACHE_LINE 64

static inline void kary_prefetch(const void *address)
{
#if defined(__GNUC__) || defined(__clang__)
    __builtin_prefetch(address);
#else
    (void)address;
#endif
}

/* Asks for `size` bytes, which need not begin with a cache line. */
static inline void kary_prefetch_bytes(const uint8_t *bytes, int64_t size)
{
    for (int64_t byte = 0; byte < size; byte += KARY_CACHE_LINE)
        kary_prefetch(bytes + byte);
    kary_prefetch(bytes + size - 1);
#if defined(__GNUC__) || defined(__clang__)
    __asm__ volatile(""); /* GCC drops calls of functions that do nothing else than prefetch */
#endif
}

static inline void kary_prefetch_family(const double *family, int64_t fanout)
{
    for (int64_t k = 0; k < fanout; k += KARY_CACHE_LINE / (int64_t)sizeof(double))
        kary_prefetch(family + k);
}

/* The largest double below x; x must be finite and > 0. */
static inline double kary_below(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    bits -= 1;
    memcpy(&x, &bits, sizeof bits);
    return x;
}

/* How many of `fanout` ascending sums are <= target: the child whose part holds it.
 *
 * All are compared, without a branch: which child it is cannot be predicted. SSE2 is
 * part of every x86-64; compilers vectorise the plain loop for arm64 by themselves.
 */
static inline int64_t kary_count_at_most(const double *sums, int64_t fanout, double target)
{
    int64_t count = 0;
#ifdef KARY_SSE2
    const __m128d targets = _mm_set1_pd(target);
    __m128i counts = _mm_setzero_si128();
    for (int64_t k = 0; k < fanout; k += 2) {
        const __m128d at_most = _mm_cmple_pd(_mm_loadu_pd(sums + k), targets);
        counts = _mm_sub_epi64(counts, _mm_castpd_si128(at_most)); /* true is -1 */
    }
    count = _mm_cvtsi128_si64(_mm_add_epi64(counts, _mm_unpackhi_epi64(counts, counts)));
#else
    for (int64_t k = 0; k < fanout; k++)
        count += kary_load_racing(sums + k) <= target;
#endif
    return count;
}

/* kary_count_at_most of the running sums of `masses`, which are made for it, eight at a time. */
static inline int64_t kary_leaf_at(const double *masses, int64_t fanout, double target)
{
    const int64_t width = fanout < 8 ? fanout : 8;
    double sums[8], running = 0.0;
    int64_t count = 0;
    for (int64_t first = 0; first < fanout; first += width) {
        for (int64_t k = 0; k < width; k++)
            sums[k] = running += kary_load_racing(masses + first + k);
        count += kary_count_at_most(sums, width, target);
    }
    return count;
}

/* sums[child - 1], or 0 for the first child; without a branch, for the same reason. */
static inline double kary_sum_before(const double *sums, int64_t fanout, int64_t child)
{
    uint64_t bits;
    double sum = kary_load_racing(sums + ((child - 1) & (fanout - 1)));
    memcpy(&bits, &sum, sizeof bits);
    bits &= -(uint64_t)(child > 0);
    memcpy(&sum, &bits, sizeof sum);
    return sum;
}

static inline double kary_max(double a, double b) { return a > b ? a : b; }
static inline double kary_min(double a, double b) { return a < b ? a : b; }
static inline double kary_if_positive(double x) { return x > 0.0 ? x : INFINITY; }

/* The largest of n values and 0. Four chains, because a comparison waits for the one before. */
static inline double kary_largest(const double *values, int64_t n)
{
    double a = 0.0, b = 0.0, c = 0.0, d = 0.0;
    int64_t i = 0;
    for (; i + 4 <= n; i += 4) {
        a = kary_max(kary_load_racing(values + i), a);
        b = kary_max(kary_load_racing(values + i + 1), b);
        c = kary_max(kary_load_racing(values + i + 2), c);
        d = kary_max(kary_load_racing(values + i + 3), d);
    }
    for (; i < n; i++)
        a = kary_max(kary_load_racing(values + i), a);
    return kary_max(kary_max(a, b), kary_max(c, d));
}

/* The smallest of n values among those > 0; infinity if there is none. */
static inline double kary_smallest_positive(const double *values, int64_t n)
{
    double a = INFINITY, b = INFINITY;
    int64_t i = 0;
    for (; i + 2 <= n; i += 2) {
        a = kary_min(kary_if_positive(kary_load_racing(values + i)), a);
        b = kary_min(kary_if_positive(kary_load_racing(values + i + 1)), b);
    }
    for (; i < n; i++)
        a = kary_min(kary_if_positive(kary_load_racing(values + i)), a);
    return kary_min(a, b);
}

#endif
