/* Division by a number that is known long before: a multiplication, at a tenth of the time. */
#ifndef KARY_REPLAY_DIVIDE_H
#define KARY_REPLAY_DIVIDE_H

#include <stdint.h>

/* Of a divisor in 2 .. 64; 0 for 1. */
static inline uint64_t kary_reciprocal(int64_t divisor)
{
    return divisor == 1 ? 0 : UINT64_MAX / (uint64_t)divisor + 1;
}

/* The whole quotient: exact for numbers in 0 .. 2^58, since the reciprocal is too large by less
 * than 64 parts of 2^64.
 */
static inline int64_t kary_divide(int64_t number, uint64_t reciprocal)
{
    if (reciprocal == 0)
        return number;
    return (int64_t)((unsigned __int128)number * reciprocal >> 64);
}

#endif
