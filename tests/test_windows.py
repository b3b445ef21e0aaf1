"""Columns of time by hand: small streams, written out, whose batches anyone can check."""

from __future__ import annotations

import copy
import itertools
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kary_replay import Column, Horizon, PrioritizedReplayBuffer, ReplayBuffer, Stored, t

frame, obs, reward = Column("frame"), Column("obs"), Column("reward")
FLAGS = {"terminated": ((), np.bool_), "truncated": ((), np.bool_)}
NO_END = {"terminated": False, "truncated": False}
TERMINATED = {"terminated": True, "truncated": False}
TRUNCATED = {"terminated": False, "truncated": True}
ENDS = {"": NO_END, "terminated": TERMINATED, "truncated": TRUNCATED}


def rows(buffer: ReplayBuffer, *names: str) -> dict[int, Any]:
    """Every row that can be drawn: key to the values of the named columns, as lists."""
    if len(buffer) == 0:
        return {}
    batch = buffer.sample(50 * len(buffer))
    columns = [batch[name].tolist() for name in names]
    values = columns[0] if len(names) == 1 else list(zip(*columns, strict=True))
    found = dict(zip(batch.keys.tolist(), values, strict=True))
    assert len(found) == len(buffer)
    return dict(sorted(found.items()))


# --- n steps ----------------------------------------------------------------------------------


def n_step_buffer(capacity: int, n_steps: int = 3, **arguments: Any) -> ReplayBuffer:
    k = Horizon(n_steps)
    columns = {
        "obs": ((), np.int64),
        "next_obs": ((), np.int64),
        "reward": ((), np.float32),
        **FLAGS,
        "return": reward[t : t + k].sum(0.5),
        "next": Column("next_obs")[t + k - 1],
        "discount": 0.5**k,
    }
    return ReplayBuffer(capacity, columns, seed=0, **arguments)


def add_steps(buffer: ReplayBuffer, steps: int, ends: dict[int, str] | None = None) -> None:
    """Step i has observation i, reward i + 1 and next observation i + 1."""
    for i in range(steps):
        end = ENDS[(ends or {}).get(i, "")]
        buffer.add(obs=i, next_obs=i + 1, reward=i + 1, **end)


def by_slot(buffer: ReplayBuffer) -> dict[int, tuple[float, ...]]:
    found = rows(buffer, "obs", "return", "next", "discount")
    return dict(sorted((key % buffer.capacity, row) for key, row in found.items()))


def test_n_step_windows_around_a_full_ring() -> None:
    buffer = n_step_buffer(5)
    add_steps(buffer, 8)
    assert by_slot(buffer) == {
        0: (5, 11.5, 8, 0.125),
        1: (6, 11.0, 8, 0.25),
        2: (7, 8.0, 8, 0.5),
        3: (3, 8.0, 6, 0.125),
        4: (4, 9.75, 7, 0.125),
    }


def test_the_newest_rows_have_shorter_windows() -> None:
    buffer = n_step_buffer(8)
    add_steps(buffer, 4)
    assert by_slot(buffer) == {
        0: (0, 2.75, 3, 0.125),
        1: (1, 4.5, 4, 0.125),
        2: (2, 5.0, 4, 0.25),
        3: (3, 4.0, 4, 0.5),
    }


def test_a_terminal_reward_counts_and_nothing_is_bootstrapped() -> None:
    buffer = n_step_buffer(8)
    add_steps(buffer, 4, {2: "terminated"})
    assert by_slot(buffer) == {
        0: (0, 2.75, 3, 0.0),  # the end is the last step of the window
        1: (1, 3.5, 3, 0.0),
        2: (2, 3.0, 3, 0.0),
        3: (3, 4.0, 4, 0.5),
    }


def test_a_truncated_episode_is_bootstrapped_from_its_last_observation() -> None:
    buffer = n_step_buffer(8)
    add_steps(buffer, 4, {2: "truncated"})
    assert by_slot(buffer) == {
        0: (0, 2.75, 3, 0.125),
        1: (1, 3.5, 3, 0.25),
        2: (2, 3.0, 3, 0.5),
        3: (3, 4.0, 4, 0.5),
    }


