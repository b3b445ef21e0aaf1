"""The gather: from the rows that were drawn to the columns of a batch, without the GIL."""

import numpy as np

cimport cython
cimport numpy as cnp
from libc.stdint cimport int64_t, uint8_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memset

from kary_replay._copy cimport copy
from kary_replay._marks cimport FIRST, NEWEST, STEP, TERMINATED, WRITING

cnp.import_array()

cdef extern from "_family.h" nogil:
    void prefetch "kary_prefetch_bytes"(const uint8_t* bytes, int64_t size)

cdef enum:
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
    int64_t before   # rows before it
    int64_t steps    # steps from it on, itself among them


@cython.final
cdef class Gather:
    """Copies the columns `outputs` (windows.Output) of rows that are drawn from a ring.

    It reads the ring's rows and marks, which go on belonging to the ring, and writes nothing.
    Slots are the caller's to check: only those of rows that may be drawn.
    """

    cdef const uint8_t[:, ::1] memory
    cdef const uint8_t[::1] marks
    cdef int64_t capacity
    cdef int64_t lanes             # slots from one row of a lane to the next
    cdef int64_t back, ahead       # how far any output reaches
    cdef bint spans                # whether any is more than a FIELD
    cdef Output* outputs
    cdef Py_ssize_t n_outputs
    cdef list columns              # (name, shape, dtype) of each output

    def __cinit__(self, ring, list outputs):
        self.outputs = <Output*>calloc(len(outputs), sizeof(Output))
        if self.outputs == NULL:
            raise MemoryError(f"no memory for {len(outputs)} outputs")
        self.n_outputs = len(outputs)

    def __dealloc__(self):
        cdef Py_ssize_t o
        for o in range(self.n_outputs):
            free(self.outputs[o].powers)
        free(self.outputs)

    def __init__(self, ring, list outputs):
        self.capacity, self.lanes, self.marks = ring.capacity, ring.lanes, ring.marks
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
        """The columns of the rows in `slots`: {name: new array of shape (n, *output's shape)}."""
        cdef dict columns = {}
        cdef Py_ssize_t i, o, n = slots.shape[0]
        cdef uint8_t** data = <uint8_t**>malloc(self.n_outputs * sizeof(void*))
        if data == NULL:
            raise MemoryError(f"no memory for {self.n_outputs} addresses")
        try:
            for o, (name, shape, dtype) in enumerate(self.columns):
                columns[name] = array = np.empty((n, *shape), dtype)
                data[o] = <uint8_t*>cnp.PyArray_DATA(array)
            with nogil:
                for i in range(min(<Py_ssize_t>AHEAD, n)):
                    self._prefetch(slots[i])
                for i in range(n):
                    if i + AHEAD < n:
                        self._prefetch(slots[i + AHEAD])
                    self._gather(data, i, slots[i])
        finally:
            free(data)
        return columns

    cdef inline int64_t _slot(self, int64_t slot, int64_t steps) noexcept nogil:
        """The slot of the row `steps` after that of `slot` in its lane, |steps| <= rows there."""
        slot += steps * self.lanes
        if slot < 0:
            return slot + self.capacity
        return slot if slot < self.capacity else slot - self.capacity

    cdef inline void _prefetch(self, int64_t slot) noexcept nogil:
        cdef int64_t step, size = min(self.memory.shape[1], PREFETCH_BYTES)
        for step in range(-self.back, self.ahead + 1):
            prefetch(&self.memory[self._slot(slot, step), 0], size)

    cdef inline void _gather(self, uint8_t** data, Py_ssize_t i, int64_t slot) noexcept nogil:
        cdef Span span
        cdef const Output* output
        cdef uint8_t* target
        cdef Py_ssize_t o
        if self.spans:
            span = self._span(slot)
        for o in range(self.n_outputs):
            output = &self.outputs[o]
            target = data[o] + i * output.width
            if output.kind == FIELD:
                copy(target, &self.memory[slot, output.offset], output.size)
            elif output.kind == WINDOW:
                self._window(output, target, slot, span)
            elif output.kind == MASK:
                self._mask(output, target, span)
            elif output.kind == SUM:
                self._sum(output, target, slot, span)
            else:
                self._discount(output, <float*>target, slot, span)

    cdef inline Span _span(self, int64_t slot) noexcept nogil:
        cdef Span span = Span(0, 1)
        cdef int64_t here = slot
        while span.before < self.back and not self.marks[here] & FIRST:
            here = self._slot(here, -1)
            span.before += 1
        here = slot
        while span.steps <= self.ahead and not self.marks[here] & NEWEST:
            here = self._slot(here, 1)
            if self.marks[here] & (FIRST | STEP | WRITING) != STEP:
                break
            span.steps += 1
        return span

    cdef inline void _window(
        self, const Output* output, uint8_t* target, int64_t slot, Span span
    ) noexcept nogil:
        """The rows first .. end - 1 of the episode, and what pads them; counted from the row."""
        cdef int64_t anchor = min(output.n_steps, span.steps)
        cdef int64_t first = -span.before, end = span.steps + output.observed
        cdef int64_t step, here
        for step in range(anchor + output.start, anchor + output.stop):
            here = min(max(step, first), end - 1)
            if here == step or output.edge:
                copy(target, &self.memory[self._slot(slot, here), output.offset], output.size)
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
        self, const Output* output, uint8_t* target, int64_t slot, Span span
    ) noexcept nogil:
        """In double precision, whatever the dtype."""
        cdef int64_t steps = min(output.n_steps, span.steps)
        cdef int64_t item, step, itemsize = 8 if output.doubles else 4
        cdef const uint8_t* source
        cdef double total
        for item in range(output.size // itemsize):
            total = 0.0
            for step in range(steps):
                source = &self.memory[self._slot(slot, step), output.offset + item * itemsize]
                total += output.powers[step] * (
                    (<const double*>source)[0] if output.doubles else (<const float*>source)[0]
                )
            if output.doubles:
                (<double*>target)[item] = total
            else:
                (<float*>target)[item] = <float>total

    cdef inline void _discount(
        self, const Output* output, float* target, int64_t slot, Span span
    ) noexcept nogil:
        cdef int64_t steps = min(output.n_steps, span.steps)
        if self.marks[self._slot(slot, steps - 1)] & TERMINATED:
            target[0] = 0.0
        else:
            target[0] = <float>output.powers[steps]
