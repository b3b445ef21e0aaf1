"""The gather: from the rows that were drawn to the columns of a batch, without the GIL."""

import numpy as np

cimport cython
cimport numpy as cnp
from cpython.ref cimport Py_INCREF
from libc.stdint cimport int64_t, uint8_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memset

from kary_replay._atomic cimport copy_racing as copy
from kary_replay._atomic cimport fence_acquire, load_acquire
from kary_replay._parts cimport Parts
from kary_replay._tags cimport (
    FIRST, NEWEST, STEP, TERMINATED, WRITING, is_drawable, key_of
)

cnp.import_array()

cdef extern from "_family.h" nogil:
    void prefetch "kary_prefetch_bytes"(const uint8_t* bytes, int64_t size)

cdef extern from "numpy/arrayobject.h":
    object PyArray_Empty(int axes, cnp.npy_intp* sizes, cnp.dtype dtype, int is_fortran)

cdef enum:
    MOST_AXES = 64        # NumPy's
    AHEAD = 8             # rows between a prefetch and the copy
    PREFETCH_BYTES = 512  # of each row; the hardware follows longer ones by itself

cdef enum Kind:  # windows.Kind
    WINDOW
    MASK
    SUM
    DISCOUNT
    FIELD            # a WINDOW of the row itself alone

cdef struct Output:  # windows.Output
    Kind kind
    bint observed
    bint edge
    bint doubles     # SUM: of float64, or else float32
    int64_t offset   # of the field in the row, bytes
    int64_t size     # of the field, bytes
    int64_t n_steps
    int64_t start, stop
    int64_t width    # of the output's row, bytes
    double* powers   # gamma**j, j = 0 .. n_steps

cdef struct Span:    # how much of an episode lies around a row, as far as any window reaches
    int64_t slot, key
    int64_t before   # rows before it
    int64_t steps    # steps from it on, itself among them