def test_an_episode_that_is_both_terminated_and_truncated_is_terminated() -> None:
    buffer = n_step_buffer(4)
    buffer.add(obs=0, next_obs=1, reward=1, terminated=True, truncated=True)
    buffer.add(obs=1, next_obs=2, reward=2, **NO_END)
    assert by_slot(buffer) == {0: (0, 1.0, 1, 0.0), 1: (1, 2.0, 2, 0.5)}


def test_an_end_just_behind_the_window_does_not_matter() -> None:
    buffer = n_step_buffer(8, n_steps=2)
    add_steps(buffer, 3, {2: "terminated"})
    assert by_slot(buffer)[0] == (0, 2.0, 2, 0.25)


def test_one_step_is_the_transition_itself() -> None:
    buffer = n_step_buffer(8, n_steps=1)
    add_steps(buffer, 3, {1: "terminated"})
    assert by_slot(buffer) == {0: (0, 1.0, 1, 0.5), 1: (1, 2.0, 2, 0.0), 2: (2, 3.0, 3, 0.5)}


def test_sums_of_columns_with_a_shape_and_of_float64() -> None:
    k = Horizon(2)
    columns = {"reward": ((2,), np.float64), **FLAGS, "return": reward[t : t + k].sum(0.1)}
    buffer = ReplayBuffer(4, columns, seed=0)
    buffer.add(reward=[1.0, 2.0], **NO_END)
    buffer.add(reward=[3.0, 5.0], **TERMINATED)
    batch = buffer.sample(50)
    assert batch["return"].shape == (50, 2)
    assert batch["return"].dtype == np.float64
    expected = {0: [1.0 + 0.1 * 3.0, 2.0 + 0.1 * 5.0], 1: [3.0, 5.0]}
    assert rows(buffer, "return") == {key: pytest.approx(row) for key, row in expected.items()}


def test_horizons_of_different_lengths_side_by_side() -> None:
    columns = {
        "reward": ((), np.float32),
        **FLAGS,
        "one": reward[t : t + Horizon(1)].sum(0.5),
        "three": reward[t : t + Horizon(3)].sum(0.5),
        "both": 0.5 ** Horizon(2),
    }
    buffer = ReplayBuffer(4, columns, seed=0)
    for number in (1, 2, 4):
        buffer.add(reward=number, **NO_END)
    assert rows(buffer, "one", "three", "both") == {
        0: (1.0, 3.0, 0.25),
        1: (2.0, 4.0, 0.25),
        2: (4.0, 4.0, 0.5),
    }


def test_k_counts_steps_that_no_column_reads() -> None:
    k = Horizon(3)
    columns = {
        "frame": ((), np.uint8),
        **FLAGS,
        "early": frame[t + k - 3],
        "late": frame[t + k - 2],
    }
    buffer = ReplayBuffer(8, columns, seed=0)
    for number in (1, 2, 3, 4):
        buffer.add(frame=number, **NO_END)
    assert rows(buffer, "early", "late") == {0: (1, 2), 1: (2, 3), 2: (2, 3), 3: (2, 3)}


# --- stacks -----------------------------------------------------------------------------------


def stack_buffer(capacity: int, stack: Any, **arguments: Any) -> ReplayBuffer:
    columns = {"frame": ((), np.uint8), **FLAGS, "stack": stack}
    return ReplayBuffer(capacity, columns, seed=0, **arguments)


@pytest.mark.parametrize(
    ("pad", "stacks"),
    [
        ("edge", {0: [1, 1, 1], 1: [2, 2, 2], 2: [2, 2, 3]}),
        ("zeros", {0: [0, 0, 1], 1: [0, 0, 2], 2: [0, 2, 3]}),
    ],
)
def test_a_stack_begins_with_its_episode(pad: str, stacks: dict[int, list[int]]) -> None:
    buffer = stack_buffer(8, frame[t - 2 : t + 1].pad(pad))
    buffer.add(frame=1, **TRUNCATED)
    buffer.add(frame=2, **NO_END)
    buffer.add(frame=3, **NO_END)
    assert rows(buffer, "stack") == stacks


def test_zeros_are_the_default_before_the_start() -> None:
    buffer = stack_buffer(8, frame[t - 2 : t + 1])
    buffer.add(frame=1, **NO_END)
    assert rows(buffer, "stack") == {0: [0, 0, 1]}


