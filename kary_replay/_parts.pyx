"""What writers change under locks: the tags of rows and the masses of the tree, part by part.

The leaves of the sum tree are cut into at most 64 parts, subtrees of it, and the slots are dealt
out to them, 16 at a time, so that writers of slots near by do not wait for one another.
"Parallel Actors and Learners" (arXiv 2110.01101, section 4.2) has one lock for the leaves and
one for the inner nodes; here each part has one for its leaves and the inner nodes above them,
and one more is for the few nodes above the parts.  A writer holds one lock at a time, of a part,
and none while it copies a row; what the nodes above the parts are owed, it only notes.  Whoever
draws next adds them up.  Beside that readers take no lock: they look at a row's tag before and
after they have copied it.

A holder that dies leaves a part in any state between two stores, and the next one rebuilds it:
rows that the dead were writing are given up, masses of rows that nobody may draw or publish are
0, and inner nodes follow from the leaves.
"""

import os
import threading

import numpy as np

cimport numpy as cnp
from libc.stdint cimport int64_t, uint64_t

from kary_replay._atomic cimport (
    compare_and_swap, fetch_and, fetch_or, load_acquire, load_double, load_relaxed, store_double,
    store_relaxed
)
from kary_replay._extremes cimport block_of_largest, block_of_smallest, largest_in, smallest_in
from kary_replay._lock cimport (
    DEAD, PARTICIPANT, Lock, Participants, acquire, release, state, state_of_number
)
from kary_replay._lock import LOCK_NBYTES, PARTICIPANTS_NBYTES
from kary_replay._sum_tree import part_bits
from kary_replay._tags cimport (
    DRAWABLE, WRITING, given_up, is_drawable, is_written_by, key_of, writer_of
)

cnp.import_array()

cdef extern from "_family.h" nogil:
    void prefetch "kary_prefetch"(const void* address)

cdef extern from "_divide.h" nogil:
    uint64_t reciprocal "kary_reciprocal"(int64_t divisor)
    int64_t divide "kary_divide"(int64_t number, uint64_t reciprocal)

cdef enum:
    MOST_PARTS = 64
    HAND_BITS = 4  # slots that are dealt out to a part at a time: 1 << HAND_BITS
    LINE = 8       # int64s in a cache line


cdef uint64_t ALL = <uint64_t>-1

# Held while a process joins, and during a fork: a child would never see another thread release it.
_joining = threading.Lock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_joining.acquire,
        after_in_parent=_joining.release,
        after_in_child=_joining.release,
    )


