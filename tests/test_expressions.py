"""What may be declared as a function of time, and what is refused: with the expression quoted."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kary_replay import Column, Horizon, PrioritizedReplayBuffer, ReplayBuffer, Stored, t

frame, x, reward = Column("frame"), Column("x"), Column("reward")
k = Horizon(3)
FLAGS = {"terminated": ((), np.bool_), "truncated": ((), np.bool_)}
STORED: dict[str, Any] = {
    "frame": Stored((2, 2), np.uint8, with_next=True),
    "x": ((), np.int64),
    "reward": ((), np.float32),
    "flag": ((), np.bool_),
    **FLAGS,
}
CAPACITY = 8  # of one lane; with frame, at most 7 steps and what is seen after them


def declare(derived: dict[str, Any], capacity: int = CAPACITY, **arguments: Any) -> ReplayBuffer:
    return ReplayBuffer(capacity, STORED | derived, **arguments)


# --- accepted ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "derived",
    [
        {"d": x[t]},
        {"d": x[t - 6]},
        {"d": x[t - np.int64(2)]},
        {"d": x[t + k - 1]},
        {"d": frame[t + 1]},
        {"d": frame[t + k]},
        {"d": frame[t - 3 : t + 1]},
        {"d": frame[t - 2 : t + 2]},
        {"d": frame[t + k - 3 : t + k + 1]},
        {"d": x[t - 3 : t - 1]},
        {"d": x[t + k - 2 : t + k]},
        {"next_frame": frame[t + 1]},
        {"next_x": x[t - 1]},
        {"d": x[t : t + 4], "m": x[t : t + 4].valid()},
        {"d": x[t - 2 : t + 4].pad("edge"), "m": x[t - 2 : t + 4].valid()},
        {"d": x[t : t + 2], "e": reward[t : t + 2], "one mask": x[t : t + 2].valid()},
        {"m": frame[t - 2 : t + 5].valid(), "d": frame[t - 2 : t + 5]},
        {"d": reward[t : t + k].sum(0.9)},
        {"d": reward[t : t + k].sum(0)},
        {"d": reward[t : t + k].sum(np.float64(1.0))},
        {"d": 0.9**k},
        {"d": 1**k, "e": 0.5 ** Horizon(1)},
        {"d": frame[t + Horizon(np.uint8(3)) - 5], "e": x[t + Horizon(np.int8(3)) - 1]},
        {"d": np.float32(0.5) ** k, "e": np.float64(0.5) ** k},
        {"d": x[t + 2], "m": x[t + 2].valid()},
    ],
    ids=lambda derived: ", ".join(map(str, derived)),
)
def test_what_is_legal_is_accepted_and_drawn(derived: dict[str, Any]) -> None:
    buffer = declare(derived, seed=0)
    image = np.zeros((2, 2), np.uint8)
    values = {"x": 1, "reward": 1.0, "flag": False, "terminated": False, "truncated": False}
    buffer.add(frame=image, next_frame=image, **values)
    assert set(buffer.sample(1)) == STORED.keys() | derived.keys()


def test_an_expression_reads_as_it_is_written() -> None:
    assert str(frame[t - 3 : t + 1]) == "frame[t-3:t+1]"
    assert str(frame[-3 + t : 1 + t]) == "frame[t-3:t+1]"
    assert str(frame[t]) == "frame[t]"
    assert str(x[t - 2].pad("edge")) == 'x[t-2].pad("edge")'
    assert str(frame[t + k - 3 : t + k + 1]) == "frame[t+k(3)-3:t+k(3)+1]"
    assert str(reward[t : t + k].sum(0.5)) == "reward[t:t+k(3)].sum(0.5)"
    assert str(x[t - 1 : t + 2].valid()) == "x[t-1:t+2].valid()"
    assert str(0.5**k) == "0.5**k(3)"


# --- refused: windows -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("quoted", "make"),
    [
        # columns that are not there
        ("d = fram[t]", lambda: Column("fram")[t]),
        ("d = other[t-1]", lambda: Column("other")[t - 1]),  # a derived one
        ("d = d[t]", lambda: Column("d")[t]),
        ("d = next_frame[t]", lambda: Column("next_frame")[t]),
        # values after the last one
        ("d = x[t+1]", lambda: x[t + 1]),
        ("d = x[t+k]", lambda: x[t + k]),
        ("d = frame[t+2]", lambda: frame[t + 2]),
        ("d = frame[t+k+1]", lambda: frame[t + k + 1]),
        ("d = reward[t+k]", lambda: reward[t + k]),
        # windows that may reach past the last value, without a mask
        ("d = x[t:t+2]", lambda: x[t : t + 2]),
        ("d = x[t+1:t+3]", lambda: x[t + 1 : t + 3]),
        ("d = x[t-2:t+2]", lambda: x[t - 2 : t + 2]),
        ("d = frame[t-2:t+3]", lambda: frame[t - 2 : t + 3]),
        ("d = x[t+k-1:t+k+1]", lambda: x[t + k - 1 : t + k + 1]),
        ("d = frame[t+k:t+k+2]", lambda: frame[t + k : t + k + 2]),
        # longer than a lane
        ("d = x[t-8]", lambda: x[t - 8]),
        ("d = x[t-8:t+1]", lambda: x[t - 8 : t + 1]),
        ("d = frame[t-100:t+1]", lambda: frame[t - 100 : t + 1]),
        ("d = frame[t-100:t-90]", lambda: frame[t - 100 : t - 90]),
        ("d = x[t-100000000000000000000]", lambda: x[t - 10**20]),
        ("d = 0.5**k", lambda: 0.5 ** Horizon(10**21)),
        ("d = reward[t:t+k].sum(0.5)", lambda: reward[t : t + Horizon(9)].sum(0.5)),
        # sums
        ("d = x[t:t+k]", lambda: x[t : t + k].sum(0.9)),
        ("d = flag[t:t+k]", lambda: Column("flag")[t : t + k].sum(0.9)),
        ("d = frame[t:t+k]", lambda: frame[t : t + k].sum(0.9)),
        ("d = reward[t:t+k]", lambda: reward[t : t + k]),
        ("d = other[t:t+k]", lambda: Column("other")[t : t + k].sum(0.9)),
    ],
    ids=lambda case: case if isinstance(case, str) else "",
)
@pytest.mark.parametrize("kind", [ReplayBuffer, PrioritizedReplayBuffer])
def test_a_wrong_window_is_quoted(kind: Any, quoted: str, make: Callable[[], Any]) -> None:
    pattern = re.escape(quoted).replace("k", r"k\(\d+\)")
    with pytest.raises((ValueError, TypeError), match=pattern):
        kind(CAPACITY, STORED | {"other": x[t], "d": make()})


@pytest.mark.parametrize(
    "make",
    [
        lambda: frame[t:t],
        lambda: frame[t : t - 2],
        lambda: frame[t + k : t + k - 1],
        lambda: frame[t - 2 : t + 1 : 2],
        lambda: frame[t + 1 : t - 2 : -1],
        lambda: frame[t - 2 :],
        lambda: frame[: t + 1],
        lambda: frame[:],
        lambda: frame[0:3],
        lambda: frame[3],
        lambda: frame[-1],
        lambda: frame[t, t],
        lambda: frame[...],
        lambda: frame[None],
        lambda: frame["t"],
        lambda: frame[k],
        lambda: frame[t - 2 : k],
        # both ends on one anchor
        lambda: frame[t - 2 : t + k],
        lambda: frame[t + k : t + 5],
        lambda: frame[t + Horizon(2) : t + Horizon(3)],
        lambda: reward[t - 1 : t + k].sum(0.9),
        lambda: reward[t + 1 : t + k].sum(0.9),
        lambda: reward[t : t + k + 1].sum(0.9),
        lambda: reward[t : t + k - 1].sum(0.9),
    ],
)
def test_a_slice_that_is_no_window_is_quoted(make: Callable[[], Any]) -> None:
    with pytest.raises((ValueError, TypeError), match=r"(frame|reward)\[") as caught:
        declare({"d": make()})
    assert "object at 0x" not in str(caught.value)


@pytest.mark.parametrize("padding", ["mirror", "", None, 0, True, ["edge"]])
def test_a_window_is_padded_with_zeros_or_from_its_edge(padding: Any) -> None:
    with pytest.raises((ValueError, TypeError), match=r"padding .*zeros.*edge"):
        frame[t - 2 : t + 1].pad(padding)


@pytest.mark.parametrize(
    "make",
    [lambda: list(frame), lambda: next(iter(frame)), lambda: [*frame[t - 2 : t + 1]]],
    ids=["list", "iter", "star"],
)
def test_columns_and_windows_are_no_sequences(make: Callable[[], Any]) -> None:
    with pytest.raises((TypeError, ValueError)):
        make()


@pytest.mark.parametrize(
    "mask",
    [
        {},
        {"m": x[t : t + 3].valid()},
        {"m": x[t - 1 : t + 4].valid()},
        {"m": frame[t - 1 : t + 3].valid()},
        {"m": x[t + k - 1 : t + k + 3].valid()},
    ],
    ids=["none", "narrower", "wider", "with one value more", "at t+k"],
)
def test_a_window_past_the_end_needs_a_mask_of_its_steps(mask: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=re.escape("d = x[t-1:t+3]")):
        declare({"d": x[t - 1 : t + 3]} | mask)


def test_a_forgotten_with_next_is_an_error_and_not_zeros() -> None:
    columns = STORED | {"frame": ((2, 2), np.uint8), "next_obs": frame[t - 2 : t + 2]}
    with pytest.raises(ValueError, match=re.escape("next_obs = frame[t-2:t+2]")):
        ReplayBuffer(CAPACITY, columns)


@pytest.mark.parametrize("lanes", [1, 3])
@pytest.mark.parametrize(
    ("derived", "rows"),
    [
        ({"d": x[t - 3 : t + 1]}, 4),
        ({"d": x[t - 3]}, 4),
        ({"d": x[t : t + 4], "m": x[t : t + 4].valid()}, 4),
        ({"d": reward[t : t + Horizon(4)].sum(0.9)}, 4),
        ({"d": 0.9 ** Horizon(4)}, 4),
        ({"d": x[t + Horizon(4) - 1]}, 4),
        ({"d": x[t + Horizon(4) - 4]}, 7),  # t - 3, where k = 1
        ({"d": x[t + Horizon(4) - 3 : t + Horizon(4)]}, 6),
    ],
    ids=lambda case: ", ".join(map(str, case.values())) if isinstance(case, dict) else "",
)
def test_a_lane_holds_the_longest_window(derived: dict[str, Any], rows: int, lanes: int) -> None:
    columns = {name: STORED[name] for name in ("x", "reward", *FLAGS)} | derived
    seen = columns | {"frame": STORED["frame"]}  # a row more, of what is seen after the last step
    for declared, needed in ((columns, rows), (seen, rows + 1)):
        ReplayBuffer(lanes * needed, declared, lanes=lanes)
        with pytest.raises(ValueError, match=r"d = .*lane"):
            ReplayBuffer(lanes * (needed - 1), declared, lanes=lanes)


@pytest.mark.parametrize(
    ("derived", "rows"),
    [
        ({"d": frame[t]}, 2),
        ({"d": frame[t + 1]}, 2),
        ({"d": frame[t - 3 : t + 1]}, 5),
        ({"d": frame[t - 2 : t + 2]}, 4),
        ({"d": frame[t + k]}, 4),
        ({"d": frame[t + k - 3 : t + k + 1]}, 6),
        ({"d": frame[t : t + 5], "m": frame[t : t + 5].valid()}, 5),
    ],
    ids=lambda case: ", ".join(map(str, case.values())) if isinstance(case, dict) else "",
)
def test_a_lane_holds_the_longest_window_of_observations(
    derived: dict[str, Any], rows: int
) -> None:
    columns = {name: STORED[name] for name in ("frame", *FLAGS)} | derived
    ReplayBuffer(rows, columns)
    with pytest.raises(ValueError, match=r"lane"):
        ReplayBuffer(rows - 1, columns)


# --- refused: numbers -------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [0, -1, 2.5, True, "3", None, np.nan, np.array([2, 3])])
def test_a_horizon_is_a_whole_number_of_steps(steps: Any) -> None:
    with pytest.raises((ValueError, TypeError), match="n_steps"):
        Horizon(steps)


@pytest.mark.parametrize("gamma", ["0.9", None, True, np.nan, np.inf, -0.5, 1j, [0.9]])
def test_gamma_is_a_number(gamma: Any) -> None:
    with pytest.raises((ValueError, TypeError), match=r"gamma|reward\[t"):
        declare({"d": reward[t : t + k].sum(gamma)})


@pytest.mark.parametrize("gamma", ["0.9", None, True, np.nan, np.inf, -0.5, 1j, [0.9]])
def test_gamma_of_a_discount_is_a_number(gamma: Any) -> None:
    with pytest.raises((ValueError, TypeError), match=r"gamma|\*\*"):
        declare({"d": gamma**k})


@pytest.mark.parametrize("derived", [reward[t : t + k].sum(1e200), 1e200**k])
def test_powers_of_gamma_beyond_float64_are_refused(derived: Any) -> None:
    with pytest.raises(ValueError, match=r"column d = .*1e\+200.* float64"):
        declare({"d": derived})


@pytest.mark.parametrize(
    "make",
    [
        lambda: t + 1.5,
        lambda: t - 1.0,
        lambda: t + True,
        lambda: t + np.bool_(True),
        lambda: t - "1",
        lambda: t + None,
        lambda: t + t,
        lambda: t - t,
        lambda: t * 2,
        lambda: 2 * t,
        lambda: -t,
        lambda: 1 - t,
        lambda: t - k,
        lambda: t + k + k,
        lambda: t**2,
        lambda: k + 1.5,
        lambda: k**2,
        lambda: 2 * k,
        lambda: t + np.array([1, 2]),
    ],
)
def test_a_place_in_time_is_t_or_t_plus_k_and_a_whole_number(make: Callable[[], Any]) -> None:
    with pytest.raises((TypeError, ValueError)):
        declare({"d": frame[make()]})


@pytest.mark.parametrize(
    "column",
    [t, t + 1, t + k, k, frame, reward[t : t + k], "frame[t]", 0.9, None, Stored, Column],
    ids=repr,
)
def test_what_is_no_column_is_refused_by_name(column: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=r"'d'|d = "):
        declare({"d": column})


@pytest.mark.parametrize("name", ["", 3, None, b"frame"])
def test_columns_are_named(name: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        declare({"d": Column(name)[t]})


# --- refused: what is stored ------------------------------------------------------------------


def test_what_an_observation_announces_is_not_stored_again() -> None:
    with pytest.raises(ValueError, match="next_frame"):
        ReplayBuffer(CAPACITY, STORED | {"next_frame": ((2, 2), np.uint8)})


@pytest.mark.parametrize("flag", ["terminated", "truncated"])
@pytest.mark.parametrize(
    "declared", [None, ((), np.int8), ((), np.float32), ((1,), np.bool_)], ids=repr
)
@pytest.mark.parametrize("why", ["derived", "with_next"])
def test_episodes_need_both_flags(flag: str, declared: Any, why: str) -> None:
    columns = {name: STORED[name] for name in ("x", *FLAGS)}
    columns |= {"d": x[t - 1]} if why == "derived" else {"frame": STORED["frame"]}
    del columns[flag]
    if declared is not None:
        columns[flag] = declared
    with pytest.raises((ValueError, TypeError), match=flag):
        ReplayBuffer(CAPACITY, columns)


def test_a_flag_is_not_derived_or_an_observation() -> None:
    with pytest.raises((ValueError, TypeError), match="truncated"):
        ReplayBuffer(CAPACITY, {"x": ((), np.int64), **FLAGS, "truncated": x[t - 1]})


def test_without_columns_of_time_flags_are_columns_like_others() -> None:
    ReplayBuffer(CAPACITY, {"x": ((), np.int64), "terminated": ((3,), np.int8)})
    ReplayBuffer(CAPACITY, {"x": Stored((), np.int64)})


@pytest.mark.parametrize(
    "make",
    [
        lambda: Stored((2.5,), np.uint8),
        lambda: Stored((0,), np.uint8),
        lambda: Stored((), object),
        lambda: Stored((), None),
        lambda: Stored((), np.uint8, with_next="yes"),
        lambda: Stored((), np.uint8, drawn=0),
        lambda: Stored((), np.uint8, with_next=None),
        lambda: Stored((), np.longdouble, with_next=True),
        lambda: Stored((), np.clongdouble, with_next=True),
    ],
)
def test_a_wrong_stored_column_is_refused(make: Callable[[], Any]) -> None:
    with pytest.raises((ValueError, TypeError), match=r"column|with_next|drawn"):
        ReplayBuffer(CAPACITY, {**FLAGS, "x": make()})


def test_a_batch_has_a_column() -> None:
    with pytest.raises(ValueError, match="drawn"):
        ReplayBuffer(CAPACITY, {"x": Stored((), np.int64, drawn=False)})
    ReplayBuffer(CAPACITY, {"x": Stored((), np.int64, drawn=False), **FLAGS, "d": x[t - 1]})
    with pytest.raises(ValueError, match="stored"):
        ReplayBuffer(CAPACITY, {"d": x[t - 1]})


def test_one_row_holds_no_step_and_what_is_seen_after_it() -> None:
    columns = {"frame": STORED["frame"], **FLAGS}
    ReplayBuffer(2, columns)
    with pytest.raises(ValueError, match="frame"):
        ReplayBuffer(1, columns)
    with pytest.raises(ValueError, match="frame"):
        ReplayBuffer(3, columns, lanes=3)
