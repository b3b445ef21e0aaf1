"""The ring of rows: keys, slots, and the copies of rows.

A row is one record: the fields of a transition lie together, so that a draw touches as few
cache lines and pages as the row has.  Key and slot of row number `i` of lane `l` are

    key  = i * lanes + l           a name for ever
    slot = key % capacity          where it lies; lanes take turns, so slots of one step adjoin
"""

import numpy as np

cimport cython
cimport numpy as cnp
from libc.stdint cimport int64_t, uint8_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

cnp.import_array()

cdef extern from "_family.h" nogil:
    int64_t CACHE_LINE "KARY_CACHE_LINE"
    void prefetch "kary_prefetch"(const void* address)

cdef enum:
    AHEAD = 8             # rows between a prefetch and the copy
    PREFETCH_BYTES = 512  # of each row; the hardware follows longer ones by itself


cdef struct Field:
    int64_t offset  # in the row, bytes
    int64_t size    # bytes


@cython.final
cdef class Ring:
    """`capacity` rows of `dtype`, divided evenly among `lanes` rings that share no row.

    Arguments are the caller's to check: lanes, keys and slots in range, arrays of the fields'
    own shape and dtype.  A ring is for one thread at a time.
    """

    cdef readonly int64_t capacity
    cdef readonly int64_t lanes
    cdef readonly object rows    # structured array, (capacity,)
    cdef readonly object heads   # int64 array, (lanes,): rows ever inserted in each lane
    cdef int64_t lane_capacity
    cdef int64_t[::1] head       # `heads`
    cdef uint8_t[:, ::1] memory  # `rows` as bytes
    cdef Field* fields
    cdef Py_ssize_t n_fields
    cdef list columns            # (name, shape, dtype) of each field, in the order of `fields`

    def __cinit__(self, int64_t capacity, int64_t lanes, dtype):
        self.fields = <Field*>malloc(len(dtype.names) * sizeof(Field))
        if self.fields == NULL:
            raise MemoryError(f"no memory for {len(dtype.names)} fields")

    def __dealloc__(self):
        free(self.fields)

    def __init__(self, int64_t capacity, int64_t lanes, dtype):
        self.capacity, self.lanes, self.lane_capacity = capacity, lanes, capacity // lanes
        self.rows = np.zeros(capacity, dtype)
        self.memory = self.rows.view(np.uint8).reshape(capacity, -1)
        self.heads = np.zeros(lanes, np.int64)
        self.head = self.heads
        self.columns, self.n_fields = [], len(dtype.names)
        for i, (field, offset) in enumerate(dtype.fields[name] for name in dtype.names):
            self.fields[i] = Field(offset, field.itemsize)
            self.columns.append((dtype.names[i], field.shape, field.base))

    def __len__(self):
        """Number of live rows."""
        cdef int64_t rows = 0
        for lane in range(self.lanes):
            rows += min(self.head[lane], self.lane_capacity)
        return rows

    def counts(self):
        """Number of live rows in each lane, int64, shape (lanes,)."""
        return np.minimum(self.heads, self.lane_capacity)

    def live_slots(self):
        """The slots that hold a row, ascending: an index array, or a slice where they adjoin."""
        counts = self.counts()
        if (counts == counts[0]).all():
            return slice(0, int(counts.sum()))
        return np.flatnonzero(np.arange(self.lane_capacity)[:, None] < counts)

    def arrays(self, dict columns):
        """The values of `columns` in the order of the fields, and how many rows they are.

        None unless there is exactly one array or NumPy scalar for each field, of its dtype and
        of its shape, with a leading axis of n, or without one in all of them: one row.
        """
        cdef list arrays = []
        cdef tuple column
        cdef Py_ssize_t f, rows = -1
        if len(columns) != self.n_fields:
            return None
        for f in range(self.n_fields):
            column = self.columns[f]
            if column[0] not in columns:
                return None
            array = columns[column[0]]
            if not isinstance(array, cnp.ndarray):
                if not cnp.PyArray_CheckScalar(array):
                    return None
                array = np.asarray(array)
            if f == 0 and cnp.PyArray_NDIM(array) == len(<tuple>column[1]) + 1:
                rows = cnp.PyArray_DIM(array, 0)
            if not fits(array, <tuple>column[1], column[2], rows):
                return None
            arrays.append(array)
        return (1 if rows < 0 else rows), arrays

    def claim(self, const int64_t[::1] lanes):
        """The next row of each row's lane: keys and slots, int64, shape (n,) each.

        What the slots held is gone, though its bytes stay until they are overwritten.  Of more
        rows than a lane holds, the later ones get the slots of the earlier ones.
        """
        keys, slots = np.empty(lanes.shape[0], np.int64), np.empty(lanes.shape[0], np.int64)
        cdef int64_t[::1] key = keys, slot = slots
        cdef Py_ssize_t i
        with nogil:
            for i in range(lanes.shape[0]):
                key[i] = self.head[lanes[i]] * self.lanes + lanes[i]
                slot[i] = key[i] % self.capacity
                self.head[lanes[i]] += 1
        return keys, slots

    def live(self, const int64_t[::1] keys):
        """Which keys were handed out and have not been overwritten, bool, shape (n,)."""
        result = np.empty(keys.shape[0], np.bool_)
        cdef uint8_t* out = <uint8_t*>cnp.PyArray_DATA(result)
        cdef Py_ssize_t i
        with nogil:
            for i in range(keys.shape[0]):
                out[i] = self._is_live(keys[i])
        return result

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

    def write(self, const int64_t[::1] slots, list arrays):
        """Copies row i of each field's array to slots[i], in order."""
        cdef uint8_t** data = _addresses(arrays)
        cdef Py_ssize_t i
        with nogil:
            for i in range(slots.shape[0]):
                self._copy_in(data, i, slots[i])
        free(data)

    def read(self, const int64_t[::1] slots):
        """Copies of the rows in `slots`: a new array for each field, shape (n, *field's shape)."""
        arrays = [np.empty((slots.shape[0], *shape), dtype) for _, shape, dtype in self.columns]
        cdef uint8_t** data = _addresses(arrays)
        cdef Py_ssize_t i, n = slots.shape[0]
        with nogil:
            for i in range(min(<Py_ssize_t>AHEAD, n)):
                self._prefetch(slots[i])
            for i in range(n):
                if i + AHEAD < n:
                    self._prefetch(slots[i + AHEAD])
                self._copy_out(data, i, slots[i])
        free(data)
        return arrays

    cdef inline bint _is_live(self, int64_t key) noexcept nogil:
        cdef int64_t number, head
        if key < 0:  # C's remainder would be negative too, and no lane
            return False
        number, head = key // self.lanes, self.head[key % self.lanes]
        return head - self.lane_capacity <= number < head

    cdef inline void _prefetch(self, int64_t slot) noexcept nogil:
        cdef const uint8_t* row = &self.memory[slot, 0]
        cdef int64_t byte = 0, end = min(self.memory.shape[1], PREFETCH_BYTES)
        while byte < end:
            prefetch(row + byte)
            byte += CACHE_LINE
        prefetch(row + end - 1)  # a row need not begin with a cache line

    cdef inline void _copy_in(self, uint8_t** data, Py_ssize_t i, int64_t slot) noexcept nogil:
        cdef Field field
        cdef Py_ssize_t f
        for f in range(self.n_fields):
            field = self.fields[f]
            copy(&self.memory[slot, field.offset], data[f] + i * field.size, field.size)

    cdef inline void _copy_out(self, uint8_t** data, Py_ssize_t i, int64_t slot) noexcept nogil:
        cdef Field field
        cdef Py_ssize_t f
        for f in range(self.n_fields):
            field = self.fields[f]
            copy(data[f] + i * field.size, &self.memory[slot, field.offset], field.size)


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


cdef inline void copy(uint8_t* target, const uint8_t* source, int64_t size) noexcept nogil:
    """memcpy, without its call for the scalars of a row."""
    if size == 4:
        memcpy(target, source, 4)
    elif size == 1:
        target[0] = source[0]
    elif size == 8:
        memcpy(target, source, 8)
    else:
        memcpy(target, source, size)


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