def test_a_single_value_before_the_start_is_filled_too() -> None:
    buffer = stack_buffer(8, frame[t - 2])
    for number in (1, 2, 3):
        buffer.add(frame=number, **NO_END)
    assert rows(buffer, "stack") == {0: 0, 1: 0, 2: 1}


@pytest.mark.parametrize("kind", [ReplayBuffer, PrioritizedReplayBuffer])
def test_rows_whose_stack_is_overwritten_are_not_drawn(kind: type[ReplayBuffer]) -> None:
    columns = {"frame": ((), np.uint8), **FLAGS, "stack": frame[t - 2 : t + 1]}
    buffer = kind(5, columns, seed=0)
    for number in range(1, 6):
        buffer.add(frame=number, **NO_END)
    whole = {0: [0, 0, 1], 1: [0, 1, 2], 2: [1, 2, 3], 3: [2, 3, 4], 4: [3, 4, 5]}
    assert rows(buffer, "stack") == whole
    buffer.add(frame=6, **NO_END)
    assert rows(buffer, "stack") == {3: [2, 3, 4], 4: [3, 4, 5], 5: [4, 5, 6]}


def test_a_row_is_whole_where_its_episode_began_after_what_is_overwritten() -> None:
    buffer = stack_buffer(5, frame[t - 2 : t + 1])
    for number in range(1, 9):
        buffer.add(frame=number, **(TRUNCATED if number == 4 else NO_END))
    assert rows(buffer, "stack") == {
        # 4, the last of its episode, is cut: 2 and 3 are gone
        4: [0, 0, 5],
        5: [0, 5, 6],
        6: [5, 6, 7],
        7: [6, 7, 8],
    }


def test_a_row_whose_stack_is_overwritten_has_mass_0_and_the_others_keep_theirs() -> None:
    columns = {"frame": ((), np.uint8), **FLAGS, "stack": frame[t - 1 : t + 1]}
    buffer = PrioritizedReplayBuffer(4, columns, alpha=1.0, eps=0.0, seed=0)
    for number in range(4):
        buffer.add(frame=number, **NO_END, td_errors=[number + 5.0])
    assert buffer._sampler.tree.masses().tolist() == [5.0, 6.0, 7.0, 8.0]
    buffer.add(frame=4, **NO_END, td_errors=[9.0])
    assert buffer._sampler.tree.masses().tolist() == [9.0, 0.0, 7.0, 8.0]
    assert len(buffer) == 3
    assert buffer.update_priorities([0, 1, 2], [1.0, 2.0, 3.0]) == 1
    assert buffer.stale_updates == 2
    assert buffer._sampler.tree.masses().tolist() == [9.0, 0.0, 3.0, 8.0]


def test_rows_that_are_cut_by_later_ones_of_the_same_call_have_mass_0() -> None:
    columns = {"frame": ((), np.uint8), **FLAGS, "stack": frame[t - 1 : t + 1]}
    buffer = PrioritizedReplayBuffer(4, columns, alpha=1.0, eps=0.0, seed=0)
    no_end = np.zeros(7, np.bool_)
    buffer.add(frame=range(7), terminated=no_end, truncated=no_end, td_errors=np.arange(1.0, 8.0))
    assert buffer._sampler.tree.masses().tolist() == [5.0, 6.0, 7.0, 0.0]
    assert rows(buffer, "stack") == {4: [3, 4], 5: [4, 5], 6: [5, 6]}


def test_weights_count_the_rows_that_can_be_drawn() -> None:
    columns = {"frame": ((), np.uint8), **FLAGS, "stack": frame[t - 2 : t + 1]}
    buffer = PrioritizedReplayBuffer(5, columns, alpha=0.0, beta=1.0, weight_norm="none", seed=0)
    for number in range(9):
        buffer.add(frame=number, **NO_END)
    batch = buffer.sample(12)
    assert batch.probabilities.tolist() == [1 / 3] * 12
    assert batch.weights.tolist() == [1.0] * 12  # (N * probability) ** -1


