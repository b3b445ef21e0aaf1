"""Copies of a row's fields."""

from libc.stdint cimport int64_t, uint8_t
from libc.string cimport memcpy


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
