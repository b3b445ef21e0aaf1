"""Columns: what may be declared, what may be put in, and that it comes out as it went in."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from kary_replay import ReplayBuffer


def stored(dtype: npt.DTypeLike, value: Any, shape: tuple[int, ...] = ()) -> npt.NDArray[Any]:
    """What a column gives back for one row of `value`."""
    buffer = ReplayBuffer(2, {"x": (shape, dtype)}, seed=0)
    buffer.add(x=value)
    return buffer.sample(1)["x"][0]


# --- declarations ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("columns", "error"),
    [
        ({}, ValueError),
        ({"x": ((0,), np.float32)}, ValueError),
        ({"x": ((10**18,), np.float32)}, ValueError),
        ({"x": ((2**29,), np.float32)}, ValueError),
        ([("x", ((), np.float32))], TypeError),
        ({"x": ((-1,), np.float32)}, ValueError),
        ({"x": ((2.5,), np.float32)}, TypeError),
        ({"x": ("17", np.float32)}, TypeError),
        ({"x": (17, np.float32)}, TypeError),
        ({"x": ((), "no dtype")}, TypeError),
        ({"x": ((), object)}, TypeError),
        ({"x": ((), None)}, TypeError),
        ({"x": ((), "U5")}, TypeError),
        ({"x": ((), "M8[s]")}, TypeError),
        ({"x": ((), [("a", np.int8)])}, TypeError),
        ({"x": np.float32}, TypeError),
        ({"x": ((),)}, TypeError),
        ({"": ((), np.float32)}, TypeError),
        ({3: ((), np.float32)}, TypeError),
        ({"lanes": ((), np.float32)}, ValueError),
        ({"td_errors": ((), np.float32)}, ValueError),
    ],
    ids=repr,
)
def test_a_wrong_declaration_is_refused(columns: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="column"):
        ReplayBuffer(4, columns)


def test_declarations_are_shown_as_they_were_made() -> None:
    columns = {"b": ((2, 3), np.uint8), "a": ((), np.float64), "flag": ((), bool)}
    buffer = ReplayBuffer(4, columns)
    assert buffer.columns == {
        "b": ((2, 3), np.dtype(np.uint8)),
        "a": ((), np.dtype(np.float64)),
        "flag": ((), np.dtype(bool)),
    }
    buffer.add(b=np.zeros((2, 3), np.uint8), a=1.0, flag=True)
    assert list(buffer.sample(1).columns) == ["b", "a", "flag"]


# --- dtypes ---------------------------------------------------------------------------------

DTYPES = [
    "?",
    "i1",
    "u1",
    "i2",
    "u2",
    "i4",
    "u4",
    "i8",
    "u8",
    "f2",
    "f4",
    "f8",
    "c8",
    "c16",
]


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("code", [*DTYPES, "longdouble"])
def test_every_dtype_stays_what_it_is(code: str, order: str) -> None:
    dtype = np.dtype(code).newbyteorder(order)
    values = np.array([[1, 0, 1], [0, 1, 1]]).astype(dtype)
    buffer = ReplayBuffer(4, {"x": ((3,), dtype)}, seed=0)
    buffer.add(x=values)
    batch = buffer.sample(20)
    assert batch["x"].dtype == dtype
    assert (batch["x"] == values[batch.slots]).all()


@pytest.mark.parametrize("code", ["i1", "u1", "i8", "u8"])
def test_integers_keep_both_ends_of_their_range(code: str) -> None:
    for end in (np.iinfo(code).min, np.iinfo(code).max):
        assert stored(code, end) == end
        assert stored(code, np.array(end, code)) == end


def test_nan_and_infinity_are_kept() -> None:
    values = np.array([np.nan, np.inf, -np.inf, -0.0], np.float64)
    for dtype in (np.float16, np.float32, np.float64):
        assert stored(dtype, values, (4,)).tobytes() == values.astype(dtype).tobytes()


def test_an_integer_reward_does_not_make_the_column_integer() -> None:
    buffer = ReplayBuffer(4, {"reward": ((), np.float32)}, seed=0)
    buffer.add(reward=1)
    buffer.add(reward=np.int64(2))
    buffer.add(reward=0.25)
    assert set(buffer.sample(200)["reward"].tolist()) == {1.0, 2.0, 0.25}


@pytest.mark.parametrize(
    ("dtype", "value", "want"),
    [
        (np.float32, 0.1, np.float32(0.1)),  # rounded
        (np.float32, 2**24 + 1, np.float32(2**24)),
        (np.float64, np.float16(0.5), 0.5),
        (np.int64, np.int8(-3), -3),
        (np.uint8, np.int64(200), 200),
        (np.uint8, True, 1),
        (np.bool_, 1, True),
        (np.bool_, np.uint8(0), False),
        (np.float32, True, 1.0),
        (np.complex64, 2, 2 + 0j),
    ],
)
def test_values_that_survive_the_cast_are_taken(dtype: Any, value: Any, want: Any) -> None:
    result = stored(dtype, value)
    assert (result.dtype, result[()]) == (dtype, want)


@pytest.mark.parametrize(
    ("dtype", "value", "error"),
    [
        (np.uint8, 256, ValueError),
        (np.uint8, -1, ValueError),
        (np.int8, np.uint8(128), ValueError),
        (np.int64, np.uint64(2**63), ValueError),
        (np.uint64, -1, ValueError),
        (np.bool_, 2, ValueError),
        (np.int64, 1.0, TypeError),
        (np.uint8, 0.5, TypeError),
        (np.bool_, 1.0, TypeError),
        (np.float32, 1j, TypeError),
        (np.float32, 1e39, ValueError),
        (np.float16, 70000, ValueError),
        (np.complex64, 1e39 + 0j, ValueError),
        (np.float32, "1", TypeError),
        (np.float32, None, TypeError),
        (np.float32, [None], TypeError),
        (np.int64, 2**70, TypeError),
    ],
    ids=repr,
)
def test_values_that_do_not_survive_the_cast_are_refused(
    dtype: Any, value: Any, error: type[Exception]
) -> None:
    buffer = ReplayBuffer(2, {"x": ((), dtype)}, seed=0)
    before = pickle.dumps(buffer)
    with pytest.raises(error, match="column 'x'"):
        buffer.add(x=value)
    assert pickle.dumps(buffer) == before


def test_one_bad_value_among_many_is_refused_whole() -> None:
    buffer = ReplayBuffer(8, {"x": ((2,), np.uint8)})
    with pytest.raises(ValueError, match="column 'x' is uint8, which cannot hold 300"):
        buffer.add(x=[[1, 2], [3, 300], [5, 6]])
    assert len(buffer) == 0


# --- names and shapes -----------------------------------------------------------------------

COLUMNS = {
    "obs": ((3,), np.float32),
    "image": ((2, 2), np.uint8),
    "reward": ((), np.float64),
}
ROWS = {
    "obs": np.zeros((4, 3)),
    "image": np.zeros((4, 2, 2), np.uint8),
    "reward": np.zeros(4),
}


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"obs": None}, "missing.*obs"),
        ({"reward": None}, "missing.*reward"),
        ({"done": 1.0}, "unknown.*done"),
        ({"obs": np.zeros(3)}, "obs"),
        ({"obs": np.zeros((4, 2))}, "obs"),
        ({"obs": np.zeros((3, 4))}, "obs"),
        ({"obs": np.zeros((4, 3, 1))}, "obs"),
        ({"obs": np.zeros((5, 3))}, "obs|image|reward"),
        ({"image": np.zeros((4, 4), np.uint8)}, "image"),
        ({"image": np.zeros((1, 2, 2), np.uint8)}, "obs|image|reward"),
        ({"reward": 0.0}, "obs|image|reward"),
        ({"reward": np.zeros((4, 1))}, "reward"),
        ({"reward": np.zeros(5)}, "obs|image|reward"),
        ({"obs": 0.0}, "obs"),
        ({"obs": [[1.0, 2.0, 3.0], [1.0]]}, "obs"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_wrong_names_and_shapes_are_refused(changes: dict[str, Any], named: str) -> None:
    buffer = ReplayBuffer(8, COLUMNS, seed=0)
    before = pickle.dumps(buffer)
    rows = {name: value for name, value in (ROWS | changes).items() if value is not None}
    with pytest.raises(ValueError, match=named):
        buffer.add(**rows)
    assert pickle.dumps(buffer) == before


def test_one_number_among_columns_of_many_is_refused() -> None:
    buffer = ReplayBuffer(8, {"x": ((), np.int64), "y": ((), np.int64)}, seed=0)
    with pytest.raises(ValueError, match=r"column 'y' .* like the other columns, got \(\)"):
        buffer.add(x=[1], y=2)


def test_one_row_with_and_without_a_leading_axis_is_the_same() -> None:
    one, many = ReplayBuffer(8, COLUMNS, seed=0), ReplayBuffer(8, COLUMNS, seed=0)
    row: dict[str, Any] = {"obs": [1, 2, 3], "image": [[1, 2], [3, 4]], "reward": 0.5}
    assert one.add(**row).tolist() == many.add(**{n: [v] for n, v in row.items()}).tolist() == [0]
    assert one.view("obs")[0].tolist() == many.view("obs")[0].tolist() == [1, 2, 3]
    assert one.sample(1)["image"].tolist() == many.sample(1)["image"].tolist()


def test_arrays_of_every_layout_go_in() -> None:
    buffer = ReplayBuffer(8, COLUMNS, seed=0)
    obs = np.arange(24.0).reshape(4, 6)[:, ::2]
    image = np.asfortranarray(np.arange(16, dtype=np.uint8).reshape(4, 2, 2))
    reward = np.arange(4.0)[::-1]
    for array in (obs, image, reward):
        array.flags.writeable = False
    buffer.add(obs=obs, image=image, reward=reward)
    batch = buffer.sample(50)
    assert (batch["obs"] == obs[batch.slots]).all()
    assert (batch["image"] == image[batch.slots]).all()
    assert (batch["reward"] == reward[batch.slots]).all()


def test_torch_tensors_go_in() -> None:
    torch = pytest.importorskip("torch")
    buffer = ReplayBuffer(4, {"x": ((2,), np.float32)}, seed=0)
    buffer.add(x=torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    assert buffer.view("x")[:2].tolist() == [[1.0, 2.0], [3.0, 4.0]]


def test_a_column_may_be_called_self() -> None:
    buffer = ReplayBuffer(2, {"self": ((), np.int64)}, seed=0)
    buffer.add(self=7)
    assert buffer.sample(1)["self"].tolist() == [7]


def test_the_order_of_declaration_makes_no_difference_to_a_file(tmp_path: Path) -> None:
    columns: dict[str, Any] = {"b": ((2,), np.float32), "a": ((), np.float32), "c": ((), np.int8)}
    one, other = (ReplayBuffer(4, dict(order)) for order in (columns, sorted(columns.items())))
    one.add(b=[1, 2], a=3, c=4)
    one.save(tmp_path / "file")
    other.load(tmp_path / "file")
    batch = other.sample(1)
    assert [batch[name][0].tolist() for name in "bac"] == [[1.0, 2.0], 3.0, 4]


def test_columns_of_many_and_foreign_names_are_saved(tmp_path: Path) -> None:
    columns: dict[str, Any] = {f"a long name of column {i}, θ": ((3,), np.int8) for i in range(600)}
    buffer = ReplayBuffer(2, columns, seed=0)
    buffer.add(**{name: np.full(3, i % 100) for i, name in enumerate(columns)})
    buffer.save(tmp_path / "file")
    again = ReplayBuffer(2, columns)
    again.load(tmp_path / "file")
    batch = again.sample(1)
    assert [batch[name][0, 0] for name in columns] == [i % 100 for i in range(600)]
    assert list(batch) == list(columns)
