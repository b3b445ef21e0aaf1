"""Atomic loads and stores of plain numbers, and copies of what others are writing.

See _atomic.h, which says what each of them promises.
"""

from libc.stdint cimport int64_t, uint8_t, uint64_t

cdef extern from "_atomic.h" nogil:
    # C's macros take integers of any width, so one of them has several names here.
    int64_t load_acquire "kary_load_acquire"(const int64_t* address)
    int64_t load_relaxed "kary_load_relaxed"(const int64_t* address)
    void store_release "kary_store_release"(int64_t* address, int64_t value)
    void store_relaxed "kary_store_relaxed"(int64_t* address, int64_t value)
    int64_t fetch_add "kary_fetch_add"(int64_t* address, int64_t value)
    uint64_t fetch_or "kary_fetch_or"(uint64_t* address, uint64_t value)
    uint64_t fetch_and "kary_fetch_and"(uint64_t* address, uint64_t value)
    bint compare_and_swap "kary_compare_and_swap"(
        int64_t* address, int64_t expected, int64_t desired
    )

    uint8_t load_acquire_byte "kary_load_acquire"(const uint8_t* address)
    uint8_t load_relaxed_byte "kary_load_relaxed"(const uint8_t* address)
    void store_release_byte "kary_store_release"(uint8_t* address, uint8_t value)
    void store_relaxed_byte "kary_store_relaxed"(uint8_t* address, uint8_t value)
    uint8_t fetch_or_byte "kary_fetch_or"(uint8_t* address, uint8_t value)
    uint8_t fetch_and_byte "kary_fetch_and"(uint8_t* address, uint8_t value)

    double load_double "kary_load_double"(const double* address)  # both relaxed
    void store_double "kary_store_double"(double* address, double value)
    double load_racing "kary_load_racing"(const double* address)  # of many in a loop
    void store_racing "kary_store_racing"(double* address, double value)
    bint compare_and_swap_double "kary_compare_and_swap_double"(
        double* address, double expected, double desired
    )

    void fence_acquire "kary_fence_acquire"()
    void fence_release "kary_fence_release"()

    void copy_racing "kary_copy_racing"(uint8_t* target, const uint8_t* source, int64_t size)
    bint equal_racing "kary_equal_racing"(const uint8_t* a, const uint8_t* b, int64_t size)
