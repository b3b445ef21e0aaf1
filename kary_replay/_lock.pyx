"""Where participants and locks lie in memory, and their use from Python: see _lock.h.

Compiled code takes a lock by the functions of _lock.pxd.
"""

import numpy as np

cimport cython
from libc.stdint cimport int64_t, uint64_t

from kary_replay._atomic cimport load_acquire

PARTICIPANTS_NBYTES = ENTRIES * sizeof(Entry)
LOCK_NBYTES = sizeof(Lock)  # a cache line, in which nothing else lies


@cython.no_gc_clear  # __dealloc__ needs the memory
cdef class Participants:
    """The processes that use some memory: those that are alive, and the dead not replaced yet.

    Parameters
    ----------
    memory : uint8 array of PARTICIPANTS_NBYTES, at the beginning of a cache line; zeros if new
    is_shared : bool.  Whether processes share the memory; otherwise a forked child, which has a
        copy of it, is alone there, and all others count as dead.

    From threads alike.  A forked child needs no object of its own.  The process leaves with the
    object: so not while a thread of it is still at work.
    """

    def __dealloc__(self):
        if self.table.entries != NULL:
            leave(&self.table)

    def __init__(self, memory, *, bint is_shared=True):
        self.table.entries = <Entry*>_address(memory, PARTICIPANTS_NBYTES)
        self.table.is_shared = is_shared
        self.memory = memory

    @property
    def me(self):
        """The number of this process, which joins if it has not yet; never that of another one.

        Raises RuntimeError if 255 processes that are alive have joined.
        """
        cdef uint64_t me = participant(&self.table)
        if me == 0:
            raise RuntimeError(f"at most {ENTRIES - 1} processes can use this memory at once")
        return me

    def leave(self):
        """Make room for another process.  Nothing, if this one has not joined."""
        leave(&self.table)

    def is_alive(self, uint64_t participant):
        return state(&self.table, participant) != DEAD

    def is_stopped(self, uint64_t participant):
        """Whether a signal has stopped the process (SIGSTOP, Ctrl-Z), or a debugger."""
        return state(&self.table, participant) == STOPPED


cdef class SpinLock:
    """A lock among the threads of all participants, which others take over if its holder dies.

    Parameters
    ----------
    memory : uint8 array of LOCK_NBYTES, at the beginning of a cache line; zeros if new
    participants : Participants
    """

    def __init__(self, memory, Participants participants not None):
        self.lock = <Lock*>_address(memory, LOCK_NBYTES)
        self.participants, self.memory = participants, memory

    def acquire(self):
        """Waits for the lock, without the GIL.  Not for a thread that holds it already.

        Returns
        -------
        ticket : int, for `release`
        taken_over : bool.  Whether a holder has died, or was stopped and others did not wait
            any longer, so that what the lock protects must be rebuilt before anything else
        """
        cdef uint64_t ticket, me = self.participants.me
        cdef bint taken_over = False
        with nogil:
            ticket = acquire(self.lock, &self.participants.table, me, &taken_over)
        return ticket, taken_over

    def release(self, uint64_t ticket):
        """Whether the lock was still held by the ticket.

        Otherwise it was taken over while this process was stopped, and what was stored since may
        have done damage: acquire, rebuild what the lock protects, and release again.
        """
        return release(self.lock, ticket)

    @property
    def holder(self):
        """The participant that holds the lock, perhaps a dead one; 0 if it is free."""
        return <uint64_t>load_acquire(<int64_t*>&self.lock.word) & PARTICIPANT


cdef void* _address(memory, size_t nbytes) except NULL:
    """Where the bytes of the array lie."""
    if not isinstance(memory, np.ndarray) or memory.dtype != np.uint8:
        raise TypeError(f"memory must be a uint8 array, got {getattr(memory, 'dtype', memory)!r}")
    if memory.shape != (nbytes,):
        raise ValueError(f"memory must have shape ({nbytes},), got {memory.shape}")
    if not memory.flags.carray:
        raise ValueError("memory must be contiguous and writable")
    if memory.ctypes.data % sizeof(Lock):
        raise ValueError(f"memory must begin at a multiple of {sizeof(Lock)} bytes, "
                         f"got address {memory.ctypes.data:#x}")
    return <void*><size_t>memory.ctypes.data
