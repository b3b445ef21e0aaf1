"""The ring of rows: keys, slots, episodes, and how rows come in.

A row is one record: the fields of a transition lie together, so that a draw touches as few
cache lines and pages as the row has.  Key and slot of row number `i` of lane `l` are

    key  = i * lanes + l           a name for ever
    slot = key % capacity          where it lies; lanes take turns, so slots of one step adjoin

A row comes in lazily, as in "Parallel Actors and Learners" (arXiv 2110.01101, section 4.2): its
place is claimed by one atomic addition; under the lock of the place's part what lay there is
retired; it is copied under no lock; and under the lock again it is published, so that it may be
drawn.  A place that somebody else is still writing to is left to them, and with it its key.

Of columns with a next value, a step's own lies in its row and the next one in the row after
it, which a step that continues the episode takes over:

    row        0     1     2     3     4     5     6
    frame      a     b     c     d     A     B     C
    step       a-b   b-c   c-d   .     A-B   B-C   .      the episode ended at d; C is the newest
"""

import numpy as np

cimport cython
cimport numpy as cnp
from libc.stdint cimport int64_t, uint8_t
from libc.stdlib cimport free, malloc
from cpython.exc cimport PyErr_CheckSignals

from kary_replay._atomic cimport (
    copy_racing, equal_racing, fence_acquire, fence_release, fetch_add, load_acquire, load_relaxed
)
from kary_replay._lock cimport rest
from kary_replay._parts cimport Parts, Visit
from kary_replay._tags cimport (
    CUT, DRAWABLE, FIRST, LAST, MARKS, NEWEST, STEP, TERMINATED, WRITER, WRITING, given_up,
    is_drawable, key_of, tag
)

cnp.import_array()

cdef enum:
    LINE = 8             # int64s in a cache line
    MOST_CHANGED = 1024  # leaves of a part before the nodes above are told
    AHEAD = 16           # rows between a prefetch and the update
    REST = 102  # how long: see kary_pause

cdef struct Field:
    int64_t offset    # in the row, bytes
    int64_t size      # bytes
    Py_ssize_t next   # which array has the next values; -1 without

cdef struct Insert:     # what one call of `insert` works with
    Visit visit
    uint8_t** data      # the arrays that come in
    int64_t* awaited    # which of their rows each lane's newest row is yet to get; -1: none
    int64_t* keys       # of the steps; -1 where a lane has no place for one now
    int64_t* following  # the keys of the observations after them


