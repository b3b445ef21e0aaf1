"""What the ring needs of a tree that several writers share: see Ring, which holds the locks."""

from libc.stdint cimport int64_t, uint64_t

cdef enum:
    MAX_LEVELS = 63

cdef class SumTree:
    cdef readonly int64_t capacity
    cdef readonly int64_t fanout
    cdef int64_t fanout_bits
    cdef int64_t depth                  # number of levels; level depth - 1 is the leaves
    cdef int64_t start[MAX_LEVELS + 1]  # nodes of level i: start[i] .. start[i + 1] - 1
    cdef int64_t part_level             # its nodes are the roots of the parts; -1: one part
    cdef int64_t part_bits              # leaf >> part_bits is the part of a leaf
    cdef double[::1] mass               # the mass of each node, level by level
    cdef double[::1] sums               # running sums within each family; inner levels only
    cdef double[::1] leaves             # the last level of `mass`
    cdef double[::1] upper, lower       # bounds of each block of leaves, see _extremes.pxd
    cdef double* root                   # the total
    cdef object block                   # the array in which all of these lie
    cdef int64_t block_bits

    cdef _lay_out(self, memory)
    cdef _forget_bounds(self)
    cdef _check_leaves(self, const int64_t[::1] leaves)
    cdef _update(self, const int64_t[::1] leaves, const double* masses, Py_ssize_t step)
    cdef _set(self, const int64_t[::1] leaves, const double* masses, Py_ssize_t step)
    cdef void _write(
        self, const int64_t[::1] leaves, const double* masses, Py_ssize_t step, int64_t* families
    ) noexcept nogil
    cdef int64_t _parents(
        self, const int64_t* nodes, int64_t count, int64_t level, int64_t* distinct_parents
    ) noexcept nogil
    cdef void _recompute(self, const int64_t* families, int64_t count, int64_t level) noexcept nogil
    cdef void prefetch(self, int64_t leaf) noexcept nogil
    cdef void tighten(self, int64_t block) noexcept nogil
    cdef void store(self, int64_t leaf, double mass) noexcept nogil
    cdef bint swap(self, int64_t leaf, double before, double mass) noexcept nogil
    cdef void climb(self, int64_t part, int64_t* leaves, int64_t count) noexcept nogil
    cdef void _sum_up(self, int64_t part) noexcept nogil
    cdef void climb_top(self, uint64_t parts) noexcept nogil
    cdef void rebuild_part(self, int64_t part) noexcept nogil
    cdef int64_t _families(self, int64_t level) noexcept nogil
    cdef void _recompute_families(self, int64_t level, int64_t first, int64_t end) noexcept nogil
    cdef double _family_total(self, int64_t family, int64_t level) noexcept nogil
    cdef void _find(
        self, const double[::1] targets, double scale, double total, int64_t[::1] out
    ) noexcept nogil
    cdef void _find_by(
        self, const double[::1] targets, double scale, double total, int64_t[::1] out,
        const int64_t fanout
    ) noexcept nogil
    cdef void _to_families(
        self, const double[::1] targets, double scale, double total, Py_ssize_t begin,
        int64_t* node, double* rest, const int64_t fanout
    ) noexcept nogil
    cdef void _to_leaves(
        self, int64_t[::1] out, Py_ssize_t begin, const int64_t* family, const double* rest,
        const int64_t fanout
    ) noexcept nogil
    cdef double _range_sum(self, int64_t first, int64_t last) noexcept nogil