def test_the_largest_priority_does_not_outlive_its_row() -> None:
    columns = {"frame": ((), np.uint8), **FLAGS, "stack": frame[t - 1 : t + 1]}
    buffer = PrioritizedReplayBuffer(3, columns, alpha=1.0, eps=0.0, seed=0)
    for number, error in enumerate([1.0, 9.0, 2.0, 3.0]):
        buffer.add(frame=number, **NO_END, td_errors=[error])
    assert buffer.max_priority == 3.0  # the row with 9 is held, and cannot be drawn


def test_an_endless_episode_keeps_rows_that_can_be_drawn_in_the_smallest_lane() -> None:
    buffer = stack_buffer(3, frame[t - 2 : t + 1])
    for number in range(20):
        buffer.add(frame=number, **NO_END)
    assert rows(buffer, "stack") == {19: [17, 18, 19]}


# --- observations with a value after the last step --------------------------------------------

OBSERVED = {
    "obs": Stored((), np.int64, with_next=True),
    "reward": ((), np.float32),
    **FLAGS,
}


def observed(capacity: int, derived: dict[str, Any], **arguments: Any) -> ReplayBuffer:
    return ReplayBuffer(capacity, OBSERVED | derived, seed=0, **arguments)


def see(buffer: ReplayBuffer, observations: Sequence[int], end: str = "") -> list[int]:
    """Adds an episode, or what there is of it, seen at t = 0 .. T; returns its keys."""
    last = len(observations) - 2
    keys = []
    for i, (here, after) in enumerate(itertools.pairwise(observations)):
        flags = ENDS[end if i == last else ""]
        keys += buffer.add(obs=here, next_obs=after, reward=here, **flags).tolist()
    return keys


def test_the_next_observation_is_stored_once() -> None:
    buffer = observed(8, {"next_obs": obs[t + 1]})
    assert see(buffer, [10, 11, 12]) == [0, 1]
    assert rows(buffer, "obs", "next_obs") == {0: (10, 11), 1: (11, 12)}
    assert see(buffer, [12, 13]) == [2]  # goes on in the row that 12 already had
    assert rows(buffer, "obs", "next_obs") == {0: (10, 11), 1: (11, 12), 2: (12, 13)}


def test_the_last_observation_of_an_episode_is_a_row_that_is_never_drawn() -> None:
    buffer = observed(8, {"next_obs": obs[t + 1]})
    assert see(buffer, [10, 11, 12], "terminated") == [0, 1]
    assert see(buffer, [20, 21], "truncated") == [3]
    assert see(buffer, [30, 31]) == [5]
    assert rows(buffer, "obs", "next_obs") == {
        0: (10, 11),
        1: (11, 12),
        3: (20, 21),
        5: (30, 31),
    }


def test_episodes_do_not_join_where_the_next_one_begins_as_the_last_one_ended() -> None:
    derived = {"stack": obs[t - 1 : t + 1], "next_obs": obs[t + 1]}
    buffer = observed(8, derived)
    assert see(buffer, [10, 11], "truncated") == [0]
    assert see(buffer, [11, 12]) == [2]
    assert rows(buffer, "stack", "next_obs") == {0: ([0, 10], 11), 2: ([0, 11], 12)}


def test_another_observation_than_the_one_announced_begins_an_episode() -> None:
    k = Horizon(2)
    derived = {
        "stack": obs[t - 1 : t + 1],
        "next_obs": obs[t + k],
        "return": reward[t : t + k].sum(1.0),
        "discount": 0.5**k,
    }
    buffer = observed(8, derived)
    assert see(buffer, [10, 11, 12]) == [0, 1]
    assert see(buffer, [20, 21]) == [3]
    assert rows(buffer, "stack", "next_obs", "return", "discount") == {
        0: ([0, 10], 12, 21.0, 0.25),
        1: ([10, 11], 12, 11.0, 0.5),
        3: ([0, 20], 21, 20.0, 0.5),
    }


@pytest.mark.parametrize(
    ("announced", "seen", "joined"),
    [
        (np.nan, np.nan, True),  # bit for bit
        (0.0, -0.0, False),
        (1.0, 1.0, True),
        (1.0, np.nextafter(np.float32(1.0), np.float32(2.0)), False),
    ],
)
def test_observations_are_compared_bit_for_bit(announced: float, seen: float, joined: bool) -> None:
    columns = {"obs": Stored((), np.float32, with_next=True), **FLAGS, "inside": obs[t - 1]}
    buffer = ReplayBuffer(8, columns, seed=0)
    buffer.add(obs=5.0, next_obs=announced, **NO_END)
    keys = buffer.add(obs=seen, next_obs=3.0, **NO_END)
    assert keys.tolist() == [1 if joined else 2]
    assert rows(buffer, "inside")[int(keys[0])] == (5.0 if joined else 0.0)


