"""The K-ary sum tree of "Parallel Actors and Learners" (arXiv 2110.01101, section 4).

Leaves hold masses. The mass of an inner node is the sum of its family (its `fanout` children,
added left to right), so every inner node is a function of the leaves alone: a parent is
recomputed from its children and never nudged by a difference.  fanout 2, 5 leaves, as `mass`:

    level 0        3         12            start[0] = 0     (the root itself is `total` = 15)
    level 1      3    0    12    0         start[1] = 2
    level 2     1 2  0 0  12 .  . .        start[2] = 6     the leaves, padded with zeros

(Here a family is two nodes.)  Beside each inner family lie its running sums, `sums`: a draw
compares them all at once with its target, one cache line a level for fanout 8, and goes down
into the first child whose running sum is larger.
"""

import numpy as np

cimport cython
from libc.float cimport DBL_EPSILON, DBL_MAX
from libc.math cimport INFINITY, isfinite
from libc.stdint cimport INT64_MAX, int64_t, uint64_t
from libc.stdlib cimport free, malloc

from kary_replay._atomic cimport (
    compare_and_swap_double, load_double, load_racing, store_double, store_racing
)
from kary_replay._extremes cimport (
    block_bits, block_of_largest, block_of_smallest, largest_in, smallest_in, widen
)

cdef extern from "_family.h" nogil:
    int64_t CACHE_LINE "KARY_CACHE_LINE"
    void prefetch "kary_prefetch"(const void* address)
    void prefetch_family "kary_prefetch_family"(const double* family, int64_t fanout)
    double below "kary_below"(double x)
    int64_t leaf_at "kary_leaf_at"(const double* masses, int64_t fanout, double target)
    double sum_before "kary_sum_before"(const double* sums, int64_t fanout, int64_t child)
    int64_t count_at_most "kary_count_at_most"(const double* sums, int64_t fanout, double target)

cdef enum:
    CHUNK = 32       # targets that go down together: enough to overlap their cache misses
    AHEAD = 8        # families between a prefetch and its use
    MOST_PARTS = 64  # each with a lock of its own, where a tree is shared
    ROOT_LINE = 8    # doubles: the total has a cache line for itself

# Beyond it, the bytes of all nodes could not be counted in an int64.
cdef int64_t MOST_LEAVES = <int64_t>1 << 56

# The smallest double > 1: numbers below it are at most 1.
cdef double ABOVE_ONE = 1.0 + DBL_EPSILON

# What may stand for the masses of all leaves of an update.
cdef tuple NUMBERS = (float, int, np.number)
cdef object ARRAY = np.ndarray

# What the mass of a parent holds while it waits to be recomputed; no sum of masses is negative.
cdef double PENDING = -1.0


