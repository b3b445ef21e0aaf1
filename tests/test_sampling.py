"""The sampler's loops beside what NumPy says, bit for bit."""

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from kary_replay._sampling import places, priorities, relative, stratify

FRACTIONS = arrays(np.float64, st.integers(0, 50), elements=st.floats(0, 1, exclude_max=True))
MASSES = arrays(np.float64, st.integers(1, 50), elements=st.floats(1e-300, 1e300))
BELOW_ONE = np.nextafter(1.0, 0.0)


@given(fractions=FRACTIONS)
def test_strata(fractions: npt.NDArray[np.float64]) -> None:
    n = len(fractions)
    want = (fractions + np.arange(n)) / n
    stratify(fractions)
    assert fractions.tobytes() == want.tobytes()


@given(fractions=FRACTIONS, size=st.integers(1, 2**53))
def test_places_are_those_of_equal_pieces(fractions: npt.NDArray[np.float64], size: int) -> None:
    got = places(fractions, size)
    assert got.dtype == np.int64
    assert got.tolist() == np.floor(fractions * size).tolist()


@given(size=st.integers(1, 2**53))
def test_the_largest_fraction_is_in_the_last_place(size: int) -> None:
    assert places(np.array([0.0, BELOW_ONE]), size).tolist() == [0, size - 1]


@given(
    td_errors=st.sampled_from([np.float32, np.float64]).flatmap(
        lambda dtype: arrays(dtype, array_shapes(max_dims=2), elements={"allow_nan": True})
    ),
    eps=st.floats(0, 1),
    limit=st.sampled_from([1.0, 1e30, np.finfo(np.float64).max]),
)
def test_priorities(td_errors: npt.NDArray[np.floating], eps: float, limit: float) -> None:
    want = np.abs(td_errors.astype(np.float64)).ravel() + eps
    got, wrong = priorities(td_errors, eps, limit)
    assert np.array_equal(got, want, equal_nan=True)
    assert wrong == next((i for i, p in enumerate(want.tolist()) if not p <= limit), -1)


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf, 2.0, -2.0])
def test_the_first_wrong_td_error_is_named(wrong: float) -> None:
    assert priorities(np.array([1.0, -1.0, wrong, wrong]), 0.0, 1.0)[1] == 2


@given(masses=MASSES)
def test_relative_to_the_smallest(masses: npt.NDArray[np.float64]) -> None:
    assert relative(masses).tobytes() == (masses.min() / masses).tobytes()


@given(masses=MASSES, unit=st.floats(0, 1e300))
def test_relative_to_a_unit(masses: npt.NDArray[np.float64], unit: float) -> None:
    with np.errstate(over="ignore"):
        assert relative(masses, unit).tobytes() == (unit / masses).tobytes()
