"""The largest and the smallest positive leaf, from bounds that updates only widen.

The leaves are cut into blocks of `1 << bits`. An update widens the bounds of its block and
reads nothing; a query takes the block with the best bound, and where the leaves do not reach
that bound any more, tightens it and looks again.  Widening is O(1) a leaf; a query is
O(sqrt(capacity)) plus as much for each bound that it tightens, at most one for each leaf
updated since.  Bounds are no part of what the tree says: they may be wide, never narrow.
"""

from libc.stdint cimport int64_t

from kary_replay._atomic cimport load_racing, store_racing

cdef extern from "_family.h" nogil:
    double largest_of "kary_largest"(const double* values, int64_t n)
    double smallest_of "kary_smallest_positive"(const double* values, int64_t n)


cdef inline int64_t block_bits(int64_t capacity) noexcept:
    """Blocks of about sqrt(capacity) leaves, of 64 (eight cache lines) at least."""
    cdef int64_t bits = 6
    while (<int64_t>1 << (2 * bits)) < capacity:
        bits += 1
    return bits


cdef inline void widen(
    double[::1] upper, double[::1] lower, int64_t block, double mass
) noexcept nogil:
    if mass > upper[block]:
        store_racing(&upper[block], mass)
    if 0.0 < mass < lower[block]:
        store_racing(&lower[block], mass)


cdef inline int64_t block_size(double[::1] leaves, int64_t block, int64_t bits) noexcept nogil:
    """Leaves in a block; the last one may be shorter."""
    return min(<int64_t>1 << bits, leaves.shape[0] - (block << bits))


cdef inline int64_t block_of_largest(double[::1] upper) noexcept nogil:
    """The block with the largest bound, or any if somebody changes them."""
    cdef int64_t block = 0
    cdef double best = largest_of(&upper[0], upper.shape[0])
    while block < upper.shape[0] - 1 and load_racing(&upper[block]) != best:
        block += 1
    return block


cdef inline int64_t block_of_smallest(double[::1] lower) noexcept nogil:
    """The block with the smallest bound, or any if somebody changes them."""
    cdef int64_t block = 0
    cdef double best = smallest_of(&lower[0], lower.shape[0])
    while block < lower.shape[0] - 1 and load_racing(&lower[block]) != best:
        block += 1
    return block


cdef inline double largest_in(double[::1] leaves, int64_t block, int64_t bits) noexcept nogil:
    return largest_of(&leaves[block << bits], block_size(leaves, block, bits))


cdef inline double smallest_in(double[::1] leaves, int64_t block, int64_t bits) noexcept nogil:
    return smallest_of(&leaves[block << bits], block_size(leaves, block, bits))