def test_one_byte_of_one_observation_is_enough_to_begin_an_episode() -> None:
    columns = {
        "image": Stored((2, 3), np.uint8, with_next=True),
        "speed": Stored((2,), np.float32, with_next=True),
        **FLAGS,
        "before": Column("speed")[t - 1],
    }
    buffer = ReplayBuffer(8, columns, seed=0)
    image, speed = np.arange(6, dtype=np.uint8).reshape(2, 3), np.ones(2, np.float32)
    step = {"image": image, "speed": speed, "next_image": image, "next_speed": speed, **NO_END}
    assert buffer.add(**step).tolist() == [0]
    assert buffer.add(**step).tolist() == [1]
    other = image.copy()
    other[1, 2] += 1
    assert buffer.add(**step | {"image": other}).tolist() == [3]
    assert rows(buffer, "before") == {0: [0.0, 0.0], 1: [1.0, 1.0], 3: [0.0, 0.0]}


def test_the_last_observation_takes_room_in_the_ring() -> None:
    buffer = observed(4, {"next_obs": obs[t + 1]})
    see(buffer, [10, 11, 12, 13])
    assert rows(buffer, "obs") == {0: 10, 1: 11, 2: 12}
    see(buffer, [13, 14])
    assert rows(buffer, "obs") == {1: 11, 2: 12, 3: 13}
    see(buffer, [20, 21])  # its step, and what it announces
    assert rows(buffer, "obs", "next_obs") == {3: (13, 14), 5: (20, 21)}


def test_n_steps_and_a_stack_of_single_frames() -> None:
    k = Horizon(2)
    derived = {
        "stack": obs[t - 1 : t + 1],
        "next_stack": obs[t + k - 1 : t + k + 1],
        "return": reward[t : t + k].sum(0.5),
        "discount": 0.5**k,
    }
    buffer = observed(12, derived)
    see(buffer, [1, 2, 3, 4], "terminated")
    see(buffer, [6, 7, 8])
    assert rows(buffer, "stack", "next_stack", "return", "discount") == {
        0: ([0, 1], [2, 3], 2.0, 0.25),
        1: ([1, 2], [3, 4], 3.5, 0.0),
        2: ([2, 3], [3, 4], 3.0, 0.0),
        4: ([0, 6], [7, 8], 9.5, 0.25),
        5: ([6, 7], [7, 8], 7.0, 0.5),
    }


def test_a_next_stack_of_one_step_is_filled_as_the_stack_is() -> None:
    derived = {"edge": obs[t - 1 : t + 2].pad("edge"), "zeros": obs[t - 1 : t + 2]}
    buffer = observed(8, derived)
    see(buffer, [1, 2, 3])
    assert rows(buffer, "edge", "zeros") == {0: ([1, 1, 2], [0, 1, 2]), 1: ([1, 2, 3], [1, 2, 3])}


# --- sequences --------------------------------------------------------------------------------


def test_a_mask_says_which_steps_lie_inside_the_episode() -> None:
    sequence = frame[t - 1 : t + 3]
    columns = {
        "frame": ((), np.uint8),
        **FLAGS,
        "zeros": sequence,
        "edge": sequence.pad("edge"),
        "mask": sequence.valid(),
    }
    buffer = ReplayBuffer(8, columns, seed=0)
    for number in (1, 2, 3):
        buffer.add(frame=number, **(TERMINATED if number == 3 else NO_END))
    for number in (5, 6):
        buffer.add(frame=number, **NO_END)
    yes, no = True, False
    assert rows(buffer, "zeros", "edge", "mask") == {
        0: ([0, 1, 2, 3], [1, 1, 2, 3], [no, yes, yes, yes]),
        1: ([1, 2, 3, 0], [1, 2, 3, 3], [yes, yes, yes, no]),
        2: ([2, 3, 0, 0], [2, 3, 3, 3], [yes, yes, no, no]),
        3: ([0, 5, 6, 0], [5, 5, 6, 6], [no, yes, yes, no]),  # before the start, and the head
        4: ([5, 6, 0, 0], [5, 6, 6, 6], [yes, yes, no, no]),
    }


