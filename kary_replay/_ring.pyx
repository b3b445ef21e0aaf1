"""The ring of rows: keys, slots, episodes, and how rows come in.

A row is one record: the fields of a transition lie together, so that a draw touches as few
cache lines and pages as the row has.  Key and slot of row number `i` of lane `l` are

    key  = i * lanes + l           a name for ever
    slot = key % capacity          where it lies; lanes take turns, so slots of one step adjoin

A row comes in by `claim`, `write`, `publish`, in this order, and may be drawn only after the
last.  If the process dies in between, `recover` finds the rows that were on their way.

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
from libc.string cimport memcmp

from kary_replay._copy cimport copy
from kary_replay._marks cimport CUT, DRAWABLE, FIRST, LAST, NEWEST, STEP, TERMINATED, WRITING

cnp.import_array()

cdef extern from "<stdatomic.h>" nogil:
    int memory_order_seq_cst
    void atomic_signal_fence(int order)  # stores before it come first, to whoever finds the dead

cdef struct Field:
    int64_t offset    # in the row, bytes
    int64_t size      # bytes
    Py_ssize_t next   # which array has the next values; -1 without

cdef struct Claim:    # what one call of `claim` works with
    uint8_t** data    # the arrays that come in
    int64_t* awaited  # which of their rows the newest row of each lane is yet to get; -1: none
    int64_t* retired  # slots
    Py_ssize_t n_retired
    bint whole


@cython.final
cdef class Ring:
    """`capacity` rows of `dtype`, divided evenly among `lanes` rings that share no row.

    Parameters
    ----------
    memory : the arrays of `layout`, zeros in a new ring, or else followed by `recover`
    in_time : bool.  Rows belong to episodes, which `terminated` and `truncated` end, two fields.
    observed : names of the fields with a next value
    back : how many rows before its own a row's windows reach

    Arguments are the caller's to check: lanes, keys and slots in range, arrays of the fields'
    own shape and dtype.  A ring is for one thread at a time.
    """

    cdef readonly int64_t capacity
    cdef readonly int64_t lanes
    cdef readonly object rows    # structured array, (capacity,)
    cdef readonly object heads   # int64 array, (lanes,): rows ever claimed in each lane
    cdef readonly object marks   # uint8 array, (capacity,): see _marks.pxd
    cdef int64_t lane_capacity
    cdef int64_t back
    cdef int64_t n_drawable
    cdef int64_t[::1] head       # `heads`
    cdef uint8_t[::1] mark       # `marks`
    cdef uint8_t[:, ::1] memory  # `rows` as bytes
    cdef Field* fields
    cdef Py_ssize_t n_fields
    cdef Py_ssize_t terminated, truncated  # among the fields; -1 without
    cdef bint observes           # whether any field has a next value
    cdef list inputs             # (name, shape, dtype) of each array that comes in

    def __cinit__(self, memory, **_):
        n_fields = len(memory["rows"].dtype.names)
        self.fields = <Field*>malloc(n_fields * sizeof(Field))
        if self.fields == NULL:
            raise MemoryError(f"no memory for {n_fields} fields")

    def __dealloc__(self):
        free(self.fields)

    @staticmethod
    def layout(capacity, lanes, dtype):
        """The arrays of a ring's memory: name to (shape, dtype)."""
        return {
            "heads": ((lanes,), np.dtype(np.int64)),
            "marks": ((capacity,), np.dtype(np.uint8)),
            "rows": ((capacity,), dtype),
        }

    def __init__(self, memory, *, in_time=False, observed=(), int64_t back=0):
        self.rows, self.marks, self.heads = memory["rows"], memory["marks"], memory["heads"]
        self.capacity, self.lanes = len(self.rows), len(self.heads)
        self.lane_capacity, self.back = self.capacity // self.lanes, back
        self.memory = self.rows.view(np.uint8).reshape(self.capacity, -1)
        self.mark, self.head = self.marks, self.heads
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
        return self.n_drawable

    def counts(self):
        """Number of rows in each lane, drawable or not, int64, shape (lanes,)."""
        return np.minimum(self.heads, self.lane_capacity)

    @property
    def filled(self):
        """Number of rows, drawable or not."""
        cdef int64_t lane, rows = 0
        for lane in range(self.lanes):
            rows += min(self.head[lane], self.lane_capacity)
        return rows

    def filled_slots(self):
        """The slots that hold a row, ascending: an index array, or a slice where they adjoin."""
        counts = self.counts()
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

    def claim(self, const int64_t[::1] lanes, list arrays):
        """Makes room for the rows of `arrays`, each in its lane, and says which steps join.

        What the slots held is gone from this moment, though its bytes stay until `write`.

        Returns
        -------
        keys, slots : int64 arrays, shape (n,), of the steps
        retired : int64 array, or None: slots that held rows which may no longer be drawn, since
            they, or rows that their windows need, have made room
        whole : bool.  Whether each row has its slot to itself, or else `kept` says which
        """
        cdef Py_ssize_t i, n = lanes.shape[0]
        keys, slots = np.empty(n, np.int64), np.empty(n, np.int64)
        retired = np.empty(self._most_retired(n), np.int64)
        awaited = np.full(self.lanes, -1, np.int64) if self.observes else keys
        cdef Claim claim = Claim(_addresses(arrays), int64s(awaited), int64s(retired), 0, True)
        cdef int64_t* key = int64s(keys)
        cdef int64_t* slot = int64s(slots)
        with nogil:
            for i in range(n):
                key[i] = self._claim_step(&claim, i, lanes[i])
                slot[i] = key[i] % self.capacity
        free(claim.data)
        return keys, slots, retired[: claim.n_retired] if claim.n_retired else None, claim.whole

    def kept(self, const int64_t[::1] keys):
        """Which of the claimed rows are to be published, bool, shape (n,).

        Of more rows than a lane holds, later ones have taken the slots of earlier ones.
        """
        return self._are_there(keys, WRITING)

    def write(self, const int64_t[::1] slots, list arrays):
        """Copies row i of each array to slots[i], and next values to the row after it, in order."""
        cdef uint8_t** data = _addresses(arrays)
        cdef Py_ssize_t i
        with nogil:
            for i in range(slots.shape[0]):
                self._copy_in(data, i, slots[i])
        free(data)

    def publish(self, const int64_t[::1] slots):
        """From now on the claimed and written rows in `slots` may be drawn."""
        cdef Py_ssize_t i
        with nogil:
            atomic_signal_fence(memory_order_seq_cst)
            for i in range(slots.shape[0]):
                if self.mark[slots[i]] & (STEP | WRITING | CUT) == STEP | WRITING:
                    self.mark[slots[i]] ^= WRITING | DRAWABLE
                    self.n_drawable += 1
                self.mark[slots[i]] &= ~WRITING
                if self.observes and not self.mark[self._after(slots[i])] & STEP:
                    self.mark[self._after(slots[i])] &= ~WRITING

    def live(self, const int64_t[::1] keys):
        """Which keys name rows that may be drawn, bool, shape (n,)."""
        return self._are_there(keys, DRAWABLE)

    def missed(self, const int64_t[::1] slots):
        """Where in `slots` those stand whose rows may not be drawn, int64."""
        cdef Py_ssize_t i, n = 0
        positions = np.empty(slots.shape[0], np.int64)
        cdef int64_t* out = int64s(positions)
        with nogil:
            for i in range(slots.shape[0]):
                out[n] = i
                n += not self.mark[slots[i]] & DRAWABLE
        return positions[:n]

    def keys(self, const int64_t[::1] slots):
        """The key that each slot holds now, int64, shape (n,).  Only for slots that hold a row."""
        result = np.empty(slots.shape[0], np.int64)
        cdef int64_t[::1] out = result
        cdef int64_t lanes = self.lanes, lane = -1, newest = 0, turn = 0
        cdef Py_ssize_t i
        with nogil:
            for i in range(slots.shape[0]):
                if lanes > 1 or i == 0:  # divisions take most of the time here
                    lane = slots[i] % lanes
                    newest = (self.head[lane] - 1) * lanes + lane
                    turn = newest - newest % self.capacity
                # Slots behind that of the lane's newest row are still those of the turn before.
                out[i] = turn + slots[i]
                if out[i] > newest:
                    out[i] -= self.capacity
        return result

    def restore(self, heads, rows):
        """Takes over another ring's heads and the rows of its filled slots, as yet undrawable."""
        self.n_drawable, self.marks[:] = 0, 0
        self.heads[:] = heads
        self.rows[self.filled_slots()] = rows

    def restore_marks(self, marks):
        """Marks the filled slots as those of the other ring, so that they may be drawn."""
        self.marks[self.filled_slots()] = marks
        self.n_drawable = np.count_nonzero(marks & DRAWABLE)

    def recover(self):
        """Makes a ring of memory that outlived its process, perhaps between claim and publish.

        Steps that were on their way are lost; what they saw stays, for the rows before them.
        No row that comes in joins them.
        """
        cdef int64_t slot, lane
        with nogil:
            for slot in range(self.capacity):
                if self.mark[slot] & WRITING:
                    self._mark_newest(slot % self.lanes, LAST)
            atomic_signal_fence(memory_order_seq_cst)  # whoever dies here finds what was torn
            self.n_drawable = 0
            for slot in range(self.capacity):
                if self.mark[slot] & WRITING:
                    self.mark[slot] &= ~(STEP | WRITING | DRAWABLE)
                if self.mark[slot] & NEWEST:
                    self.mark[slot] &= ~NEWEST
                self.n_drawable += self.mark[slot] & DRAWABLE != 0
            for lane in range(self.lanes):
                self._mark_newest(lane, NEWEST)

    cdef inline void _mark_newest(self, int64_t lane, uint8_t mark) noexcept nogil:
        """Adds a mark to the newest row of a lane that has rows."""
        if self.head[lane] > 0:
            self.mark[self._slot(lane, self.head[lane] - 1)] |= mark

    cdef int64_t _claim_step(self, Claim* claim, Py_ssize_t i, int64_t lane) noexcept nogil:
        """Claims what row i needs, and returns its key."""
        cdef bint joins = self._joins(claim, i, lane)
        cdef int64_t number = self.head[lane]
        if self.observes and joins:  # then the row is there already
            number -= 1
            self.mark[self._slot(lane, number)] |= STEP | WRITING
        else:
            self._claim_row(claim, lane, (0 if joins else FIRST) | STEP)
        if self.observes:
            self._claim_row(claim, lane, 0)
            claim.awaited[lane] = i
        if self.terminated >= 0:
            self._mark_end(
                lane, number, claim.data[self.terminated][i], claim.data[self.truncated][i]
            )
        return number * self.lanes + lane

    cdef inline void _mark_end(
        self, int64_t lane, int64_t number, bint terminated, bint truncated
    ) noexcept nogil:
        if terminated:
            self.mark[self._slot(lane, number)] |= TERMINATED
        if terminated or truncated:
            self.mark[self._slot(lane, self.head[lane] - 1)] |= LAST

    cdef bint _joins(self, Claim* claim, Py_ssize_t i, int64_t lane) noexcept nogil:
        """Whether row i continues the episode of the newest row of its lane."""
        cdef Py_ssize_t f
        cdef Field field
        cdef int64_t newest
        cdef const uint8_t* announced
        if self.terminated < 0 or self.head[lane] == 0:
            return False
        newest = self._slot(lane, self.head[lane] - 1)
        if self.mark[newest] & LAST:
            return False
        for f in range(self.n_fields):
            field = self.fields[f]
            if field.next < 0:
                continue
            announced = &self.memory[newest, field.offset]
            if claim.awaited[lane] >= 0:  # not written yet
                announced = claim.data[field.next] + claim.awaited[lane] * field.size
            if memcmp(announced, claim.data[f] + i * field.size, field.size) != 0:
                return False
        return True

    cdef void _claim_row(self, Claim* claim, int64_t lane, uint8_t mark) noexcept nogil:
        """Takes the next row of the lane, from its oldest one if it is full.

        In an order that leaves no row drawable that is not whole, wherever the process dies.
        """
        cdef int64_t number = self.head[lane], slot = self._slot(lane, number)
        if number >= self.lane_capacity:
            self._retire(claim, slot)
        atomic_signal_fence(memory_order_seq_cst)
        self.mark[slot] = mark | NEWEST | WRITING
        if number > 0 and self.lane_capacity > 1:
            self.mark[self._slot(lane, number - 1)] &= ~NEWEST
        atomic_signal_fence(memory_order_seq_cst)
        self.head[lane] = number + 1

    cdef void _retire(self, Claim* claim, int64_t slot) noexcept nogil:
        """The oldest row of a lane, and those of its episode whose windows reach back to it."""
        cdef int64_t step
        for step in range(self.back + 1):
            if step > 0 and self.mark[slot] & FIRST:
                break
            if self.mark[slot] & DRAWABLE:
                claim.retired[claim.n_retired] = slot
                claim.n_retired += 1
                self.n_drawable -= 1
            if self.mark[slot] & (STEP | WRITING) == STEP | WRITING:
                claim.whole = False
            self.mark[slot] = self.mark[slot] & ~DRAWABLE | CUT
            slot = self._after(slot)

    cdef inline int64_t _slot(self, int64_t lane, int64_t number) noexcept nogil:
        return number % self.lane_capacity * self.lanes + lane

    cdef inline int64_t _after(self, int64_t slot) noexcept nogil:
        slot += self.lanes
        return slot if slot < self.capacity else slot - self.capacity

    cdef inline bint _is_there(self, int64_t key, uint8_t mark) noexcept nogil:
        cdef int64_t number, head
        if key < 0:  # C's remainder would be negative too, and no lane
            return False
        number, head = key // self.lanes, self.head[key % self.lanes]
        if not head - self.lane_capacity <= number < head:
            return False
        return self.mark[key % self.capacity] & (mark | STEP | CUT) == mark | STEP

    cdef _are_there(self, const int64_t[::1] keys, uint8_t mark):
        cdef Py_ssize_t i
        result = np.empty(keys.shape[0], np.bool_)
        cdef uint8_t* out = <uint8_t*>cnp.PyArray_DATA(result)
        with nogil:
            for i in range(keys.shape[0]):
                out[i] = self._is_there(keys[i], mark)
        return result

    cdef Py_ssize_t _most_retired(self, Py_ssize_t rows):
        """Rows whose place is taken, and those that reach back to them: once each, and at first
        all that a lane's windows span.
        """
        return 2 * (1 + self.observes) * rows + min(rows, self.lanes) * self.back

    cdef inline void _copy_in(self, uint8_t** data, Py_ssize_t i, int64_t slot) noexcept nogil:
        cdef Field field
        cdef Py_ssize_t f
        for f in range(self.n_fields):
            field = self.fields[f]
            # A step that continues its episode finds its own value there.
            if field.next < 0 or self.mark[slot] & FIRST:
                copy(&self.memory[slot, field.offset], data[f] + i * field.size, field.size)
            if field.next >= 0:
                copy(
                    &self.memory[self._after(slot), field.offset],
                    data[field.next] + i * field.size,
                    field.size,
                )


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
    cdef uint8_t** data = <uint8_t**>malloc(len(arrays) * sizeof(void*))
    if data == NULL:
        raise MemoryError(f"no memory for {len(arrays)} addresses")
    for i, array in enumerate(arrays):
        if not cnp.PyArray_IS_C_CONTIGUOUS(array):
            arrays[i] = array = np.ascontiguousarray(array)
        data[i] = <uint8_t*>cnp.PyArray_DATA(array)
    return data
