"""The face of _parts.pyx to the ring."""

from libc.stdint cimport int64_t, uint64_t

from kary_replay._lock cimport Lock, Participants
from kary_replay._sum_tree cimport SumTree

cdef struct Visit:
    uint64_t me        # the participant
    int64_t part       # whose lock is held; -1: none
    uint64_t ticket    # of the lock
    int64_t* leaves    # written since the nodes above were told
    Py_ssize_t n_leaves, room

cdef class Parts:
    cdef Participants participants
    cdef SumTree tree
    cdef bint has_tree
    cdef int64_t capacity
    cdef int64_t part_bits     # of a leaf within its part
    cdef int64_t hand_bits     # of a slot among those that are dealt out together
    cdef int64_t n_parts
    cdef uint64_t nth_part     # its reciprocal
    cdef Lock* locks           # of each part, with the count of its drawable rows; then the top
    cdef int64_t* stale        # updates that came too late
    cdef int64_t* tags
    cdef uint64_t* owed        # parts, a bit each, whose sums the nodes above have not heard of
    cdef object memory         # where all these lie
    cdef uint64_t known        # the participant that this process was when it last looked

    cdef uint64_t me(self) except 0
    cdef int64_t count(self) except -1
    cdef bint _is_held_by_others(self, uint64_t me) noexcept nogil
    cdef bint _is_left_by_the_dead(self, uint64_t me) noexcept nogil
    cdef _leaves(self, const int64_t[::1] slots)
    cdef int64_t part_of(self, int64_t slot) noexcept nogil
    cdef int64_t leaf_of(self, int64_t slot) noexcept nogil
    cdef int64_t slot_of(self, int64_t leaf) noexcept nogil
    cdef void _note(self, Visit* visit, int64_t leaf) noexcept nogil
    cdef void _climb(self, Visit* visit) noexcept nogil
    cdef void enter_part(self, Visit* visit, int64_t part) noexcept nogil
    cdef bint _settle_row(self, int64_t slot, int64_t leaf) noexcept nogil
    cdef bint _is_held_by_the_dead(self, int64_t part, uint64_t me) noexcept nogil
    cdef uint64_t _holder(self, int64_t part) noexcept nogil
    cdef void enter(self, Visit* visit, int64_t slot) noexcept nogil
    cdef void exit(self, Visit* visit) noexcept nogil
    cdef void _tighten(self, Visit* visit, int64_t block) noexcept nogil
    cdef void _owe(self, Visit* visit) noexcept nogil
    cdef _pay(self)
    cdef void _climb_top(self, uint64_t me) noexcept nogil
    cdef bint is_busy(self, int64_t tag) noexcept nogil
    cdef bint change(self, int64_t slot, int64_t before, int64_t after) noexcept nogil
    cdef bint retire(
        self, Visit* visit, int64_t slot, int64_t before, int64_t after
    ) noexcept nogil
    cdef void weigh(self, Visit* visit, int64_t slot, double mass) noexcept nogil
    cdef bint reweigh(self, Visit* visit, int64_t slot, int64_t key, double mass) noexcept nogil
    cdef void order(self, const int64_t* slots, Py_ssize_t n, int64_t* order) noexcept nogil
    cdef int64_t _turn(self, int64_t slot, int64_t first) noexcept nogil
    cdef void prefetch(self, int64_t slot) noexcept nogil
    cdef _give_up_rows_of_number(self, uint64_t me)
    cdef void _rebuild(self, int64_t part) noexcept nogil