def test_a_sequence_sees_what_is_added_later() -> None:
    columns = {
        "frame": ((), np.uint8),
        **FLAGS,
        "sequence": frame[t : t + 3],
        "mask": frame[t : t + 3].valid(),
    }
    buffer = ReplayBuffer(4, columns, seed=0)
    seen = []
    for number in range(1, 5):
        buffer.add(frame=number, **NO_END)
        seen.append(rows(buffer, "sequence")[0])
    assert seen == [[1, 0, 0], [1, 2, 0], [1, 2, 3], [1, 2, 3]]


def test_a_sequence_of_a_full_ring_stops_at_the_head() -> None:
    sequence = frame[t : t + 3]
    columns = {"frame": ((), np.uint8), **FLAGS, "values": sequence, "mask": sequence.valid()}
    buffer = ReplayBuffer(4, columns, seed=0)
    for number in range(1, 7):
        buffer.add(frame=number, **NO_END)
    assert rows(buffer, "values", "mask") == {
        2: ([3, 4, 5], [True, True, True]),
        3: ([4, 5, 6], [True, True, True]),
        4: ([5, 6, 0], [True, True, False]),
        5: ([6, 0, 0], [True, False, False]),
    }

    again = pickle.loads(pickle.dumps(buffer))
    assert rows(again, "values", "mask") == rows(buffer, "values", "mask")


# --- lanes ------------------------------------------------------------------------------------


def test_each_lane_by_itself() -> None:
    k = Horizon(2)
    columns = {
        "frame": ((), np.uint8),
        "reward": ((), np.float32),
        **FLAGS,
        "stack": frame[t - 1 : t + 1],
        "return": reward[t : t + k].sum(0.5),
    }
    buffer = ReplayBuffer(8, columns, lanes=2, seed=0)
    for i in range(1, 4):
        both = np.array([i, 10 * i])
        buffer.add(frame=both, reward=both, terminated=[i == 2, False], truncated=[False] * 2)
    buffer.add(frame=40, reward=40, **NO_END, lanes=1)
    assert rows(buffer, "stack", "return") == {
        0: ([0, 1], 2.0),
        2: ([1, 2], 2.0),
        4: ([0, 3], 3.0),
        1: ([0, 10], 20.0),
        3: ([10, 20], 35.0),
        5: ([20, 30], 50.0),
        7: ([30, 40], 40.0),
    }


def test_a_full_lane_cuts_only_its_own_rows() -> None:
    buffer = stack_buffer(6, frame[t - 1 : t + 1], lanes=2)
    for number in range(1, 5):
        buffer.add(frame=number, **NO_END, lanes=0)
    buffer.add(frame=[50, 60, 70], terminated=[False] * 3, truncated=[False] * 3, lanes=[1, 1, 1])
    assert rows(buffer, "stack") == {
        4: [2, 3],
        6: [3, 4],
        1: [0, 50],
        3: [50, 60],
        5: [60, 70],
    }


def test_rows_added_together_are_as_rows_added_one_by_one() -> None:
    derived = {"stack": obs[t - 2 : t + 1], "next_obs": obs[t + 1]}
    together, apart = observed(12, derived, lanes=2), observed(12, derived, lanes=2)
    columns: dict[str, Any] = {
        "obs": [1, 10, 2, 3, 20, 5, 6, 7, 8, 9],
        "next_obs": [2, 20, 3, 4, 30, 6, 7, 8, 9, 10],
        "reward": [0.0] * 10,
        "terminated": [False, False, False, True, *[False] * 6],
        "truncated": [False] * 10,
    }
    lanes = [0, 1, 0, 0, 1, 0, 0, 0, 0, 0]
    keys = together.add(**columns, lanes=lanes)
    one_by_one = [
        apart.add(**{name: column[i] for name, column in columns.items()}, lanes=lanes[i])[0]
        for i in range(10)
    ]
    assert keys.tolist() == one_by_one == [0, 1, 2, 4, 3, 8, 10, 12, 14, 16]
    names = ("obs", "stack", "next_obs")
    assert rows(together, *names) == rows(apart, *names)