@cython.final
cdef class Ring:
    """`capacity` rows, divided evenly among `lanes` rings that share no row.

    Parameters
    ----------
    memory : the arrays of `layout`, zeros where new
    parts : Parts.  The tags of the rows and their masses.
    in_time : bool.  Rows belong to episodes, which `terminated` and `truncated` end, two fields.
        Several writers of one lane cut each other's episodes.
    observed : names of the fields with a next value
    back : how many rows before its own a row's windows reach

    Any number of threads and processes may use it at once.  Arguments are the caller's to check:
    lanes, keys and slots in range, arrays of the fields' own shape and dtype.
    """

    cdef readonly int64_t capacity
    cdef readonly int64_t lanes
    cdef readonly object rows    # structured array, (capacity,)
    cdef readonly object heads   # int64 array, (lanes,): rows ever claimed in each lane
    cdef Parts parts
    cdef int64_t lane_capacity
    cdef int64_t back
    cdef int64_t* head           # `heads`, each on a cache line of its own
    cdef uint8_t[:, ::1] memory  # `rows` as bytes
    cdef Field* fields
    cdef Py_ssize_t n_fields
    cdef Py_ssize_t terminated, truncated  # among the fields; -1 without
    cdef bint observes           # whether any field has a next value
    cdef list inputs             # (name, shape, dtype) of each array that comes in

    def __cinit__(self, memory, parts, **_):
        n_fields = len(memory["rows"].dtype.names)
        self.fields = <Field*>malloc(n_fields * sizeof(Field))
        if self.fields == NULL:
            raise MemoryError(f"no memory for {n_fields} fields")

    def __dealloc__(self):
        free(self.fields)

    @staticmethod
    def layout(capacity, lanes, dtype):
        """The arrays of a ring's memory: name to (shape, dtype)."""
        return {"heads": ((lanes, LINE), np.dtype(np.int64)), "rows": ((capacity,), dtype)}

    def __init__(self, memory, Parts parts not None, *, in_time=False, observed=(), int64_t back=0):
        self.rows, self.parts, self.back = memory["rows"], parts, back
        self.heads = memory["heads"][:, 0]
        self.head = <int64_t*><size_t>self.heads.ctypes.data
        self.capacity, self.lanes = len(self.rows), len(self.heads)
        self.lane_capacity = self.capacity // self.lanes
        self.memory = self.rows.view(np.uint8).reshape(self.capacity, -1)
        dtype = self.rows.dtype
        self.n_fields, self.observes = len(dtype.names), len(observed) > 0
        self.terminated = dtype.names.index("terminated") if in_time else -1
        self.truncated = dtype.names.index("truncated") if in_time else -1
        self.inputs = []
        for i, name in enumerate(dtype.names):
            field, offset = dtype.fields[name][:2]
            self.fields[i] = Field(offset, field.itemsize, -1)
            self.inputs.append((name, field.shape, field.base))
        for name in observed:
            i = dtype.names.index(name)
            self.fields[i].next = len(self.inputs)
            self.inputs.append((f"next_{name}", *self.inputs[i][1:]))

    def __len__(self):
        """Number of rows that may be drawn."""
        return self.parts.count()

    def counts(self):
        """Number of rows in each lane, drawable or not, int64, shape (lanes,)."""
        return np.minimum(self.heads, self.lane_capacity)

    @property
    def filled(self):
        """Number of rows, drawable or not."""
        cdef int64_t lane, rows = 0
        for lane in range(self.lanes):
            rows += min(load_relaxed(&self.head[lane * LINE]), self.lane_capacity)
        return rows

    def filled_slots(self):
        """The slots that hold a row, ascending: an index array, or a slice where they adjoin."""
        return self._slots_filled_by(self.heads)

    def _slots_filled_by(self, heads):
        counts = np.minimum(heads, self.lane_capacity)
        if (counts == counts[0]).all():
            return slice(0, int(counts.sum()))
        return np.flatnonzero(np.arange(self.lane_capacity)[:, None] < counts)

    def arrays(self, dict columns):
        """The values of `columns` in the order of the inputs, and how many rows they are.

        None unless there is exactly one array or NumPy scalar for each input, of its dtype and
        of its shape, with a leading axis of n, or without one in all of them: one row.
        """
        cdef list arrays = []
        cdef tuple column
        cdef Py_ssize_t rows = -1
        if len(columns) != len(self.inputs):
            return None
        for column in self.inputs:
            if column[0] not in columns:
                return None
            array = columns[column[0]]
            if not isinstance(array, cnp.ndarray):
                if not cnp.PyArray_CheckScalar(array):
                    return None
                array = np.asarray(array)
            if not arrays and cnp.PyArray_NDIM(array) == len(<tuple>column[1]) + 1:
                rows = cnp.PyArray_DIM(array, 0)
            if not fits(array, <tuple>column[1], column[2], rows):
                return None
            arrays.append(array)
        return (1 if rows < 0 else rows), arrays

    def insert(self, const int64_t[::1] lanes, list arrays, masses):
        """Puts in the rows of `arrays`, each into its lane, and returns their keys.

        Parameters
        ----------
        masses : float64 array, shape (n,), contiguous; or a float for all

        Returns
        -------
        int64 array, shape (n,)
        """
        cdef Py_ssize_t n = lanes.shape[0], begin = 0, end
        cdef Py_ssize_t i, step = 0 if isinstance(masses, float) else 1
        cdef Py_ssize_t room = min(<Py_ssize_t>MOST_CHANGED, 8 * n)
        cdef double one = 0.0 if step else masses
        cdef const double[::1] each = masses if step else None
        cdef const double* mass = &each[0] if step and n > 0 else &one
        keys, scratch = np.empty(n, np.int64), np.empty(n + self.lanes + room, np.int64)
        cdef Insert call
        call.keys, call.following = int64s(keys), int64s(scratch)
        call.awaited = call.following + n
        for i in range(self.lanes if self.observes else 0):
            call.awaited[i] = -1
        call.visit = Visit(self.parts.me(), -1, 0, call.awaited + self.lanes, 0, room)
        call.data = _addresses(arrays)
        try:
            while begin < n:
                with nogil:
                    end = self._insert_some(&call, lanes, begin, mass, step)
                if begin == end:  # others hold all places, and may do so for long
                    PyErr_CheckSignals()
                begin = end
        finally:
            free(call.data)
        return keys

    cdef Py_ssize_t _insert_some(
        self,
        Insert* call,
        const int64_t[::1] lanes,
        Py_ssize_t begin,
        const double* mass,
        Py_ssize_t step,
    ) noexcept nogil:
        """Puts in the rows begin .. end - 1, of masses mass[i * step], and returns `end`."""
        cdef Py_ssize_t i, end = self._claim_steps(call, lanes, begin)
        fence_release()  # whoever sees a byte of the copies sees the tags, see Gather
        for i in range(begin, end):
            self._copy_in(call, i)
        for i in range(begin, end):
            self._publish(call, i, mass[i * step])
        self.parts.exit(&call.visit)
        if begin == end:
            rest(REST)
        return end

    def update(self, const int64_t[::1] keys, const double[::1] masses):
        """Gives rows that may still be drawn new masses; returns how many.  The last wins.

        Raises IndexError, and changes nothing, for a key that was never handed out.
        """
        cdef Py_ssize_t i, n = keys.shape[0], applied = 0
        self._check_handed_out(keys)
        cdef int64_t slot
        slots, order, changed = (np.empty(n, np.int64) for _ in range(3))
        cdef int64_t* slot_of = int64s(slots)
        cdef int64_t* in_turn = int64s(order)
        cdef Visit visit = Visit(self.parts.me(), -1, 0, int64s(changed), 0, n)
        with nogil:
            for i in range(n):
                slot_of[i] = keys[i] % self.capacity
            self.parts.order(slot_of, n, in_turn)
            for i in range(min(<Py_ssize_t>AHEAD, n)):
                self.parts.prefetch(slot_of[in_turn[i]])
            for i in range(n):
                if i + AHEAD < n:
                    self.parts.prefetch(slot_of[in_turn[i + AHEAD]])
                slot = slot_of[in_turn[i]]
                self.parts.enter(&visit, slot)
                applied += self.parts.reweigh(
                    &visit, slot, keys[in_turn[i]], masses[in_turn[i]]
                )
            self.parts.exit(&visit)
            if applied < n:
                fetch_add(self.parts.stale, n - applied)
        return applied

    cdef _check_handed_out(self, const int64_t[::1] keys):
        cdef int64_t lane = 0, number
        cdef Py_ssize_t i
        for i in range(keys.shape[0]):
            number = keys[i]
            if self.lanes > 1:
                number, lane = keys[i] // self.lanes, keys[i] % self.lanes
            if keys[i] < 0 or number >= load_relaxed(&self.head[lane * LINE]):
                raise IndexError(
                    f"keys must have been returned by add or sample, got {keys[i]} at position {i}"
                )

    def live(self, const int64_t[::1] keys):
        """Which keys name rows that may be drawn, bool, shape (n,)."""
        cdef Py_ssize_t i
        result = np.empty(keys.shape[0], np.bool_)
        cdef uint8_t* out = <uint8_t*>cnp.PyArray_DATA(result)
        with nogil:
            for i in range(keys.shape[0]):
                out[i] = keys[i] >= 0 and is_drawable(
                    load_acquire(&self.parts.tags[keys[i] % self.capacity]), keys[i]
                )
        return result

    def live_slots(self):
        """The slots of all rows that may be drawn, int64, ascending.  O(capacity)."""
        return np.flatnonzero(self._tags() & DRAWABLE)

    def state(self):
        """What `restore` takes: heads, and of the filled slots tags, masses and rows, as arrays.

        While others write, it is the state of this moment, but for the rows that make room until
        the arrays are used, in their order: `rows` and `tags_after` may be the memory itself.
        """
        heads = self.heads.copy()
        filled = self._slots_filled_by(heads)
        tags = self._tags()[filled] & ~WRITER  # who wrote a row is no part of what it is
        fence_acquire()
        masses = {"masses": self.parts.masses()[filled]} if self.parts.has_tree else {}
        # Of bytes, not of records: what lies between their fields would be left as found.
        rows = self.rows.view(np.uint8).reshape(self.capacity, -1)[filled].ravel()
        fence_acquire()
        return {"heads": heads, "tags": tags, **masses, "rows": rows,
                "tags_after": self._tags()[filled]}

    def _whole_tags(self, dict state):
        """The tags of what stayed where it was, from the first look at the tags to the second."""
        heads, before, after = state["heads"], state["tags"], state["tags_after"]
        keys = before >> 16
        gone = (keys != after >> 16) | (before & ~after & WRITING != 0)
        gone |= keys // self.lanes >= heads[keys % self.lanes]  # they came later
        tags = before & (after | ~DRAWABLE)
        if gone.any() and self.observes:
            has_lost_its_end = np.isin(keys + self.lanes, keys[gone]) & (tags & STEP != 0)
            tags[has_lost_its_end] = tags[has_lost_its_end] & ~(STEP | WRITING | DRAWABLE) | LAST
        tags[gone] = 0
        return tags

    @property
    def stale(self):
        """Updates of rows that could not be drawn any more."""
        return load_relaxed(self.parts.stale)

    @stale.setter
    def stale(self, int64_t updates):
        self.parts.stale[0] = updates

    def clear(self):
        """Gives up all rows."""
        self._tags()[:] = 0
        self.recover()

    def check(self, dict state):
        """ValueError unless a ring of this capacity and these lanes can have this state."""
        heads, tags, rows = state["heads"], state["tags"], state["rows"]
        slots = np.flatnonzero(np.arange(self.lane_capacity)[:, None] < heads)
        sizes = len(tags), len(state["tags_after"]), rows.nbytes
        if (heads < 0).any() or sizes != (
            len(slots), len(slots), len(slots) * self.rows.itemsize
        ):
            raise ValueError(f"heads, tags and rows must be of one buffer, got heads {heads} with "
                             f"{sizes[0]} tags and {sizes[2]} bytes of rows")
        keys, marks = tags >> 16, tags & (STEP | WRITING | DRAWABLE | CUT)
        fits = (keys % self.capacity == slots) & (keys >= 0)
        fits &= (marks & DRAWABLE == 0) | (marks == STEP | DRAWABLE)
        wrong = (tags != 0) & ~fits  # 0 where one died who had only counted a row
        if wrong.any():
            raise ValueError(f"tags must be of keys that lie there and of marks that go together, "
                             f"got {tags[wrong][0]:#x} for slot {slots[wrong][0]}")

    def restore(self, dict state):
        """Takes over another ring's heads and the rows of its filled slots, as yet undrawable."""
        self.heads[:] = state["heads"]
        self.rows[self.filled_slots()] = state["rows"].view(self.rows.dtype)

    def restore_tags(self, dict state):
        """Tags the filled slots as those of the other ring, so that they may be drawn."""
        self._tags()[self.filled_slots()] = self._whole_tags(state)
        self.recover()

    def recover(self):
        """Makes a ring of memory that outlived its writers, wherever they were.

        Steps that were on their way are lost; what they saw stays, for the rows before them.
        No row that comes in joins them.
        """
        cdef int64_t slot, lane, word
        for slot in range(self.capacity):
            word, lane = self.parts.tags[slot], slot % self.lanes
            if word & NEWEST and key_of(word) != self._key(lane, self.head[lane * LINE] - 1):
                word &= ~NEWEST
            if word & DRAWABLE and not self._windows_are_whole(key_of(word)):
                word = word & ~DRAWABLE | CUT
            self.parts.tags[slot] = word
        self.parts.recover()

    cdef bint _windows_are_whole(self, int64_t key) noexcept nogil:
        """Whether the rows before row `key` are there, as far as its windows reach."""
        cdef int64_t _step, word = self.parts.tags[key % self.capacity]
        for _step in range(self.back):
            if word & FIRST:
                return True
            key -= self.lanes
            word = self.parts.tags[key % self.capacity] if key >= 0 else 0
            if key < 0 or key_of(word) != key:
                return False
        return True

    cdef _tags(self):
        return np.asarray(<int64_t[:self.capacity]>self.parts.tags)

    cdef Py_ssize_t _claim_steps(
        self, Insert* call, const int64_t[::1] lanes, Py_ssize_t begin
    ) noexcept nogil:
        """Claims what rows begin .. end - 1 need, and returns `end`.

        Of more rows than a lane holds, no two at a time can have the same place; and where other
        writers hold all places, they must not wait for ours.
        """
        cdef Py_ssize_t end = begin, before = -1
        cdef Py_ssize_t most = begin + max(1, (self.lane_capacity - self.back) // 2)
        most = min(most, lanes.shape[0])
        while before < end < most:
            before = end
            if self.terminated < 0:
                end = self._claim_plain_rows(call, lanes, end, most)
            elif self._claim_step(call, end, lanes[end]):
                end += 1
        self.parts.exit(&call.visit)
        return end

    cdef Py_ssize_t _claim_plain_rows(
        self, Insert* call, const int64_t[::1] lanes, Py_ssize_t begin, Py_ssize_t end
    ) noexcept nogil:
        """Claims places, by one addition, for the rows from `begin` on that are of one lane."""
        cdef int64_t key, _place, lane = lanes[begin]
        cdef Py_ssize_t i = begin
        while i < end and lanes[i] == lane:
            i += 1
        key = self._key(lane, fetch_add(&self.head[lane * LINE], i - begin))
        end, i = i, begin
        for _place in range(end - begin):
            self.parts.enter(&call.visit, key % self.capacity)
            if self._take(call, key, STEP | FIRST | WRITING):
                call.keys[i] = key
                i += 1
            key += self.lanes
        return i

    cdef bint _claim_step(self, Insert* call, Py_ssize_t i, int64_t lane) noexcept nogil:
        """Claims what row i, of an episode, needs; False if it cannot be had at this moment."""
        cdef int64_t end = self._end(call, i), marks = STEP
        if call.data[self.terminated][i]:
            marks |= TERMINATED
        if not self.observes:
            marks |= end | (0 if self._joins(call, i, lane) >= 0 else FIRST)
            call.keys[i] = self._claim_row(call, lane, marks)
            return call.keys[i] >= 0
        call.keys[i] = self._claim_observed(call, i, lane, marks)
        if call.keys[i] < 0:
            return False
        call.following[i] = self._claim_row(call, lane, end)
        if call.following[i] != call.keys[i] + self.lanes:  # others were faster
            self._give_up(call, call.keys[i])
            self._give_up(call, call.following[i])
            return False
        call.awaited[lane] = i
        return True

    cdef int64_t _claim_observed(
        self, Insert* call, Py_ssize_t i, int64_t lane, int64_t marks
    ) noexcept nogil:
        """Claims the row of the observation before step i: the newest, where that is it."""
        cdef int64_t key = self._joins(call, i, lane)
        if key >= 0 and self._become_step(call, key, marks):
            return key
        return self._claim_row(call, lane, marks | FIRST)

    cdef inline int64_t _end(self, Insert* call, Py_ssize_t i) noexcept nogil:
        """The mark of the last row of an episode, if row i ends one."""
        return LAST if call.data[self.terminated][i] or call.data[self.truncated][i] else 0

    cdef int64_t _joins(self, Insert* call, Py_ssize_t i, int64_t lane) noexcept nogil:
        """The key of the newest row of the lane, if row i continues its episode, or -1."""
        cdef int64_t key = self._key(lane, load_acquire(&self.head[lane * LINE]) - 1)
        cdef int64_t newest, slot = key % self.capacity
        cdef bint is_awaited = self.observes and call.awaited[lane] >= 0
        cdef Py_ssize_t f
        cdef Field field
        cdef const uint8_t* announced
        if key < 0:
            return -1
        newest = load_acquire(&self.parts.tags[slot])
        if key_of(newest) != key or newest & LAST:
            return -1
        if self.observes and newest & WRITING and not (
            is_awaited and call.following[call.awaited[lane]] == key
        ):
            return -1  # another writer of this lane is at it
        for f in range(self.n_fields):
            field = self.fields[f]
            if field.next < 0:
                continue
            announced = &self.memory[slot, field.offset]
            if newest & WRITING:  # not copied yet
                announced = call.data[field.next] + call.awaited[lane] * field.size
            # Others may be overwriting it: then `_become_step` finds another tag.
            if not equal_racing(announced, call.data[f] + i * field.size, field.size):
                return -1
        return key

    cdef int64_t _claim_row(self, Insert* call, int64_t lane, int64_t marks) noexcept nogil:
        """Takes the next place of the lane that nobody writes to, and returns its key, or -1."""
        cdef int64_t key, _try
        for _try in range(self.lane_capacity):
            key = self._key(lane, fetch_add(&self.head[lane * LINE], 1))
            self._retire_around(call, key)
            self.parts.enter(&call.visit, key % self.capacity)
            if self._take(call, key, marks | WRITING | NEWEST):
                if self.lane_capacity > 1:
                    self._unmark(key - self.lanes, NEWEST)
                return key
        return -1

    cdef bint _take(self, Insert* call, int64_t key, int64_t marks) noexcept nogil:
        """Makes the row `key` of whatever lies in its slot, unless that is newer, or written to."""
        cdef int64_t before, slot = key % self.capacity
        while True:
            before = load_acquire(&self.parts.tags[slot])
            if key_of(before) > key or self.parts.is_busy(before):
                return False
            if self.parts.change(slot, before, tag(key, call.visit.me & 0xff, marks)):
                if before & DRAWABLE:
                    self.parts.weigh(&call.visit, slot, 0.0)
                return True

    cdef bint _become_step(self, Insert* call, int64_t key, int64_t marks) noexcept nogil:
        """Of the newest observation of a lane; False if another writer has done so, or ended it."""
        cdef int64_t before, slot = key % self.capacity
        self.parts.enter(&call.visit, slot)
        while True:
            before = load_acquire(&self.parts.tags[slot])
            if key_of(before) != key or before & (STEP | LAST):
                return False
            if self.parts.change(
                slot, before, tag(key, call.visit.me & 0xff, before & MARKS | marks | WRITING)
            ):
                return True

    cdef void _give_up(self, Insert* call, int64_t key) noexcept nogil:
        """Lets a row be the end of its episode that was claimed in vain."""
        cdef int64_t before, slot = key % self.capacity
        if key < 0:
            return
        self.parts.enter(&call.visit, slot)
        while True:
            before = load_acquire(&self.parts.tags[slot])
            if key_of(before) != key or self.parts.change(slot, before, given_up(before)):
                return

    cdef void _retire_around(self, Insert* call, int64_t key) noexcept nogil:
        """Before row `key` comes: rows whose windows reach back to the one whose place it takes.

        And rows that reach ahead to that, in places that writers who died had only counted.
        """
        cdef int64_t step, other, oldest = key - self.capacity
        for step in range(1, self.back + 1):
            other = oldest + step * self.lanes
            if other < 0 or load_acquire(&self.parts.tags[other % self.capacity]) & FIRST:
                break
            if not self._cut(call, other):
                break
        other = key - self.lanes
        while other > max(oldest, <int64_t>-1) and key_of(
            load_acquire(&self.parts.tags[other % self.capacity])
        ) != other:
            self._cut(call, other - self.capacity)
            other -= self.lanes

    cdef bint _cut(self, Insert* call, int64_t key) noexcept nogil:
        """Makes row `key` undrawable; False if it isn't there."""
        cdef int64_t before, slot = key % self.capacity
        if key < 0:
            return False
        self.parts.enter(&call.visit, slot)
        while True:
            before = load_acquire(&self.parts.tags[slot])
            if key_of(before) != key:
                return False
            if self.parts.retire(&call.visit, slot, before, before & ~DRAWABLE | CUT):
                return True

    cdef void _unmark(self, int64_t key, int64_t marks) noexcept nogil:
        """Takes marks that do not count from row `key`, if it is there."""
        cdef int64_t before, slot = key % self.capacity
        while key >= 0:
            before = load_acquire(&self.parts.tags[slot])
            if key_of(before) != key or self.parts.change(slot, before, before & ~marks):
                return

    cdef void _copy_in(self, Insert* call, Py_ssize_t i) noexcept nogil:
        cdef int64_t slot = call.keys[i] % self.capacity
        cdef int64_t following = call.following[i] % self.capacity
        cdef bint first = load_relaxed(&self.parts.tags[slot]) & FIRST
        cdef Field field
        cdef Py_ssize_t f
        for f in range(self.n_fields):
            field = self.fields[f]
            # A step that continues its episode finds its own value there.
            if field.next < 0 or first:
                copy_racing(
                    &self.memory[slot, field.offset], call.data[f] + i * field.size, field.size
                )
            if field.next >= 0:
                copy_racing(
                    &self.memory[following, field.offset],
                    call.data[field.next] + i * field.size,
                    field.size,
                )

    cdef void _publish(self, Insert* call, Py_ssize_t i, double mass) noexcept nogil:
        """Lets row i be drawn, unless a row that its windows need has made room meanwhile."""
        cdef int64_t before, after, key = call.keys[i], slot = key % self.capacity
        self.parts.enter(&call.visit, slot)
        if not load_acquire(&self.parts.tags[slot]) & CUT:
            self.parts.weigh(&call.visit, slot, mass)
        while True:
            before = load_acquire(&self.parts.tags[slot])
            after = before & ~(WRITING | WRITER) | (0 if before & CUT else DRAWABLE)
            if self.parts.change(slot, before, after):
                break
        if self.observes and not load_acquire(
            &self.parts.tags[call.following[i] % self.capacity]
        ) & STEP:
            self._unmark(call.following[i], WRITING | WRITER)

    cdef inline int64_t _key(self, int64_t lane, int64_t number) noexcept nogil:
        return number * self.lanes + lane if number >= 0 else -1


cdef inline bint fits(cnp.ndarray array, tuple shape, dtype, Py_ssize_t rows):
    """Whether `array` has this dtype and the shape (rows, *shape), or `shape` if rows is -1."""
    cdef Py_ssize_t axis, lead = 0 if rows < 0 else 1
    if cnp.PyArray_NDIM(array) != lead + len(shape):
        return False
    if lead and cnp.PyArray_DIM(array, 0) != rows:
        return False
    for axis in range(len(shape)):
        if cnp.PyArray_DIM(array, lead + axis) != <Py_ssize_t>shape[axis]:
            return False
    here = <object>cnp.PyArray_DESCR(array)
    return here is dtype or here == dtype


cdef inline int64_t* int64s(cnp.ndarray array):
    return <int64_t*>cnp.PyArray_DATA(array)


cdef uint8_t** _addresses(list arrays) except NULL:
    """Where the arrays' bytes begin.  An array that is not contiguous is replaced in the list.

    The caller frees the table and keeps the list alive as long.
    """
    for i, array in enumerate(arrays):
        if not cnp.PyArray_IS_C_CONTIGUOUS(array):
            arrays[i] = np.ascontiguousarray(array)
    cdef uint8_t** data = <uint8_t**>malloc(len(arrays) * sizeof(void*))
    if data == NULL:
        raise MemoryError(f"no memory for {len(arrays)} addresses")
    for i, array in enumerate(arrays):
        data[i] = <uint8_t*>cnp.PyArray_DATA(array)
    return data