@cython.final
cdef class Gather:
    """Copies the columns `outputs` (windows.Output) of rows that are drawn from a ring.

    It reads the ring's rows and marks, which go on belonging to the ring, and writes nothing.
    Slots are the caller's to check: those of rows, or -1, of which there is nothing.
    """

    cdef const uint8_t[:, ::1] memory
    cdef Parts parts               # the tags
    cdef int64_t capacity
    cdef int64_t lanes             # slots from one row of a lane to the next
    cdef int64_t back, ahead       # how far any output reaches
    cdef bint spans                # whether any is more than a FIELD
    cdef Output* outputs
    cdef Py_ssize_t n_outputs
    cdef list columns              # (name, shape, dtype) of each output

    def __cinit__(self, ring, parts, list outputs):
        self.outputs = <Output*>calloc(len(outputs), sizeof(Output))
        if self.outputs == NULL:
            raise MemoryError(f"no memory for {len(outputs)} outputs")
        self.n_outputs = len(outputs)

    def __dealloc__(self):
        cdef Py_ssize_t o
        for o in range(self.n_outputs):
            free(self.outputs[o].powers)
        free(self.outputs)

    def __init__(self, ring, Parts parts not None, list outputs):
        self.capacity, self.lanes, self.parts = ring.capacity, ring.lanes, parts
        self.memory = ring.rows.view(np.uint8).reshape(ring.capacity, -1)
        self.back = max(output.back for output in outputs)
        self.ahead = max(output.ahead for output in outputs)
        self.columns = [(output.name, output.shape, output.dtype) for output in outputs]
        for o, output in enumerate(outputs):
            self._set(&self.outputs[o], output, ring.rows.dtype.fields)
            self.spans = self.spans or self.outputs[o].kind != FIELD

    cdef _set(self, Output* mine, output, fields):
        mine.kind, mine.observed, mine.edge = output.kind, output.observed, output.edge
        mine.start, mine.stop, mine.n_steps = output.start, output.stop, output.n_steps
        mine.width = output.dtype.itemsize * int(np.prod(output.shape))
        mine.doubles = output.dtype == np.float64
        if output.field:
            field, mine.offset = fields[output.field][:2]
            mine.size = field.itemsize
        if (mine.kind, mine.n_steps, mine.start, mine.stop) == (WINDOW, 0, 0, 1):
            mine.kind = FIELD
        if output.kind in (SUM, DISCOUNT):
            mine.powers = <double*>malloc((mine.n_steps + 1) * sizeof(double))
            if mine.powers == NULL:
                raise MemoryError(f"no memory for a horizon of {mine.n_steps} steps")
            for j in range(mine.n_steps + 1):
                mine.powers[j] = output.gamma ** j

    def read(self, const int64_t[::1] slots):
        """Copies of the rows in `slots`.

        Returns
        -------
        columns : dict of name to new array, shape (n, *output's shape)
        keys : int64 array, shape (n,), of what was copied
        missed : int64 array.  Positions in `slots` of which there is nothing in both: rows that
            may not be drawn, or were overwritten while they were copied; see `again`.
        """
        n = slots.shape[0]
        columns = {name: empty(n, shape, dtype) for name, shape, dtype in self.columns}
        keys = np.empty(n, np.int64)
        return columns, keys, self._read(columns, keys, slots, NULL, n)

    def again(self, dict columns, keys, const int64_t[::1] slots, const int64_t[::1] positions):
        """Reads slots[p] into row p of columns and keys, for p in positions; returns the missed."""
        return self._read(columns, keys, slots, &positions[0], positions.shape[0])

    cdef _read(
        self, dict columns, keys, const int64_t[::1] slots, const int64_t* positions, Py_ssize_t n
    ):
        """`again`, of all positions if these are NULL."""
        cdef Py_ssize_t i, o, at, n_missed = 0
        missed = np.empty(n, np.int64)
        cdef int64_t* miss = <int64_t*>cnp.PyArray_DATA(missed)
        cdef int64_t* key = <int64_t*>cnp.PyArray_DATA(keys)
        cdef uint8_t** data = <uint8_t**>malloc(self.n_outputs * sizeof(void*))
        if data == NULL:
            raise MemoryError(f"no memory for {self.n_outputs} addresses")
        for o, (name, _, _) in enumerate(self.columns):
            data[o] = <uint8_t*>cnp.PyArray_DATA(columns[name])
        with nogil:
            for i in range(min(<Py_ssize_t>AHEAD, n)):
                self._prefetch(slots[nth(positions, i)])
            for i in range(n):
                if i + AHEAD < n:
                    self._prefetch(slots[nth(positions, i + AHEAD)])
                at = nth(positions, i)
                miss[n_missed] = at
                n_missed += not self._gather(data, at, slots[at], &key[at])
        free(data)
        return missed[:n_missed]

    cdef inline int64_t _slot(self, int64_t slot, int64_t steps) noexcept nogil:
        """The slot of the row `steps` after that of `slot` in its lane, |steps| <= rows there."""
        slot += steps * self.lanes
        if slot < 0:
            return slot + self.capacity
        return slot if slot < self.capacity else slot - self.capacity

    cdef inline void _prefetch(self, int64_t slot) noexcept nogil:
        cdef int64_t step, size = min(self.memory.shape[1], PREFETCH_BYTES)
        prefetch(<const uint8_t*>&self.parts.tags[slot], 1)
        for step in range(-self.back, self.ahead + 1):
            prefetch(&self.memory[self._slot(slot, step), 0], size)

    cdef inline bint _gather(
        self, uint8_t** data, Py_ssize_t i, int64_t slot, int64_t* key
    ) noexcept nogil:
        """Copies row i of every output; False if what was copied is not whole.

        Whoever overwrites a row, or one that its windows reach, changes its tag before.
        """
        cdef Span span
        cdef int64_t tag
        cdef Py_ssize_t o
        if slot < 0:
            return False
        tag = load_acquire(&self.parts.tags[slot])
        key[0] = key_of(tag)
        if not is_drawable(tag, key[0]):
            return False
        span = Span(slot, key[0], 0, 1)
        if self.spans and not self._measure(&span):
            return False
        for o in range(self.n_outputs):
            self._put_out(&self.outputs[o], data[o] + i * self.outputs[o].width, span)
        fence_acquire()
        return is_drawable(load_acquire(&self.parts.tags[slot]), key[0])

    cdef inline void _put_out(
        self, const Output* output, uint8_t* target, Span span
    ) noexcept nogil:
        if output.kind == FIELD:
            copy(target, &self.memory[span.slot, output.offset], output.size)
        elif output.kind == WINDOW:
            self._window(output, target, span)
        elif output.kind == MASK:
            self._mask(output, target, span)
        elif output.kind == SUM:
            self._sum(output, target, span)
        else:
            self._discount(output, <float*>target, span)

    cdef inline bint _measure(self, Span* span) noexcept nogil:
        """False if a row before it is gone: then it may not be drawn, as its tag will say soon."""
        cdef int64_t slot = span.slot, tag = load_acquire(&self.parts.tags[slot])
        while span.before < self.back and not tag & FIRST:
            slot = self._slot(slot, -1)
            tag = load_acquire(&self.parts.tags[slot])
            span.before += 1
            if key_of(tag) != span.key - span.before * self.lanes:
                return False
        slot, tag = span.slot, load_acquire(&self.parts.tags[span.slot])
        while span.steps <= self.ahead and not tag & NEWEST:
            slot = self._slot(slot, 1)
            tag = load_acquire(&self.parts.tags[slot])
            if (
                tag & (FIRST | STEP | WRITING) != STEP
                or key_of(tag) != span.key + span.steps * self.lanes
            ):
                break
            span.steps += 1
        return True

    cdef inline void _window(
        self, const Output* output, uint8_t* target, Span span
    ) noexcept nogil:
        """The rows first .. end - 1 of the episode, and what pads them; counted from the row."""
        cdef int64_t anchor = min(output.n_steps, span.steps)
        cdef int64_t first = -span.before, end = span.steps + output.observed
        cdef int64_t step, here
        for step in range(anchor + output.start, anchor + output.stop):
            here = min(max(step, first), end - 1)
            if here == step or output.edge:
                copy(target, &self.memory[self._slot(span.slot, here), output.offset], output.size)
            else:
                memset(target, 0, output.size)
            target += output.size

    cdef inline void _mask(self, const Output* output, uint8_t* target, Span span) noexcept nogil:
        cdef int64_t anchor = min(output.n_steps, span.steps)
        cdef int64_t step, end = span.steps + output.observed
        for step in range(anchor + output.start, anchor + output.stop):
            target[0] = -span.before <= step < end
            target += 1

    cdef inline void _sum(
        self, const Output* output, uint8_t* target, Span span
    ) noexcept nogil:
        """In double precision, whatever the dtype."""
        cdef int64_t steps = min(output.n_steps, span.steps)
        cdef int64_t item, step, itemsize = 8 if output.doubles else 4
        cdef const uint8_t* source
        cdef double total
        for item in range(output.size // itemsize):
            total = 0.0
            for step in range(steps):
                source = &self.memory[self._slot(span.slot, step), output.offset + item * itemsize]
                total += output.powers[step] * _number(source, output.doubles)
            if output.doubles:
                (<double*>target)[item] = total
            else:
                (<float*>target)[item] = <float>total

    cdef inline void _discount(
        self, const Output* output, float* target, Span span
    ) noexcept nogil:
        cdef int64_t steps = min(output.n_steps, span.steps)
        if load_acquire(&self.parts.tags[self._slot(span.slot, steps - 1)]) & TERMINATED:
            target[0] = 0.0
        else:
            target[0] = <float>output.powers[steps]


cdef inline object empty(Py_ssize_t n, tuple shape, cnp.dtype dtype):
    """np.empty((n, *shape), dtype), whose arguments need no parsing."""
    cdef cnp.npy_intp sizes[MOST_AXES]
    cdef int axis, axes = len(shape)
    sizes[0] = n
    for axis in range(axes):
        sizes[axis + 1] = shape[axis]
    Py_INCREF(dtype)  # the array takes over a reference
    return PyArray_Empty(axes + 1, sizes, dtype, 0)


cdef inline Py_ssize_t nth(const int64_t* positions, Py_ssize_t i) noexcept nogil:
    return i if positions == NULL else positions[i]


cdef inline double _number(const uint8_t* source, bint is_double) noexcept nogil:
    """A float64 or a float32, which somebody may be overwriting."""
    cdef double number
    cdef float single
    if is_double:
        copy(<uint8_t*>&number, source, sizeof(double))
        return number
    copy(<uint8_t*>&single, source, sizeof(float))
    return single