# --- what a batch is --------------------------------------------------------------------------


def image_buffer() -> ReplayBuffer:
    k = Horizon(3)
    columns = {
        "frame": Stored((4, 5), np.uint8, with_next=True, drawn=False),
        "action": ((2,), np.float32),
        "reward": ((), np.float64),
        **FLAGS,
        "obs": frame[t - 3 : t + 1],
        "next_obs": frame[t + k - 3 : t + k + 1],
        "last": Column("action")[t + k - 1],
        "return": reward[t : t + k].sum(0.99),
        "discount": 0.99**k,
        "mask": frame[t - 1 : t + 6].valid(),
    }
    buffer = ReplayBuffer(16, columns, seed=0)
    for i in range(6):
        buffer.add(
            frame=np.full((4, 5), i, np.uint8),
            next_frame=np.full((4, 5), i + 1, np.uint8),
            action=[i, -i],
            reward=i,
            **NO_END,
        )
    return buffer


def test_shapes_and_dtypes_of_a_batch() -> None:
    batch = image_buffer().sample(7)
    assert {name: (batch[name].shape, batch[name].dtype.name) for name in batch} == {
        "action": ((7, 2), "float32"),
        "reward": ((7,), "float64"),
        "terminated": ((7,), "bool"),
        "truncated": ((7,), "bool"),
        "obs": ((7, 4, 4, 5), "uint8"),
        "next_obs": ((7, 4, 4, 5), "uint8"),
        "last": ((7, 2), "float32"),
        "return": ((7,), "float64"),
        "discount": ((7,), "float32"),
        "mask": ((7, 7), "bool"),
    }
    assert "frame" not in batch


def test_batches_are_copies() -> None:
    buffer = image_buffer()
    before = buffer._ring.rows.tobytes()
    batch = buffer.sample(20)
    assert buffer._ring.rows.tobytes() == before
    arrays = [batch[name] for name in batch]
    for array in arrays:
        assert not np.shares_memory(array, buffer._ring.rows)
        array[...] = 1
    assert buffer._ring.rows.tobytes() == before
    for i, array in enumerate(arrays):
        assert not any(np.shares_memory(array, other) for other in arrays[:i])


def test_what_is_added_is_neither_kept_nor_changed() -> None:
    buffer = observed(8, {"next_obs": obs[t + 1]})
    step = {"obs": np.array([1]), "next_obs": np.array([2]), "reward": np.array([3.0])}
    flags = {"terminated": np.array([False]), "truncated": np.array([False])}
    arguments = copy.deepcopy(step | flags)
    buffer.add(**arguments)
    assert arguments == step | flags
    arguments["next_obs"][0] = 9
    assert rows(buffer, "next_obs") == {0: 2}


def test_views_are_of_stored_columns_alone() -> None:
    buffer = image_buffer()
    assert buffer.view("frame").shape == (16, 4, 5)
    assert buffer.view("frame")[:7, 0, 0].tolist() == [0, 1, 2, 3, 4, 5, 6]
    with pytest.raises(KeyError, match="obs"):
        buffer.view("obs")


def test_bytes_are_those_of_the_stored_columns() -> None:
    plain = ReplayBuffer(64, {"frame": ((84, 84), np.uint8), **FLAGS}).nbytes
    k = Horizon(3)
    columns = {
        "frame": Stored((84, 84), np.uint8, with_next=True),
        **FLAGS,
        "obs": frame[t - 3 : t + 1],
        "next_obs": frame[t + k - 3 : t + k + 1],
    }
    assert plain <= ReplayBuffer(64, columns).nbytes <= plain + 64 * 16


