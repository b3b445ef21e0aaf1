"""The tag of a row: which one it is, who writes it, and what may be done with it.

    key << 16 | writer << 8 | marks        one word, so that all of it changes at once

A tag is changed only by a holder of its part's lock (see _parts.pyx), but for NEWEST and for
WRITING of an observation alone, and read by anybody.  The writer is the number of a participant
(see _lock.h), while the row is WRITING.
"""

from libc.stdint cimport int64_t

cdef enum Mark:
    FIRST = 1       # the first of its episode: no window of a later row goes back past it
    LAST = 2        # the last of its episode: the next row of the lane is a FIRST
    STEP = 4        # a step, to which a reward belongs; without it, an observation alone
    TERMINATED = 8  # a step that ended its episode by itself
    WRITING = 16    # claimed, and its bytes not all there
    DRAWABLE = 32   # a step that is all there, and so is what its windows reach back to
    NEWEST = 64     # the newest row of its lane
    CUT = 128       # a step whose windows reach back to a row that has been overwritten

cdef enum:
    MARKS = 0xff
    WRITER = 0xff00


cdef inline int64_t tag(int64_t key, int64_t writer, int64_t marks) noexcept nogil:
    return key << 16 | writer << 8 | marks


cdef inline int64_t key_of(int64_t tag) noexcept nogil:
    return tag >> 16


cdef inline int64_t writer_of(int64_t tag) noexcept nogil:
    return tag >> 8 & 0xff


cdef inline bint is_written_by(int64_t tag, int64_t writer) noexcept nogil:
    return tag & WRITING and tag >> 8 & 0xff == writer


cdef inline bint is_drawable(int64_t tag, int64_t key) noexcept nogil:
    """Whether the tag is that of row `key`, and the row may be drawn."""
    return tag >> 16 == key and tag & DRAWABLE


cdef inline int64_t given_up(int64_t tag) noexcept nogil:
    """What was claimed and not published: an observation, and an end."""
    return tag & ~(STEP | WRITING | WRITER | DRAWABLE) | LAST
