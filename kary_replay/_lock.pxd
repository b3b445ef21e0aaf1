"""Locks in memory that processes share, which survive the death of their holders: see _lock.h.

What holds one in compiled code looks like this, where `table` is &participants.table:

    with nogil:                                       # never wait with the GIL
        me = participant(table)                       # 0 if the table is full
        ticket = acquire(lock, table, me, &taken_over)
        if taken_over:
            rebuild()
        ...
        while not release(lock, ticket):              # lost meanwhile: what we stored may be wrong
            ticket = acquire(lock, table, me, &taken_over)
            rebuild()
"""

from libc.stdint cimport int64_t, uint64_t

cdef extern from "_lock.h" nogil:
    ctypedef struct Entry "kary_entry":
        pass
    ctypedef struct Lock "kary_lock":
        uint64_t word
        int64_t count
    ctypedef struct Table "kary_participants":
        Entry* entries
        bint is_shared

    int ENTRIES "KARY_ENTRIES"
    uint64_t PARTICIPANT "KARY_PARTICIPANT"
    int DEAD "KARY_DEAD"
    int STOPPED "KARY_STOPPED"

    uint64_t participant "kary_participant"(Table* table)
    void leave "kary_leave"(Table* table)
    int state_of_number "kary_state_of_number"(const Table* table, uint64_t number)
    void rest "kary_pause"(uint64_t round)
    int state "kary_state"(const Table* table, uint64_t participant)

    uint64_t acquire "kary_acquire"(Lock* lock, Table* table, uint64_t me, bint* taken_over)
    bint release "kary_release"(Lock* lock, uint64_t ticket)


cdef class Participants:
    cdef Table table
    cdef object memory


cdef class SpinLock:
    cdef Lock* lock
    cdef readonly Participants participants
    cdef object memory