# --- adding -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "columns",
    [
        {"obs": 1, "reward": 0.0},
        {"obs": 1, "next_obs": [1, 2], "reward": 0.0},
        {"obs": 1, "next_obs": 1.5, "reward": 0.0},
        {"next_obs": 1, "reward": 0.0},
        {"obs": 1, "next_obs": 2, "next_reward": 1.0, "reward": 0.0},
        {"obs": 1, "next_obs": 2, "reward": 0.0, "stack": [0, 1]},
    ],
    ids=["no next", "shape", "dtype", "no now", "a step column's next", "a derived column"],
)
def test_a_refused_step_changes_nothing(columns: dict[str, Any]) -> None:
    buffer = observed(8, {"stack": obs[t - 1 : t + 1]})
    see(buffer, [1, 2, 3])
    before = pickle.dumps(buffer)
    with pytest.raises((ValueError, TypeError), match="column"):
        buffer.add(**columns, **NO_END)
    assert pickle.dumps(buffer) == before
    assert see(buffer, [3, 4]) == [2]


def test_an_empty_add_does_nothing() -> None:
    buffer = observed(8, {"next_obs": obs[t + 1]})
    see(buffer, [1, 2])
    none, no_flag = np.array([], np.int64), np.array([], np.bool_)
    keys = buffer.add(obs=none, next_obs=none, reward=none, terminated=no_flag, truncated=no_flag)
    assert keys.tolist() == []
    assert see(buffer, [2, 3]) == [1]


def test_a_buffer_without_a_step_is_empty() -> None:
    buffer = observed(8, {"next_obs": obs[t + 1]})
    assert len(buffer) == 0
    with pytest.raises(ValueError, match="empty"):
        buffer.sample(1)


# --- saved and pickled ------------------------------------------------------------------------


def saved(buffer: ReplayBuffer, folder: Path) -> ReplayBuffer:
    other = observed(4, {"stack": obs[t - 1 : t + 1], "next_obs": obs[t + 1]})
    buffer.save(folder / "buffer")
    other.load(folder / "buffer")
    return other


@pytest.mark.parametrize(
    "again",
    [
        lambda buffer, folder: pickle.loads(pickle.dumps(buffer)),
        lambda buffer, folder: copy.deepcopy(buffer),
        saved,
    ],
    ids=["pickle", "deepcopy", "save and load"],
)
@pytest.mark.parametrize("end", ["", "truncated"])
@pytest.mark.parametrize("steps", [1, 3, 6])
def test_an_episode_goes_on_where_it_was_saved(
    again: Any, end: str, steps: int, tmp_path: Path
) -> None:
    buffer = observed(4, {"stack": obs[t - 1 : t + 1], "next_obs": obs[t + 1]})
    see(buffer, range(1, steps + 2), end)
    other = again(buffer, tmp_path)
    names = ("obs", "stack", "next_obs")
    assert rows(other, *names) == rows(buffer, *names)
    for copied in (other, buffer):
        assert see(copied, [steps + 1, steps + 2]) == [steps + (end != "")]
    assert rows(other, *names) == rows(buffer, *names)


def test_what_is_saved_is_the_rows_and_no_memory_around_them() -> None:
    """Of lanes that hold unequal numbers of rows, and rows that end with bytes of no column."""
    columns = {"a": ((3,), np.int64), **FLAGS, "before": Column("a")[t - 1]}
    buffer = ReplayBuffer(30, columns, lanes=3, seed=0)
    for lane in [0] * 9 + [1]:
        buffer.add(a=[-1, -1, -1], **TERMINATED, lanes=lane)
    rows = buffer._ring.rows.view(np.uint8).reshape(30, 32)[buffer._ring.filled_slots()]
    for junk in range(50):
        left_behind = [np.full(rows.size, junk, np.uint8) for _ in range(9)]
        del left_behind  # for np.empty to find
        assert buffer._state()["rows"].tobytes() == rows.tobytes()


def test_a_file_of_other_derived_columns_may_be_loaded_only_if_they_fit(tmp_path: Path) -> None:
    """Windows that look further back would find rows that were drawable and are cut for them."""
    buffer = observed(8, {"next_obs": obs[t + 1]})
    see(buffer, [1, 2, 3])
    buffer.save(tmp_path / "buffer")
    other = ReplayBuffer(8, {name: OBSERVED[name] for name in OBSERVED if name != "reward"})
    with pytest.raises(ValueError, match="columns"):
        other.load(tmp_path / "buffer")
    without_next = ReplayBuffer(8, OBSERVED | {"obs": ((), np.int64)})
    with pytest.raises(ValueError, match="columns"):
        without_next.load(tmp_path / "buffer")