cdef class Parts:
    """Tags and masses of `capacity` rows.

    Parameters
    ----------
    memory : the arrays of `layout`, zeros where new
    tree : SumTree of `leaves(capacity, fanout)` leaves, or None, where no row has a mass
    is_shared : bool.  Whether processes share the memory.
    """

    def __init__(self, memory, tree, *, bint is_shared):
        tags = memory["tags"]
        self.memory = memory["locks"], memory["updates"], tags
        self.known = 0
        self.participants = Participants(memory["participants"], is_shared=is_shared)
        self.capacity, self.tree, self.has_tree = len(tags), tree, tree is not None
        self.part_bits = _part_bits(self.capacity) if tree is None else self.tree.part_bits
        self.hand_bits = min(self.part_bits, HAND_BITS)
        self.n_parts = ((self.capacity - 1) >> self.part_bits) + 1
        self.nth_part = reciprocal(self.n_parts)
        if self.has_tree and self.tree.capacity != self.n_parts << self.part_bits:
            raise ValueError(f"tree must have {self.n_parts << self.part_bits} leaves for "
                             f"{self.capacity} rows, got {self.tree.capacity}")
        self.locks = <Lock*><size_t>memory["locks"].ctypes.data
        self.stale = <int64_t*><size_t>memory["updates"].ctypes.data
        self.owed = <uint64_t*>self.stale + LINE
        self.tags = <int64_t*><size_t>tags.ctypes.data

    @staticmethod
    def layout(capacity):
        """The arrays of the memory: name to (shape, dtype)."""
        return {
            "participants": ((PARTICIPANTS_NBYTES,), np.dtype(np.uint8)),
            "locks": (((MOST_PARTS + 1) * LOCK_NBYTES,), np.dtype(np.uint8)),
            "updates": ((2, LINE), np.dtype(np.int64)),  # those that came too late, and are owed
            "tags": ((capacity,), np.dtype(np.int64)),
        }

    @staticmethod
    def leaves(capacity, fanout):
        """How many leaves the tree of `capacity` rows must have: those of whole parts."""
        part = 1 << part_bits(capacity, fanout)
        return -(-capacity // part) * part

    @property
    def total(self):
        """Sum of all masses."""
        self._pay()
        return self.tree.total

    def masses(self, slots=None):
        """A copy of the masses of `slots` (of all in order, if None)."""
        cdef const int64_t[::1] where = np.arange(self.capacity) if slots is None else slots
        return self.tree.masses(self._leaves(where))

    def restore(self, masses):
        """Gives all rows their masses, where nobody else is at work."""
        self.tree.update(self._leaves(np.arange(self.capacity)), masses)

    def draw(self, fractions):
        """As SumTree.draw, of slots; -1 and a mass of 0 where others were just retiring a row."""
        self._pay()
        leaves, masses, total = self.tree.draw(fractions)
        cdef int64_t* place = <int64_t*>cnp.PyArray_DATA(leaves)
        cdef const double* mass = <double*>cnp.PyArray_DATA(masses)
        cdef Py_ssize_t i, n = cnp.PyArray_DIM(leaves, 0)
        with nogil:
            for i in range(n):
                place[i] = self.slot_of(place[i])
                if mass[i] == 0.0:
                    place[i] = -1
        return leaves, masses, total

    def check(self):
        """RuntimeError if an invariant of the tree is broken.  Only at rest."""
        self._pay()
        self.tree.check()

    cdef _leaves(self, const int64_t[::1] slots):
        cdef Py_ssize_t i
        leaves = np.empty(slots.shape[0], np.int64)
        cdef int64_t[::1] leaf = leaves
        for i in range(slots.shape[0]):
            leaf[i] = self.leaf_of(slots[i])
        return leaves

    cdef int64_t part_of(self, int64_t slot) noexcept nogil:
        cdef int64_t hand = slot >> self.hand_bits
        return hand - divide(hand, self.nth_part) * self.n_parts

    cdef int64_t leaf_of(self, int64_t slot) noexcept nogil:
        cdef int64_t hand = slot >> self.hand_bits, below = slot - (hand << self.hand_bits)
        cdef int64_t turn = divide(hand, self.nth_part), part = hand - turn * self.n_parts
        return (part << self.part_bits) + (turn << self.hand_bits) + below

    cdef int64_t slot_of(self, int64_t leaf) noexcept nogil:
        cdef int64_t part = leaf >> self.part_bits, rest = leaf - (part << self.part_bits)
        cdef int64_t turn = rest >> self.hand_bits, below = rest - (turn << self.hand_bits)
        return ((turn * self.n_parts + part) << self.hand_bits) + below

    cdef uint64_t me(self) except 0:
        """This process, as a participant that has no rows from before it joined."""
        cdef uint64_t me = self.participants.me
        if me != self.known:
            with _joining:
                if me != self.known:
                    self._give_up_rows_of_number(me)
                    self.known = me
        return me

    cdef int64_t count(self) except -1:
        """How many rows may be drawn.  Counts that the dead left are made right."""
        cdef int64_t part, rows = 0
        cdef uint64_t me = self.me()
        cdef bint is_left = False
        if self._is_held_by_others(me):  # to look who they are takes some 10 us
            with nogil:
                is_left = self._is_left_by_the_dead(me)
        if is_left:
            self.settle()
        for part in range(self.n_parts):
            rows += load_relaxed(&self.locks[part].count)
        return rows

    cdef bint _is_held_by_others(self, uint64_t me) noexcept nogil:
        """Whether another process holds a part, or the top."""
        cdef int64_t part
        for part in range(self.n_parts):
            if self._holder(part) not in (0, me):
                return True
        return self._holder(MOST_PARTS) not in (0, me)

    cdef bint _is_left_by_the_dead(self, uint64_t me) noexcept nogil:
        """Whether somebody died while it held a part, or the top."""
        cdef int64_t part
        for part in range(self.n_parts):
            if self._is_held_by_the_dead(part, me):
                return True
        return self._is_held_by_the_dead(MOST_PARTS, me)

    cdef bint _is_held_by_the_dead(self, int64_t part, uint64_t me) noexcept nogil:
        cdef uint64_t holder = self._holder(part)
        return holder not in (0, me) and state(&self.participants.table, holder) == DEAD

    cdef uint64_t _holder(self, int64_t part) noexcept nogil:
        return <uint64_t>load_relaxed(<int64_t*>&self.locks[part].word) & PARTICIPANT

    cdef void enter(self, Visit* visit, int64_t slot) noexcept nogil:
        """Holds the lock of the slot's part, and no other."""
        self.enter_part(visit, self.part_of(slot))

    cdef void enter_part(self, Visit* visit, int64_t part) noexcept nogil:
        cdef bint taken_over = False
        if part == visit.part:
            return
        self.exit(visit)
        visit.ticket = acquire(
            &self.locks[part], &self.participants.table, visit.me, &taken_over
        )
        visit.part = part
        if taken_over:
            self._rebuild(part)
            self._owe(visit)

    cdef void _owe(self, Visit* visit) noexcept nogil:
        """Notes, for whoever draws next, that the nodes above the part are to be told."""
        fetch_or(self.owed, <uint64_t>1 << visit.part)

    cdef void exit(self, Visit* visit) noexcept nogil:
        """Tells the nodes of the part what was weighed in it, and releases its lock."""
        cdef bint taken_over = False
        if visit.part < 0:
            return
        self._climb(visit)
        while not release(&self.locks[visit.part], visit.ticket):  # we were stopped for long
            visit.ticket = acquire(
                &self.locks[visit.part], &self.participants.table, visit.me, &taken_over
            )
            self._rebuild(visit.part)
            self._owe(visit)
        visit.part = -1

    cdef _pay(self):
        """Tells the nodes above the parts what they are owed."""
        cdef uint64_t me
        if self.has_tree and load_acquire(<int64_t*>self.owed) != 0:
            me = self.me()
            with nogil:
                self._climb_top(me)

    cdef void _climb_top(self, uint64_t me) noexcept nogil:
        cdef bint taken_over = False
        cdef uint64_t parts, ticket
        cdef Lock* top = &self.locks[MOST_PARTS]
        while True:
            ticket = acquire(top, &self.participants.table, me, &taken_over)
            parts = fetch_and(self.owed, 0)
            self.tree.climb_top(ALL if taken_over else parts)
            if release(top, ticket):
                return
            fetch_or(self.owed, ALL)  # we were stopped for long

    cdef bint is_busy(self, int64_t tag) noexcept nogil:
        """Whether somebody who is alive still writes the row."""
        return tag & WRITING and state_of_number(
            &self.participants.table, writer_of(tag)
        ) != DEAD

    cdef bint change(self, int64_t slot, int64_t before, int64_t after) noexcept nogil:
        """Changes a tag, and the count of its part, whose lock is held.

        False if the tag is another one by now: NEWEST has gone, or the lock was lost long ago.
        """
        cdef int64_t gained
        cdef Lock* lock
        if not compare_and_swap(&self.tags[slot], before, after):
            return False
        gained = (after & DRAWABLE != 0) - (before & DRAWABLE != 0)
        if gained:
            lock = &self.locks[self.part_of(slot)]
            store_relaxed(&lock.count, lock.count + gained)
        return True

    cdef bint retire(
        self, Visit* visit, int64_t slot, int64_t before, int64_t after
    ) noexcept nogil:
        """As `change`, of a row that stays in its place and is not to be drawn any more.

        Whoever was stopped behind the change, so that the lock was lost, may find another row
        there, and must not take that one's mass.
        """
        cdef int64_t leaf = self.leaf_of(slot)
        cdef double mass = load_double(&self.tree.leaves[leaf]) if self.has_tree else 0.0
        if not self.change(slot, before, after):
            return False
        if not self.has_tree or not before & DRAWABLE or not self.tree.swap(leaf, mass, 0.0):
            return True
        if key_of(load_acquire(&self.tags[slot])) != key_of(before):  # both masses were the same
            self.tree.swap(leaf, 0.0, mass)
        self._note(visit, leaf)
        return True

    cdef void weigh(self, Visit* visit, int64_t slot, double mass) noexcept nogil:
        """Gives a row of the part that is visited its mass."""
        cdef int64_t leaf
        if self.has_tree:
            leaf = self.leaf_of(slot)
            self.tree.store(leaf, mass)
            self._note(visit, leaf)

    cdef bint reweigh(self, Visit* visit, int64_t slot, int64_t key, double mass) noexcept nogil:
        """Gives row `key` another mass; False if it may not be drawn any more.

        Whoever was stopped for so long that the lock was lost may find another row there, and
        must not change that one's mass.
        """
        cdef double before
        cdef int64_t leaf = self.leaf_of(slot)
        while True:
            before = load_double(&self.tree.leaves[leaf])
            if not is_drawable(load_acquire(&self.tags[slot]), key):
                return False
            if self.tree.swap(leaf, before, mass):
                break
        if not is_drawable(load_acquire(&self.tags[slot]), key):  # both masses were the same
            self.tree.swap(leaf, mass, before)
            return False
        self._note(visit, leaf)
        return True

    cdef void _note(self, Visit* visit, int64_t leaf) noexcept nogil:
        """Of a leaf whose mass has changed."""
        if visit.n_leaves == visit.room:
            self._climb(visit)
        visit.leaves[visit.n_leaves] = leaf
        visit.n_leaves += 1

    cdef void _climb(self, Visit* visit) noexcept nogil:
        """Tells the nodes of the part above the leaves that have changed."""
        if visit.n_leaves > 0:
            self.tree.climb(visit.part, visit.leaves, visit.n_leaves)
            visit.n_leaves = 0
            self._owe(visit)

    cdef void prefetch(self, int64_t slot) noexcept nogil:
        """Asks for the tag of a row, and for what an update of its mass reads."""
        prefetch(&self.tags[slot])
        if self.has_tree:
            self.tree.prefetch(self.leaf_of(slot))

    cdef void order(self, const int64_t* slots, Py_ssize_t n, int64_t* order) noexcept nogil:
        """Lists 0 .. n - 1 so that slots[order[i]] go from part to part, each in its order.

        The part of the first slot comes first, and the others behind it: if all went through the
        parts from the same one on, they would soon wait for one another at each.
        """
        cdef Py_ssize_t[MOST_PARTS + 1] begin
        cdef Py_ssize_t i, turn
        cdef int64_t first = self.part_of(slots[0]) if n > 0 else 0
        for turn in range(self.n_parts + 1):
            begin[turn] = 0
        for i in range(n):
            begin[self._turn(slots[i], first) + 1] += 1
        for turn in range(self.n_parts):
            begin[turn + 1] += begin[turn]
        for i in range(n):
            turn = self._turn(slots[i], first)
            order[begin[turn]] = i
            begin[turn] += 1

    cdef int64_t _turn(self, int64_t slot, int64_t first) noexcept nogil:
        """How many parts that of the slot comes behind the first one."""
        cdef int64_t turn = self.part_of(slot) - first
        return turn if turn >= 0 else turn + self.n_parts

    def largest(self):
        """As SumTree.largest; tightens bounds under the lock of their part."""
        cdef int64_t block
        cdef double mass
        cdef Visit visit = Visit(self.me(), -1, 0, NULL, 0, 0)
        with nogil:
            while True:
                block = block_of_largest(self.tree.upper)
                mass = largest_in(self.tree.leaves, block, self.tree.block_bits)
                if mass == load_double(&self.tree.upper[block]):
                    break
                self._tighten(&visit, block)
        return mass

    def smallest(self):
        """As SumTree.smallest; tightens bounds under the lock of their part."""
        cdef int64_t block
        cdef double mass
        cdef Visit visit = Visit(self.me(), -1, 0, NULL, 0, 0)
        with nogil:
            while True:
                block = block_of_smallest(self.tree.lower)
                mass = smallest_in(self.tree.leaves, block, self.tree.block_bits)
                if mass == load_double(&self.tree.lower[block]):
                    break
                self._tighten(&visit, block)
        return mass

    cdef void _tighten(self, Visit* visit, int64_t block) noexcept nogil:
        self.enter_part(visit, block >> (self.part_bits - self.tree.block_bits))
        self.tree.tighten(block)
        self.exit(visit)

    def settle(self):
        """Lets sums be those of the leaves, whatever the dead left undone; waits for the others.

        Returns whether there is a row that can be drawn, or that somebody alive is writing.
        O(capacity).
        """
        cdef int64_t part, slot, word
        cdef bint has_rows = False
        cdef Visit visit = Visit(self.me(), -1, 0, NULL, 0, 0)
        with nogil:
            for part in range(self.n_parts):
                self.enter_part(&visit, part)
            self.exit(&visit)
            fetch_or(self.owed, ALL)
            if self.has_tree:
                self._climb_top(visit.me)
            for slot in range(self.capacity):
                word = load_acquire(&self.tags[slot])
                if self.is_busy(word) or word & DRAWABLE and (
                    not self.has_tree or load_double(&self.tree.leaves[self.leaf_of(slot)]) > 0.0
                ):
                    has_rows = True
                    break
        return has_rows

    def recover(self):
        """Makes all parts whole again where nobody else is at work.

        Raises ValueError for masses that nobody can have written.
        """
        cdef int64_t part
        if self.has_tree:
            self.tree.rebuild()
        self.memory[0][:] = 0
        with nogil:
            for part in range(self.n_parts):
                self._rebuild(part)
            if self.has_tree:
                self.tree.climb_top(ALL)

    cdef _give_up_rows_of_number(self, uint64_t me):
        """Of whoever had the number before, and died: perhaps when one had its mass already."""
        cdef int64_t slot, word, leaf, number = me & 0xff
        cdef Visit visit = Visit(me, -1, 0, &leaf, 0, 1)
        with nogil:
            for slot in range(self.capacity):
                if not is_written_by(load_acquire(&self.tags[slot]), number):
                    continue
                self.enter(&visit, slot)
                word = load_acquire(&self.tags[slot])
                while is_written_by(word, number):
                    if self.change(slot, word, given_up(word)):
                        self.weigh(&visit, slot, 0.0)
                    word = load_acquire(&self.tags[slot])
            self.exit(&visit)

    cdef void _rebuild(self, int64_t part) noexcept nogil:
        cdef int64_t leaf, slot, rows = 0
        for leaf in range(part << self.part_bits, (part + 1) << self.part_bits):
            slot = self.slot_of(leaf)
            if slot < self.capacity:
                rows += self._settle_row(slot, leaf)
        store_relaxed(&self.locks[part].count, rows)
        if self.has_tree:
            self.tree.rebuild_part(part)

    cdef bint _settle_row(self, int64_t slot, int64_t leaf) noexcept nogil:
        """Gives up a row that the dead were writing; returns whether the row may be drawn."""
        cdef int64_t word = load_acquire(&self.tags[slot])
        while word & WRITING and not self.is_busy(word):
            compare_and_swap(&self.tags[slot], word, given_up(word))
            word = load_acquire(&self.tags[slot])
        if self.has_tree and not word & (DRAWABLE | WRITING):  # or its writer comes back
            store_double(&self.tree.leaves[leaf], 0.0)
        return word & DRAWABLE != 0


cdef int64_t _part_bits(int64_t capacity) noexcept:
    cdef int64_t bits = 3
    while (capacity - 1) >> bits >= MOST_PARTS:
        bits += 1
    return bits
