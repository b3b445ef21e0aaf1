"""The sampler's loops, which a draw of usual size needs one call for and NumPy several.

Such a call takes longer than what it computes, and several times as long once a gradient step
has filled the caches.  Powers stay NumPy's, which knows the machine's vectors.
"""

import numpy as np

cimport cython
cimport numpy as cnp
from libc.math cimport fabs
from libc.stdint cimport int64_t

cnp.import_array()


def stratify(cnp.ndarray fractions):
    """Moves the j-th of n numbers of [0, 1), float64, into [j / n, (j + 1) / n]."""
    cdef double* fraction = <double*>cnp.PyArray_DATA(fractions)
    cdef Py_ssize_t j, n = cnp.PyArray_SIZE(fractions)
    for j in range(n):
        fraction[j] = (fraction[j] + j) / n


def places(cnp.ndarray fractions, int64_t size):
    """The place of each number of [0, 1), float64, among `size` equal pieces, int64.

    A product is rounded, but never up to `size`, up to 2 ** 53.
    """
    result = np.empty(cnp.PyArray_SIZE(fractions), np.int64)
    cdef const double* fraction = <double*>cnp.PyArray_DATA(fractions)
    cdef int64_t* out = <int64_t*>cnp.PyArray_DATA(result)
    cdef Py_ssize_t i
    for i in range(cnp.PyArray_SIZE(fractions)):
        out[i] = <int64_t>(fraction[i] * size)
    return result


def priorities(cnp.ndarray td_errors, double eps, double limit):
    """abs(td_error) + eps of each.

    Parameters
    ----------
    td_errors : float32 or float64 array of any shape, contiguous and aligned

    Returns
    -------
    float64 array, shape (td_errors.size,)
    wrong : the first position whose priority is above `limit` or NaN, or -1
    """
    result = np.empty(cnp.PyArray_SIZE(td_errors))
    cdef const void* errors = cnp.PyArray_DATA(td_errors)
    cdef bint is_single = cnp.PyArray_TYPE(td_errors) == cnp.NPY_FLOAT32
    cdef double* out = <double*>cnp.PyArray_DATA(result)
    cdef Py_ssize_t i, n = cnp.PyArray_SIZE(td_errors), wrong = -1
    for i in range(n):
        out[i] = fabs((<float*>errors)[i] if is_single else (<double*>errors)[i]) + eps
        if not out[i] <= limit and wrong < 0:
            wrong = i
    return result, wrong


@cython.cdivision(True)
def relative(cnp.ndarray masses, unit=None):
    """unit / mass of each, float64; the smallest of them is the unit, if none is given."""
    result = np.empty(cnp.PyArray_SIZE(masses))
    cdef const double* mass = <double*>cnp.PyArray_DATA(masses)
    cdef double* out = <double*>cnp.PyArray_DATA(result)
    cdef Py_ssize_t i, n = cnp.PyArray_SIZE(masses)
    cdef double smallest = mass[0] if unit is None else unit
    if unit is None:
        for i in range(n):
            smallest = min(smallest, mass[i])
    for i in range(n):
        out[i] = smallest / mass[i]
    return result