@cython.final
cdef class SumTree:
    """Masses of `capacity` leaves and their sums, all 0 at first.

    Parameters
    ----------
    capacity : int >= 1
        Number of leaves.
    fanout : int, a power of two >= 2
        Children of a node.  8 doubles fill one cache line.
    memory : float64 array of `doubles(capacity, fanout)` elements, or None
        Where all of the tree lies, at the beginning of a cache line; None for memory of its own.

    fresh : bool
        Whether the memory holds zeros; else a tree that somebody made there before.

    A tree is for one thread at a time.  `copy.deepcopy` and `pickle` keep every leaf, and make a
    tree with memory of its own.
    """

    def __cinit__(self, capacity, fanout=8, *, memory=None, fresh=True):
        capacity, fanout = _checked_sizes(capacity, fanout)
        self.capacity, self.fanout = capacity, fanout
        self.fanout_bits = fanout.bit_length() - 1
        widths = _widths(capacity, fanout)
        self.depth = len(widths)
        for level, width in enumerate(widths):
            self.start[level + 1] = self.start[level] + width
        self.part_level, self.part_bits, self.block_bits = _cuts(widths, capacity, fanout)
        cdef int64_t doubles = _doubles(widths, capacity, self.block_bits)
        if memory is None:
            self.block = np.zeros(doubles + CACHE_LINE // 8)
            first = -self.block.ctypes.data % CACHE_LINE // 8
            memory = self.block[first : first + doubles]
        else:
            self.block = _checked_memory(memory, doubles)
        self._lay_out(memory)
        if fresh:
            self._forget_bounds()

    cdef _lay_out(self, memory):
        """Cuts the memory up: all nodes, the running sums of the inner ones, the bounds."""
        cdef double[::1] total = memory[len(memory) - ROOT_LINE:]
        nodes, inner = self.start[self.depth], self.start[self.depth - 1]
        blocks = _blocks(self.capacity, self.block_bits)
        self.mass = memory[:nodes]
        self.leaves = memory[inner:nodes]
        self.sums = memory[nodes : nodes + inner]
        self.upper = memory[nodes + inner : nodes + inner + blocks]
        self.lower = memory[nodes + inner + blocks : nodes + inner + 2 * blocks]
        self.root = &total[0]

    cdef _forget_bounds(self):
        """Bounds of leaves that are all 0."""
        self.upper[:] = 0.0
        self.lower[:] = INFINITY

    @staticmethod
    def doubles(capacity, fanout=8):
        """How many float64 a tree of `capacity` leaves takes: what `memory` must have."""
        capacity, fanout = _checked_sizes(capacity, fanout)
        widths = _widths(capacity, fanout)
        return _doubles(widths, capacity, _cuts(widths, capacity, fanout)[2])

    def __reduce__(self):
        return _rebuilt, (self.capacity, self.fanout, self.masses())

    def __repr__(self):
        return f"SumTree(capacity={self.capacity}, fanout={self.fanout}, total={self.total})"

    @property
    def total(self):
        """Sum of all leaves."""
        return load_double(self.root)

    @property
    def nbytes(self):
        """Bytes of the memory; of its own, with what aligns it."""
        return self.block.nbytes

    def rebuild(self):
        """Recompute everything from the leaves in the memory, whatever else it holds.

        For memory that outlived its tree, perhaps in the middle of an update.  O(capacity).

        Raises
        ------
        ValueError
            A leaf that is NaN, infinite or negative; a total beyond float64; something in the
            padding behind the last leaf.
        """
        cdef int64_t part, level, node
        _checked_peak(&self.leaves[0], 1, self.capacity)
        if np.asarray(self.leaves[self.capacity:]).any():
            raise ValueError("the padding behind the last leaf must be 0")
        with nogil:
            for level in range(1, self.depth):
                for node in range(self.start[level - 1] + self._families(level), self.start[level]):
                    self.mass[node] = 0.0  # the padding
            for part in range(((self.capacity - 1) >> self.part_bits) + 1):
                self.rebuild_part(part)
            self.climb_top(<uint64_t>-1)
        if not isfinite(self.root[0]):
            self.root[0] = 0.0
            raise ValueError("masses must have a finite total, and theirs is beyond float64")

    def update(self, leaves, masses):
        """Set the masses of leaves.  All or nothing; the last of duplicate leaves wins.

        O(distinct families) on each of the log(capacity) levels.

        Parameters
        ----------
        leaves : array-like of int, shape (n,)
        masses : array-like of float, shape (n,), finite and >= 0; or a number, for all of them

        Raises
        ------
        IndexError
            A leaf outside 0 .. capacity - 1.
        ValueError
            A mass that is NaN, infinite or negative; shapes that differ; a total beyond float64.
        TypeError
            Leaves that are not integers, masses that are not numbers.
        """
        cdef const int64_t[::1] where = _as_leaves(leaves)
        cdef const double[::1] what
        cdef double one
        if type(masses) is not ARRAY and isinstance(masses, NUMBERS):  # the second is slow
            one = masses if isinstance(masses, float) else _as_doubles("masses", masses)[0]
            self._update(where, &one, 0)
            return
        what = _as_doubles("masses", masses)
        if where.shape[0] != what.shape[0]:
            raise ValueError(f"leaves and masses must have one length, "
                             f"got {where.shape[0]} and {what.shape[0]}")
        if where.shape[0] > 0:
            self._update(where, &what[0], 1)

    def find(self, targets):
        """The smallest leaf whose running sum over the leaves is larger than the target.

        O(fanout * log(capacity)) each.  A leaf of mass 0 is never returned.

        Parameters
        ----------
        targets : array-like of float, any shape, in [0, total)

        Returns
        -------
        int64 array of the same shape

        Raises
        ------
        ValueError
            A target outside [0, total).
        """
        shape = None
        if getattr(targets, "ndim", None) != 1:
            shape, targets = np.shape(targets), np.ravel(targets)
        cdef const double[::1] flat = _as_doubles("targets", targets)
        cdef Py_ssize_t bad = _first_outside(flat, self.root[0])
        if bad >= 0:
            raise ValueError(f"targets must be in [0, total), "
                             f"got {flat[bad]} at position {bad}, total is {self.root[0]}")
        found = np.empty(flat.shape[0], np.int64)
        cdef int64_t[::1] out = found
        with nogil:
            self._find(flat, 1.0, self.root[0], out)
        return found if shape is None else found.reshape(shape)

    def draw(self, fractions):
        """`find` at fractions of the total, with what a sampler needs of the same moment.

        A product that rounds up to the total counts as the largest float below it.

        Parameters
        ----------
        fractions : array-like of float, shape (n,), in [0, 1]

        Returns
        -------
        leaves : int64 array, shape (n,)
        masses : float64 array, shape (n,)
        total : float

        Raises
        ------
        ValueError
            The total is 0, or a fraction is outside [0, 1].
        """
        cdef const double[::1] flat = _as_doubles("fractions", fractions)
        cdef Py_ssize_t bad = _first_outside(flat, ABOVE_ONE)
        if bad >= 0:
            raise ValueError(f"fractions must be in [0, 1], got {flat[bad]} at position {bad}")
        cdef double total = load_double(self.root)
        if total <= 0.0:
            raise ValueError("cannot draw from a tree whose total is 0")
        found, masses = np.empty(flat.shape[0], np.int64), np.empty(flat.shape[0])
        cdef int64_t[::1] out = found
        cdef double[::1] mass = masses
        with nogil:
            self._find(flat, total, total, out)
            _gather(self.leaves, out, mass)
        return found, masses, total

    def masses(self, leaves=None):
        """A copy of the masses of `leaves` (of all in order, if None).  IndexError as `update`."""
        if leaves is None:
            return np.array(self.leaves[: self.capacity])
        cdef const int64_t[::1] where = _as_leaves(leaves)
        self._check_leaves(where)
        copy = np.empty(where.shape[0])
        cdef double[::1] out = copy
        with nogil:
            _gather(self.leaves, where, out)
        return copy

    def sum(self, start=0, stop=None):
        """Sum of the leaves start .. stop - 1.  O(fanout * log(capacity)).

        Raises IndexError unless 0 <= start <= stop <= capacity.
        """
        start = _as_int("start", start)
        stop = self.capacity if stop is None else _as_int("stop", stop)
        if not 0 <= start <= stop <= self.capacity:
            raise IndexError(f"start and stop must be 0 <= start <= stop <= {self.capacity}, "
                             f"got {start} and {stop}")
        if stop == self.capacity:  # the padding is zeros, and whole families add up faster
            stop = self.leaves.shape[0]
        return self._range_sum(start, stop)

    def largest(self):
        """The largest mass, 0 if all are 0.  O(sqrt(capacity)), see _extremes.pxd."""
        cdef int64_t block
        while True:
            block = block_of_largest(self.upper)
            mass = largest_in(self.leaves, block, self.block_bits)
            if mass == load_double(&self.upper[block]):
                return mass
            self.tighten(block)

    def smallest(self):
        """The smallest mass > 0; infinity if all are 0.  O(sqrt(capacity)), see _extremes.pxd."""
        cdef int64_t block
        while True:
            block = block_of_smallest(self.lower)
            mass = smallest_in(self.leaves, block, self.block_bits)
            if mass == load_double(&self.lower[block]):
                return mass
            self.tighten(block)

    cdef void tighten(self, int64_t block) noexcept nogil:
        store_double(&self.upper[block], largest_in(self.leaves, block, self.block_bits))
        store_double(&self.lower[block], smallest_in(self.leaves, block, self.block_bits))

    def check(self):
        """Recompute every invariant, O(capacity).  RuntimeError names the first broken one."""
        leaves, mass, sums = np.asarray(self.leaves), np.asarray(self.mass), np.asarray(self.sums)
        if not (np.isfinite(leaves) & (leaves >= 0.0)).all():
            raise RuntimeError("a leaf is negative, infinite or NaN")
        if leaves[self.capacity:].any():
            raise RuntimeError("the padding behind the last leaf is not 0")
        for level in range(self.depth - 1, -1, -1):
            families = mass[self.start[level]:self.start[level + 1]].reshape(-1, self.fanout)
            running = np.cumsum(families, axis=1)
            here = sums[self.start[level]:self.start[level + 1]]
            if level < self.depth - 1 and not np.array_equal(here, running.ravel()):
                raise RuntimeError(f"a running sum of level {level} is not that of its family")
            self._check_parents(level, running[:, -1])
        self._check_bounds(leaves)

    def _check_parents(self, int64_t level, totals):
        if level == 0:
            if totals[0] != self.root[0]:
                raise RuntimeError(
                    f"total is {self.root[0]}, but its children add up to {totals[0]}"
                )
            return
        parents = np.asarray(self.mass)[self.start[level - 1]:self.start[level]]
        if not np.array_equal(parents[:totals.size], totals) or parents[totals.size:].any():
            raise RuntimeError(f"a node of level {level - 1} is not the sum of its children")

    def _check_bounds(self, leaves):
        blocks = np.zeros(self.upper.shape[0] << self.block_bits)
        blocks[:self.capacity] = leaves[:self.capacity]
        blocks = blocks.reshape(self.upper.shape[0], -1)
        if (blocks > np.asarray(self.upper)[:, None]).any():
            raise RuntimeError("a leaf is larger than the upper bound of its block")
        if ((blocks > 0.0) & (blocks < np.asarray(self.lower)[:, None])).any():
            raise RuntimeError("a leaf is smaller than the lower bound of its block")

    cdef _check_leaves(self, const int64_t[::1] leaves):
        cdef Py_ssize_t bad = _first_beyond(leaves, self.capacity)
        if bad >= 0:
            raise IndexError(f"leaves must be in 0 .. {self.capacity - 1}, "
                             f"got {leaves[bad]} at position {bad}")

    cdef _update(self, const int64_t[::1] leaves, const double* masses, Py_ssize_t step):
        """`update` to masses[i * step], so that step 0 gives all leaves one mass."""
        cdef const double[::1] before
        self._check_leaves(leaves)
        cdef double peak = _checked_peak(masses, step, leaves.shape[0])
        if self.root[0] + leaves.shape[0] * peak <= DBL_MAX / 2:
            self._set(leaves, masses, step)
            return
        # Only enormous masses come here: the total may overflow, so keep the way back open.
        before = self.masses(leaves)
        self._set(leaves, masses, step)
        if not isfinite(self.root[0]):
            self._set(leaves, &before[0], 1)
            raise ValueError("masses must have a finite total, and theirs is beyond float64")

    cdef _set(self, const int64_t[::1] leaves, const double* masses, Py_ssize_t step):
        cdef int64_t* families = <int64_t*>malloc(leaves.shape[0] * sizeof(int64_t))
        if families == NULL and leaves.shape[0] > 0:
            raise MemoryError(f"no memory for an update of {leaves.shape[0]} leaves")
        with nogil:
            self._write(leaves, masses, step, families)
        free(families)

    cdef void _write(
        self, const int64_t[::1] leaves, const double* masses, Py_ssize_t step, int64_t* families
    ) noexcept nogil:
        """Writes the leaves, then recomputes each distinct family above them once."""
        cdef double[::1] mass = self.leaves
        cdef double[::1] upper = self.upper
        cdef double[::1] lower = self.lower
        cdef int64_t level, count = 0
        cdef Py_ssize_t i
        for i in range(leaves.shape[0]):
            prefetch(&mass[leaves[i]])
        for i in range(leaves.shape[0]):
            mass[leaves[i]] = masses[i * step]
            widen(upper, lower, leaves[i] >> self.block_bits, masses[i * step])
        if self.depth > 1 and leaves.shape[0] > 0:
            count = self._parents(&leaves[0], leaves.shape[0], self.depth - 1, families)
        for level in range(self.depth - 1, 0, -1):
            self._recompute(families, count, level)
            if level > 1:
                count = self._parents(families, count, level - 1, families)
        store_double(self.root, self._family_total(0, 0))

    cdef int64_t _parents(
        self, const int64_t* nodes, int64_t count, int64_t level, int64_t* distinct_parents
    ) noexcept nogil:
        """Lists the distinct parents of nodes of `level`, perhaps in place; returns how many."""
        cdef double* parents = &self.mass[self.start[level - 1]]
        cdef int64_t bits = self.fanout_bits
        cdef int64_t i, parent, distinct = 0
        for i in range(count):
            parent = nodes[i] >> bits
            distinct_parents[distinct] = parent  # no branch: it would be a guess
            distinct += parents[parent] != PENDING
            parents[parent] = PENDING
        return distinct

    cdef void _recompute(
        self, const int64_t* families, int64_t count, int64_t level
    ) noexcept nogil:
        """Sets the parents' masses from their families on `level`."""
        cdef double[::1] mass = self.mass
        cdef int64_t parents = self.start[level - 1], here = self.start[level]
        cdef int64_t bits = self.fanout_bits
        cdef int64_t i
        for i in range(count):
            if i + AHEAD < count:
                prefetch(&mass[here + (families[i + AHEAD] << bits)])
            mass[parents + families[i]] = self._family_total(families[i], level)

    cdef void prefetch(self, int64_t leaf) noexcept nogil:
        """Asks for a leaf and its parent's family; what lies higher is in the caches."""
        cdef int64_t parent
        prefetch(&self.leaves[leaf])
        if self.depth > 1:
            parent = self.start[self.depth - 2] + (leaf >> self.fanout_bits)
            prefetch(&self.mass[parent])
            prefetch(&self.sums[parent])

    cdef void store(self, int64_t leaf, double mass) noexcept nogil:
        """Sets a leaf; `climb` tells the nodes above."""
        store_double(&self.leaves[leaf], mass)
        widen(self.upper, self.lower, leaf >> self.block_bits, mass)

    cdef bint swap(self, int64_t leaf, double before, double mass) noexcept nogil:
        """`store`, if the leaf has still the mass `before`."""
        if not compare_and_swap_double(&self.leaves[leaf], before, mass):
            return False
        widen(self.upper, self.lower, leaf >> self.block_bits, mass)
        return True

    cdef void climb(self, int64_t part, int64_t* leaves, int64_t count) noexcept nogil:
        """Recomputes what lies above `leaves` of one part, and overwrites their list.

        The root of a part is read by whoever climbs to the top, so it never waits as PENDING.
        """
        cdef int64_t level
        for level in range(self.depth - 1, self.part_level + 1, -1):
            count = self._parents(leaves, count, level, leaves)
            self._recompute(leaves, count, level)
        self._sum_up(part)

    cdef void _sum_up(self, int64_t part) noexcept nogil:
        """Recomputes the root of a part: where there is but one, that of the tree."""
        if self.part_level < 0:
            store_double(self.root, self._family_total(0, 0))
        else:
            store_double(
                &self.mass[self.start[self.part_level] + part],
                self._family_total(part, self.part_level + 1),
            )

    cdef void climb_top(self, uint64_t parts) noexcept nogil:
        """Recomputes what lies above the parts of which there is a bit."""
        cdef int64_t level, family
        cdef uint64_t parents, one = 1
        if self.part_level < 0:
            return
        for level in range(self.part_level, 0, -1):
            parents = 0
            for family in range(self._families(level)):
                if parts >> (family << self.fanout_bits) & ((one << self.fanout) - 1):
                    self._recompute_families(level, family, family + 1)
                    parents |= one << family
            parts = parents
        store_double(self.root, self._family_total(0, 0))

    cdef void rebuild_part(self, int64_t part) noexcept nogil:
        """Recomputes bounds and nodes of a part from its leaves alone."""
        cdef int64_t level, bits, block, first = part << self.part_bits
        cdef int64_t end = min(self.capacity, (part + 1) << self.part_bits)
        for block in range(first >> self.block_bits, ((end - 1) >> self.block_bits) + 1):
            self.tighten(block)
        for level in range(self.depth - 1, self.part_level + 1, -1):
            bits = (level - 1 - self.part_level) * self.fanout_bits
            self._recompute_families(level, part << bits, (part + 1) << bits)
        self._sum_up(part)

    cdef int64_t _families(self, int64_t level) noexcept nogil:
        return (self.start[level + 1] - self.start[level]) >> self.fanout_bits

    cdef void _recompute_families(self, int64_t level, int64_t first, int64_t end) noexcept nogil:
        """Sets the parents of the families first .. end - 1 of `level`, as many as there are."""
        cdef int64_t family, parents = self.start[level - 1]
        for family in range(first, min(end, self._families(level))):
            self.mass[parents + family] = self._family_total(family, level)

    cdef double _family_total(self, int64_t family, int64_t level) noexcept nogil:
        """Adds up a family, left to right, and rewrites its running sums if it is an inner one."""
        cdef int64_t first = self.start[level] + (family << self.fanout_bits)
        cdef bint inner = level < self.depth - 1
        if self.fanout == 8:
            return _add_up(self.mass, self.sums, first, 8, inner)
        return _add_up(self.mass, self.sums, first, self.fanout, inner)

    cdef void _find(
        self, const double[::1] targets, double scale, double total, int64_t[::1] out
    ) noexcept nogil:
        """Writes to `out` the leaves that hold targets * scale, which is at most the total."""
        # A constant fanout lets the compiler unroll every loop over a family.
        if self.fanout == 8:
            self._find_by(targets, scale, total, out, 8)
        else:
            self._find_by(targets, scale, total, out, self.fanout)

    cdef void _find_by(
        self, const double[::1] targets, double scale, double total, int64_t[::1] out,
        const int64_t fanout
    ) noexcept nogil:
        """Chunk by chunk; each takes its last step when the next has come as far.

        What no cache holds are the leaves: so their families have the time of a whole chunk to
        come out of memory.
        """
        cdef int64_t family[2][CHUNK]
        cdef double rest[2][CHUNK]
        cdef Py_ssize_t begin = 0, side = 0
        while begin < targets.shape[0]:
            self._to_families(targets, scale, total, begin, family[side], rest[side], fanout)
            side = 1 - side
            if begin > 0:
                self._to_leaves(out, begin - CHUNK, family[side], rest[side], fanout)
            begin += CHUNK
        if begin > 0:
            self._to_leaves(out, begin - CHUNK, family[1 - side], rest[1 - side], fanout)

    cdef void _to_families(
        self, const double[::1] targets, double scale, double total, Py_ssize_t begin,
        int64_t* node, double* rest, const int64_t fanout
    ) noexcept nogil:
        """Takes targets[begin : begin + CHUNK] down to families of leaves, a level at a time.

        `rest` becomes what is left of each target in its family.  Sums that somebody is rewriting
        may point into the padding, below which there is nothing: then it is the last family.
        """
        cdef Py_ssize_t n = min(<Py_ssize_t>CHUNK, targets.shape[0] - begin)
        cdef double top = below(total)
        cdef const double* here
        cdef const double* next_level
        cdef int64_t level, last_family, last = self.depth - 1
        cdef Py_ssize_t i
        for i in range(n):
            rest[i] = min(targets[begin + i] * scale, top)
            node[i] = 0
        for level in range(last):
            here = &self.sums[self.start[level]]
            next_level = &self.leaves[0]
            last_family = self._families(level + 1) - 1
            if level + 1 < last:
                next_level = &self.sums[self.start[level + 1]]
            for i in range(n):
                node[i] = min(
                    node[i] * fanout + _child(here + node[i] * fanout, fanout, &rest[i]),
                    last_family,
                )
                prefetch_family(next_level + node[i] * fanout, fanout)

    cdef void _to_leaves(
        self, int64_t[::1] out, Py_ssize_t begin,
        const int64_t* family, const double* rest, const int64_t fanout
    ) noexcept nogil:
        """Writes the leaves of the chunk at `begin` to `out`."""
        cdef Py_ssize_t n = min(<Py_ssize_t>CHUNK, out.shape[0] - begin)
        cdef const double* leaves = &self.leaves[0]
        cdef int64_t first
        cdef Py_ssize_t i
        for i in range(n):
            first = family[i] * fanout
            out[begin + i] = first + _leaf(leaves + first, fanout, rest[i])

    cdef double _range_sum(self, int64_t first, int64_t last) noexcept nogil:
        """Sum of leaves first .. last - 1: what sticks out of whole families, then the parents."""
        cdef int64_t level, mask = self.fanout - 1
        cdef double result = 0.0
        for level in range(self.depth - 1, -1, -1):
            while first < last and (first & mask or level == 0):
                result += self.mass[self.start[level] + first]
                first += 1
            while first < last and last & mask:
                last -= 1
                result += self.mass[self.start[level] + last]
            first >>= self.fanout_bits
            last >>= self.fanout_bits
        return result


def part_bits(capacity, fanout):
    """A part of a tree of `capacity` leaves has 1 << part_bits of them."""
    capacity, fanout = _checked_sizes(capacity, fanout)
    return _cuts(_widths(capacity, fanout), capacity, fanout)[1]


cdef inline int64_t _child(const double* sums, const int64_t fanout, double* rest) noexcept nogil:
    """The child whose part of [0, sums[fanout - 1]) holds `rest`, which becomes relative to it.

    A running sum grows only at a child whose mass is > 0, so no other can be chosen.  Rounding
    on the level above can leave `rest` at the family's total: then it belongs to the last part.
    """
    cdef int64_t child = count_at_most(sums, fanout, rest[0])
    if child == fanout:
        rest[0] = below(load_racing(&sums[fanout - 1]))
        child = min(count_at_most(sums, fanout, rest[0]), fanout - 1)
    rest[0] -= sum_before(sums, fanout, child)
    return child


cdef inline int64_t _leaf(const double* masses, const int64_t fanout, double rest) noexcept nogil:
    """As `_child`, for the leaves, whose running sums are not kept."""
    cdef int64_t k, leaf = leaf_at(masses, fanout, rest), last = 0
    if leaf < fanout:
        return leaf
    for k in range(fanout):
        if load_racing(&masses[k]) > 0.0:
            last = k
    return last


cdef inline double _add_up(
    double[::1] mass, double[::1] sums, int64_t first, const int64_t fanout, bint inner
) noexcept nogil:
    cdef double running = 0.0
    cdef int64_t k
    if inner:
        for k in range(first, first + fanout):
            running += load_racing(&mass[k])
            store_racing(&sums[k], running)
    else:
        for k in range(first, first + fanout):
            running += load_racing(&mass[k])
    return running


cdef void _gather(
    const double[::1] masses, const int64_t[::1] leaves, double[::1] out
) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(leaves.shape[0]):
        out[i] = load_racing(&masses[leaves[i]])


cdef Py_ssize_t _first_beyond(const int64_t[::1] leaves, int64_t capacity) noexcept nogil:
    """Position of the first leaf outside 0 .. capacity - 1, or -1."""
    cdef Py_ssize_t i
    for i in range(leaves.shape[0]):
        if not 0 <= leaves[i] < capacity:
            return i
    return -1


cdef Py_ssize_t _first_outside(const double[::1] targets, double total) noexcept nogil:
    """Position of the first target outside [0, total), or -1; NaN is outside."""
    cdef Py_ssize_t i
    for i in range(targets.shape[0]):
        if not 0.0 <= targets[i] < total:
            return i
    return -1


cdef double _checked_peak(const double* masses, Py_ssize_t step, Py_ssize_t n) except -1.0:
    """The largest of masses[i * step], i < n, after a look at each of them."""
    cdef double peak = 0.0
    cdef Py_ssize_t i
    for i in range(n if step else min(n, 1)):
        if not 0.0 <= masses[i] <= DBL_MAX:
            raise ValueError(f"masses must be finite and >= 0, got {masses[i]} at position {i}")
        peak = max(peak, masses[i])
    return peak


cdef _checked_sizes(capacity, fanout):
    """Both as Python's integers."""
    capacity, fanout = _as_int("capacity", capacity), _as_int("fanout", fanout)
    if not 1 <= capacity <= MOST_LEAVES:
        raise ValueError(f"capacity must be in 1 .. {MOST_LEAVES}, got {capacity}")
    if not 2 <= fanout <= MOST_LEAVES or fanout & (fanout - 1):
        raise ValueError(f"fanout must be a power of two in 2 .. {MOST_LEAVES}, got {fanout}")
    return capacity, fanout


cdef _widths(capacity, fanout):
    """Nodes of each level, the leaves last; whole families."""
    widths = [_padded(capacity, fanout)]
    while widths[0] > fanout:
        widths.insert(0, _padded(widths[0] // fanout, fanout))
    return widths


cdef _cuts(widths, capacity, fanout):
    """The level of the parts' roots, the bits of a leaf within its part, and within its block.

    That level is the lowest inner one with at most MOST_PARTS nodes; -1 if there is none.  No
    block is of two parts.
    """
    levels = [level for level in range(len(widths) - 1) if widths[level] <= MOST_PARTS]
    part_level = max(levels, default=-1)
    part_bits = (len(widths) - 1 - part_level) * (fanout.bit_length() - 1)
    return part_level, part_bits, min(part_bits, block_bits(capacity))


cdef int64_t _blocks(int64_t capacity, int64_t bits) noexcept:
    """Blocks of 1 << bits leaves, which have bounds."""
    return ((capacity - 1) >> bits) + 1


cdef _doubles(widths, capacity, block_bits):
    """Nodes, running sums of the inner ones, two bounds a block, and the total."""
    nodes = sum(widths)
    inner = nodes - max(widths)  # there are most leaves
    doubles = nodes + inner + 2 * _blocks(capacity, block_bits)
    return doubles + -doubles % ROOT_LINE + ROOT_LINE


cdef _checked_memory(memory, doubles):
    if not isinstance(memory, np.ndarray) or memory.dtype != np.float64:
        raise TypeError(f"memory must be a float64 array, got {getattr(memory, 'dtype', memory)!r}")
    if memory.shape != (doubles,):
        raise ValueError(f"memory must have shape ({doubles},), got {memory.shape}")
    if not memory.flags.c_contiguous:
        raise ValueError(f"memory must be contiguous, got strides of {memory.strides[0]} bytes")
    if not memory.flags.writeable:
        raise ValueError("memory must be writable, got a read-only array")
    if memory.ctypes.data % CACHE_LINE:
        raise ValueError(f"memory must begin at a multiple of {CACHE_LINE} bytes, "
                         f"got address {memory.ctypes.data:#x}")
    return memory


cdef _padded(object nodes, object fanout):
    """`nodes`, rounded up to whole families.

    Python's integers, on purpose: C's division (cdivision) rounds a negative number up.
    """
    return -(-nodes // fanout) * fanout


cdef _as_int(name, value):
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    return int(value)


cdef inline bint _is_aligned(const void* address) noexcept:
    """Whether 8 bytes may be loaded from it at once; NumPy's arrays may begin anywhere."""
    return (<size_t>address & 7) == 0


cdef const int64_t[::1] _as_leaves(leaves):
    cdef const int64_t[::1] view
    if leaves is not None:  # which a memoryview may be
        try:
            view = leaves
            if view.shape[0] == 0 or _is_aligned(&view[0]):
                return view
        except (TypeError, ValueError):
            pass
    return _converted_leaves(leaves)


cdef const double[::1] _as_doubles(name, numbers):
    cdef const double[::1] view
    if numbers is not None:
        try:
            view = numbers
            if view.shape[0] == 0 or _is_aligned(&view[0]):
                return view
        except (TypeError, ValueError):
            pass
    return _converted_doubles(name, numbers)


cdef _as_array(name, values):
    try:
        return np.asarray(values)
    except ValueError as error:  # rows of different lengths
        raise ValueError(f"{name} must have one axis, got {values!r}") from error


cdef _converted_leaves(leaves):
    array = _as_array("leaves", leaves)
    if array.dtype.kind in "uO":
        _refuse_beyond_int64(array)
    if array.size and array.dtype.kind not in "iu":
        raise TypeError(f"leaves must be integers, got dtype {array.dtype}")
    if array.ndim > 1:
        raise ValueError(f"leaves must have one axis, got shape {array.shape}")
    return np.require(np.atleast_1d(array), np.int64, "CA")


cdef _refuse_beyond_int64(array):
    if array.dtype.kind == "u" and not (array > INT64_MAX).any():
        return
    for position, leaf in enumerate(array.ravel().tolist()):
        if isinstance(leaf, int) and not -INT64_MAX <= leaf <= INT64_MAX:
            raise IndexError(f"leaves must be in 0 .. capacity - 1, "
                             f"got {leaf} at position {position}")


cdef _converted_doubles(name, numbers):
    array = _as_array(name, numbers)
    if array.dtype.kind not in "iuf":
        raise TypeError(f"{name} must be real numbers, got dtype {array.dtype}")
    if array.ndim > 1:
        raise ValueError(f"{name} must have one axis, got shape {array.shape}")
    with np.errstate(over="ignore"):  # what float64 cannot hold becomes inf, and is refused
        return np.require(np.atleast_1d(array), np.float64, "CA")


def _rebuilt(capacity, fanout, masses):
    """The tree that `SumTree.__reduce__` describes."""
    tree = SumTree(capacity, fanout)
    tree.update(np.arange(capacity), masses)
    return tree
