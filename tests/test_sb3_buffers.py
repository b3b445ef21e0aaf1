"""The prioritized SB3 buffer: SB3's own behaviour, and what priorities add to it."""

from __future__ import annotations

import pickle
import subprocess
import sys
import tracemalloc
from typing import Any

import numpy as np
import pytest

pytest.importorskip("stable_baselines3")

import gymnasium as gym
import torch as th
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

import kary_replay
from kary_replay.adapters.sb3 import PrioritizedReplayBuffer, prioritized

COLUMNS = ("observations", "next_observations", "actions", "rewards", "dones", "timeouts")
OBSERVATIONS = spaces.Box(-np.inf, np.inf, (3,), np.float32)
ACTIONS = {
    "discrete": spaces.Discrete(4),
    "box": spaces.Box(-1, 1, (2,), np.float32),
    "float64 box": spaces.Box(-1, 1, (2, 2), np.float64),
    "multi-discrete": spaces.MultiDiscrete([3, 4]),
    "multi-binary": spaces.MultiBinary(3),
}


def make(rows: int = 10, n_envs: int = 1, **kwargs: Any) -> PrioritizedReplayBuffer:
    arguments = {"device": "cpu", "seed": 0} | kwargs
    actions = arguments.pop("action_space", ACTIONS["discrete"])
    observations = arguments.pop("observation_space", OBSERVATIONS)
    return PrioritizedReplayBuffer(rows * n_envs, observations, actions, n_envs=n_envs, **arguments)


def transitions(steps: int, n_envs: int, action_space: spaces.Space[Any], seed: int) -> Any:
    """Arguments of `steps` calls of add, as a vectorized environment gives them."""
    rng = np.random.default_rng(seed)
    action_space.seed(seed)
    for _ in range(steps):
        done = rng.random(n_envs) < 0.3
        truncated = done & (rng.random(n_envs) < 0.5)
        yield (
            rng.normal(size=(n_envs, 3)).astype(np.float32),
            rng.normal(size=(n_envs, 3)).astype(np.float32),
            np.array([action_space.sample() for _ in range(n_envs)]),
            rng.normal(size=n_envs).astype(np.float32),
            done,
            [{"TimeLimit.truncated": True} if cut else {} for cut in truncated],
        )


def fill(buffer: ReplayBuffer, steps: int, seed: int = 0) -> None:
    for transition in transitions(steps, buffer.n_envs, buffer.action_space, seed):
        buffer.add(*transition)


def assert_same_rows(mine: ReplayBuffer, theirs: ReplayBuffer) -> None:
    for name in COLUMNS:
        here, there = getattr(mine, name), getattr(theirs, name)
        assert here.dtype == there.dtype, name
        np.testing.assert_array_equal(here, there, err_msg=name)
    assert (mine.pos, mine.full, mine.size()) == (theirs.pos, theirs.full, theirs.size())


# SB3's behaviour


@settings(deadline=None, max_examples=200)
@given(
    buffer_size=st.integers(1, 12),
    n_envs=st.integers(1, 4),
    steps=st.integers(0, 20),
    kind=st.sampled_from(sorted(ACTIONS)),
    timeouts=st.booleans(),
    seed=st.integers(0, 100),
)
def test_stores_what_sb3_stores(
    buffer_size: int, n_envs: int, steps: int, kind: str, timeouts: bool, seed: int
) -> None:
    arguments = (buffer_size, OBSERVATIONS, ACTIONS[kind])
    options = {"device": "cpu", "n_envs": n_envs, "handle_timeout_termination": timeouts}
    mine = PrioritizedReplayBuffer(*arguments, **options, seed=0)
    theirs = ReplayBuffer(*arguments, **options)
    for transition in transitions(steps, n_envs, ACTIONS[kind], seed):
        mine.add(*transition)
        theirs.add(*transition)
        assert (mine.pos, mine.full) == (theirs.pos, theirs.full)
    assert_same_rows(mine, theirs)


@pytest.mark.parametrize("timeouts", [True, False])
@pytest.mark.parametrize("kind", sorted(ACTIONS))
def test_sampled_rows_are_those_of_sb3(kind: str, timeouts: bool) -> None:
    """The sample of SB3 for the same indices, dtypes and shapes included."""
    options = {"device": "cpu", "n_envs": 3, "handle_timeout_termination": timeouts}
    mine = PrioritizedReplayBuffer(30, OBSERVATIONS, ACTIONS[kind], **options, seed=0)
    theirs = ReplayBuffer(30, OBSERVATIONS, ACTIONS[kind], **options)
    fill(mine, 14)
    fill(theirs, 14)
    sample = mine.sample(50)
    rows, envs = np.divmod(sample.keys % 30, 3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(np.random, "randint", lambda *_, **__: envs)
        want = theirs._get_samples(rows)
    for name, tensor in want._asdict().items():
        got = getattr(sample, name)
        if tensor is None:
            assert got is None, name
        else:
            assert got.dtype == tensor.dtype, name
            assert th.equal(got, tensor), name
    assert sample._fields[: len(want._fields)] == want._fields


def test_timeouts_are_no_terminations() -> None:
    buffer = make(n_envs=3)
    observation, action, flags = np.zeros((3, 3), np.float32), np.zeros(3, np.int64), [True] * 3
    infos = [{"TimeLimit.truncated": True}, {"TimeLimit.truncated": False}, {}]
    buffer.add(observation, observation, action, np.arange(3.0), np.array(flags), infos)
    assert buffer.timeouts[0].tolist() == [1.0, 0.0, 0.0]
    sample = buffer.sample(60)
    dones = dict(
        zip(sample.rewards.flatten().tolist(), sample.dones.flatten().tolist(), strict=True)
    )
    assert dones == {0.0: 0.0, 1.0: 1.0, 2.0: 1.0}


def test_float64_actions_come_out_as_float32() -> None:
    buffer = make(action_space=ACTIONS["float64 box"])
    fill(buffer, 4)
    assert buffer.actions.dtype == np.float32
    assert buffer.sample(5).actions.dtype == th.float32


@pytest.mark.parametrize(
    ("shape", "dtype"), [((2, 8, 8), np.uint8), ((), np.float64), ((5,), np.int16)]
)
def test_observations_keep_their_dtype(shape: tuple[int, ...], dtype: Any) -> None:
    space = spaces.Box(0, 200, shape, dtype)
    buffer = make(n_envs=2, observation_space=space)
    space.seed(0)
    given = np.stack([space.sample(), space.sample()])
    buffer.add(given, given, np.zeros(2, np.int64), np.zeros(2), np.zeros(2, bool), [{}, {}])
    assert buffer.observations.dtype == dtype
    np.testing.assert_array_equal(buffer.observations[0], given)
    assert buffer.sample(4).observations.shape == (4, *shape)


@pytest.mark.parametrize(
    ("buffer_size", "n_envs", "rows"), [(10, 1, 10), (10, 3, 3), (2, 3, 1), (1, 1, 1)]
)
def test_rows_are_rounded_as_in_sb3(buffer_size: int, n_envs: int, rows: int) -> None:
    buffer = PrioritizedReplayBuffer(buffer_size, OBSERVATIONS, ACTIONS["box"], "cpu", n_envs)
    assert buffer.buffer_size == rows
    assert buffer.observations.shape == (rows, n_envs, 3)


def test_extend_adds_step_by_step() -> None:
    one_by_one, at_once = make(n_envs=2), make(n_envs=2)
    fill(one_by_one, 13)
    at_once.extend(*zip(*transitions(13, 2, ACTIONS["discrete"], 0), strict=True))
    assert_same_rows(at_once, one_by_one)


def test_a_single_environment_may_leave_out_its_axis() -> None:
    with_axis, without = make(), make()
    observation = np.ones(3, np.float32)
    with_axis.add(
        observation[None], observation[None], np.array([2]), np.ones(1), np.array([True]), [{}]
    )
    without.add(observation, observation, np.int64(2), 1.0, True, [{}])
    assert_same_rows(without, with_axis)


def test_arguments_are_neither_changed_nor_kept() -> None:
    buffer = make(n_envs=2)
    (first,) = transitions(1, 2, ACTIONS["discrete"], 0)
    before = [np.array(argument) for argument in first[:5]]
    buffer.add(*first)
    for argument, copy in zip(first[:5], before, strict=True):
        np.testing.assert_array_equal(argument, copy)
        argument[...] = 0
    np.testing.assert_array_equal(buffer.observations[0], before[0])
    np.testing.assert_array_equal(buffer.actions[0, :, 0], before[2])


def test_reset_forgets_rows_and_priorities() -> None:
    buffer = make(n_envs=2)
    fill(buffer, 13)
    sample = buffer.sample(8)
    buffer.update_priorities(sample.keys, np.full(8, 50.0))
    buffer.reset()
    assert (buffer.pos, buffer.full, buffer.size()) == (0, False, 0)
    assert buffer.max_priority == 1.0
    with pytest.raises(ValueError, match="empty"):
        buffer.sample(1)
    fill(buffer, 1, seed=1)
    assert set(buffer.sample(40).keys) == {0, 1}


def test_reset_does_not_repeat_the_random_numbers() -> None:
    buffer = make(rows=1000)
    draws = []
    for _ in range(2):
        fill(buffer, 1000)
        draws.append(buffer.sample(64).keys.tolist())
        buffer.reset()
    assert draws[0] != draws[1]


@pytest.mark.parametrize("later", [True, False])
def test_tensors_lie_on_the_device(later: bool) -> None:
    buffer = make(device="cpu" if later else "meta")
    fill(buffer, 3)
    if later:
        buffer.device = th.device("meta")  # as SB3 does after it has loaded a buffer
    sample = buffer.sample(4)
    tensors = [value for value in sample if isinstance(value, th.Tensor)]
    assert len(tensors) == 6
    assert {tensor.device.type for tensor in tensors} == {"meta"}


# memory


def test_arrays_are_the_stored_rows() -> None:
    buffer = make(n_envs=2)
    fill(buffer, 5)
    buffer.rewards[:5] = 7.0
    buffer.dones[4] = True
    buffer.timeouts[...] = 0.0
    sample = buffer.sample(200)
    assert (sample.rewards == 7.0).all()
    assert (sample.dones[th.from_numpy(sample.keys // 2 == 4)] == 1.0).all()


def test_assigning_an_array_stores_its_values() -> None:
    buffer = make(n_envs=2)
    fill(buffer, 5)
    buffer.rewards = np.full((10, 2), 3.0)
    assert (buffer.sample(20).rewards == 3.0).all()
    with pytest.raises(ValueError, match=r"rewards must have shape \(10, 2\), got \(2,\)"):
        buffer.rewards = np.zeros(2)


@pytest.mark.parametrize(
    ("value", "error"), [(300, ValueError), (-1, ValueError), (0.5, TypeError)]
)
def test_assigning_what_the_dtype_cannot_hold_changes_nothing(
    value: float, error: type[Exception]
) -> None:
    buffer = make(observation_space=spaces.Box(0, 255, (2,), np.uint8))
    buffer.observations[...] = 7
    with pytest.raises(error, match="'observations' is uint8, which cannot hold"):
        buffer.observations = np.full((10, 1, 2), value)
    assert (buffer.observations == 7).all()


def test_rows_are_held_once() -> None:
    row = 2 * 64 * 8 + 8 + 3 * 4
    tracemalloc.start()
    try:
        make(rows=20_000, observation_space=spaces.Box(-1, 1, (64,), np.float64))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert 1.0 <= peak / (20_000 * row) < 1.1


def test_samples_belong_to_the_caller() -> None:
    buffer = make()
    fill(buffer, 10)
    sample = buffer.sample(10)
    for value in sample[:5]:
        value.zero_()
    assert buffer.observations.any()
    assert buffer.rewards.all()


def test_tensors_on_the_cpu_are_the_drawn_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = make()
    fill(buffer, 10)
    batch = buffer._core.sample(8)
    monkeypatch.setattr(buffer._core, "sample", lambda _: batch)
    sample = buffer.sample(8)
    for name in ("observations", "next_observations", "actions", "rewards"):
        assert getattr(sample, name).data_ptr() == batch[name].ctypes.data, name
    assert sample.weights.data_ptr() == batch.weights.ctypes.data


# priorities


def test_samples_carry_weights_and_keys() -> None:
    buffer = make(n_envs=3, beta=0.7)
    fill(buffer, 7)
    buffer.update_priorities(np.arange(21), np.linspace(0.1, 3.0, 21))
    sample = buffer.sample(16)
    assert sample.weights.shape == (16, 1)
    assert sample.weights.dtype == th.float32
    assert sample.keys.shape == (16,)
    assert sample.keys.dtype == np.int64
    td_errors = np.linspace(0.1, 3.0, 21)[sample.keys]
    want = ((td_errors.min() + 1e-6) / (td_errors + 1e-6)) ** (0.6 * 0.7)
    np.testing.assert_allclose(sample.weights[:, 0].numpy(), want, rtol=1e-6)


def test_keys_name_the_rows_of_their_environments() -> None:
    buffer = make(rows=4, n_envs=3)
    for step in range(9):  # wraps twice
        labels = np.float32(step * 3) + np.arange(3, dtype=np.float32)
        observations = np.repeat(labels[:, None], 3, axis=1)
        buffer.add(
            observations, observations, np.zeros(3, int), labels, np.zeros(3, bool), [{}] * 3
        )
    sample = buffer.sample(100)
    np.testing.assert_array_equal(sample.rewards[:, 0].numpy(), sample.keys)
    assert set(sample.keys) == set(range(15, 27))


def test_high_td_errors_are_drawn_more() -> None:
    buffer = make(rows=100, alpha=1.0, eps=0.0)
    fill(buffer, 100)
    td_errors = np.ones(100)
    td_errors[17] = -99.0  # half of the total
    assert buffer.update_priorities(np.arange(100), td_errors) == 100
    assert buffer.max_priority == 99.0
    drawn = np.count_nonzero(buffer.sample(10_000).keys == 17)
    assert drawn == 5000  # strata: exactly


def test_td_errors_of_the_learner_are_taken_as_they_are() -> None:
    buffer = make()
    fill(buffer, 10)
    td_errors = th.tensor([[-4.0], [2.0]], requires_grad=True)
    assert buffer.update_priorities(np.array([3, 4]), td_errors) == 2
    assert buffer.max_priority == pytest.approx(4.0 + 1e-6)
    with pytest.raises(ValueError, match="td_errors must be finite, got nan at position 1"):
        buffer.update_priorities(np.array([3, 4]), th.tensor([9.0, np.nan]))
    assert buffer.max_priority == pytest.approx(4.0 + 1e-6)


def test_updates_of_overwritten_rows_are_dropped_and_counted() -> None:
    buffer = make(rows=4)
    fill(buffer, 6)  # keys 0 and 1 are gone
    assert buffer.update_priorities(np.array([0, 1, 2]), np.array([90.0, 80.0, 0.5])) == 1
    assert buffer.stale_updates == 2
    assert buffer.max_priority == pytest.approx(1.0)


def test_new_rows_get_the_largest_priority() -> None:
    buffer = make(rows=4, alpha=1.0, eps=0.0)
    fill(buffer, 2)
    buffer.update_priorities(np.array([0, 1]), np.array([3.0, 1.0]))
    fill(buffer, 1)
    keys = buffer.sample(700).keys
    assert [np.count_nonzero(keys == key) for key in range(3)] == [300, 100, 300]


def test_weight_norm_and_independent_draws_reach_the_sampler() -> None:
    buffer = make(alpha=1.0, beta=1.0, eps=0.0, weight_norm="buffer", stratified=False)
    fill(buffer, 10)
    td_errors = np.full(10, 4.0)
    td_errors[0] = 1e-9
    buffer.update_priorities(np.arange(10), td_errors)
    sample = buffer.sample(90)
    np.testing.assert_allclose(sample.weights.numpy(), 1e-9 / 4.0, rtol=1e-6)
    counts = np.bincount(sample.keys, minlength=10)[1:]
    assert counts.max() - counts.min() > 1  # strata would give each of them 10


def test_who_never_reports_td_errors_is_told_once() -> None:
    buffer = make()
    fill(buffer, 5)
    for _ in range(prioritized.UNANSWERED - 1):
        buffer.sample(2)
    with pytest.warns(UserWarning, match=r"priorities never move.* PrioritizedDQN in place of DQN"):
        buffer.sample(2)
    for _ in range(prioritized.UNANSWERED):
        buffer.sample(2)  # warnings are errors here


def test_who_was_told_is_told_again_where_it_is_loaded() -> None:
    """By a stock algorithm, perhaps, that a prioritized one saved it for."""
    buffer = make()
    fill(buffer, 5)
    buffer.update_priorities(buffer.sample(2).keys, [1.0, 1.0])
    loaded = pickle.loads(pickle.dumps(buffer))
    for _ in range(prioritized.UNANSWERED - 1):
        loaded.sample(2)
    with pytest.warns(UserWarning, match="priorities never move"):
        loaded.sample(2)


def test_who_reports_td_errors_is_not_told() -> None:
    buffer = make()
    fill(buffer, 5)
    for _ in range(2):
        for _ in range(prioritized.UNANSWERED - 1):
            sample = buffer.sample(2)
        buffer.update_priorities(sample.keys, [1.0, 1.0])
    for _ in range(prioritized.UNANSWERED):
        buffer.sample(2)


# beta


def test_beta_follows_the_training_progress_by_default() -> None:
    buffer = make()
    assert buffer.beta == 0.4
    for progress, beta in [(1.0, 0.4), (0.5, 0.7), (0.0, 1.0), (-0.01, 1.0)]:
        buffer.anneal_beta(progress)
        assert buffer.beta == pytest.approx(beta)


def test_a_number_stays_and_replaces_a_schedule() -> None:
    buffer = make()
    buffer.beta = 0.25
    buffer.anneal_beta(0.0)
    assert buffer.beta == 0.25
    assert make(beta=1).beta == 1.0


def test_a_schedule_moves_with_the_samples() -> None:
    buffer = make(beta=kary_replay.LinearSchedule(0.2, 1.0, 4))
    fill(buffer, 3)
    betas = []
    for _ in range(6):
        betas.append(buffer.beta)
        buffer.sample(2)
        buffer.anneal_beta(0.0)
    assert betas == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0, 1.0])


def test_a_function_set_later_starts_from_the_progress_reached() -> None:
    buffer = make(beta=0.5)
    buffer.anneal_beta(0.25)
    buffer.beta = lambda remaining: 1.0 - remaining
    assert buffer.beta == 0.75


@pytest.mark.parametrize("wrong", [-0.1, np.nan, lambda _: np.inf])
def test_a_wrong_beta_is_refused_and_changes_nothing(wrong: Any) -> None:
    buffer = make()
    with pytest.raises(ValueError, match="beta must be finite and >= 0"):
        buffer.beta = wrong
    buffer.anneal_beta(0.5)
    assert buffer.beta == pytest.approx(0.7)


# normalization


class Drifting(gym.Env[np.ndarray, int]):
    """Observations and rewards far from zero, for a normalizer to do something."""

    observation_space = OBSERVATIONS
    action_space = ACTIONS["discrete"]

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self.np_random.normal(50, 3, 3).astype(np.float32), {}

    def step(self, action: int) -> Any:
        observation = self.np_random.normal(50, 3, 3).astype(np.float32)
        return observation, float(self.np_random.normal(20, 2)), False, False, {}


def test_samples_are_normalized_and_rows_are_not() -> None:
    env = VecNormalize(DummyVecEnv([Drifting] * 2))
    env.seed(0)
    env.reset()
    buffer = make(n_envs=2)
    observation = env.get_original_obs()
    for _ in range(10):
        _, _, done, infos = env.step(np.zeros(2, int))
        following, reward = env.get_original_obs(), env.get_original_reward()
        buffer.add(observation, following, np.zeros(2, int), reward, done, infos)
        observation = following
    sample = buffer.sample(30, env)
    rows, envs = np.divmod(sample.keys, 2)
    for name in ("observations", "next_observations"):
        want = env.normalize_obs(getattr(buffer, name)[rows, envs])
        np.testing.assert_array_equal(getattr(sample, name).numpy(), want)
    want = env.normalize_reward(buffer.rewards[rows, envs].reshape(-1, 1)).astype(np.float32)
    np.testing.assert_array_equal(sample.rewards.numpy(), want)
    assert sample.rewards.dtype == th.float32
    assert buffer.observations.mean() > 40
    assert abs(sample.observations.mean()) < 5


# seeds, pickling


def test_the_seed_is_that_of_numpy_unless_given() -> None:
    draws = {}
    for global_seed, seed in [(1, None), (2, None), (1, 5), (2, 5)]:
        np.random.seed(global_seed)  # noqa: NPY002
        buffer = make(rows=100, seed=seed)
        fill(buffer, 100)
        draws[global_seed, seed] = buffer.sample(32).keys.tolist()
    np.random.seed(1)  # noqa: NPY002
    again = make(rows=100, seed=None)
    fill(again, 100)
    assert again.sample(32).keys.tolist() == draws[1, None] != draws[2, None]
    assert draws[1, 5] == draws[2, 5]


@pytest.mark.parametrize("steps", [0, 4, 25])
@pytest.mark.parametrize(
    "beta",
    [0.5, kary_replay.LinearSchedule(0.4, 1.0, 6), None],
    ids=["number", "steps", "progress"],
)
def test_pickle_brings_everything_back(beta: Any, steps: int) -> None:
    buffer = make(n_envs=2, **({} if beta is None else {"beta": beta}))
    fill(buffer, steps)
    if steps:
        sample = buffer.sample(16)
        buffer.update_priorities(sample.keys, sample.rewards)
        buffer.update_priorities(np.array([0]), [9.0])
    buffer.anneal_beta(0.8)
    copy = pickle.loads(pickle.dumps(buffer))
    assert_same_rows(copy, buffer)
    assert copy.stale_updates == buffer.stale_updates
    for both in (buffer, copy):
        fill(both, 3, seed=7)
        both.anneal_beta(0.6)
    for _ in range(3):
        here, there = buffer.sample(16), copy.sample(16)
        np.testing.assert_array_equal(here.keys, there.keys)
        for mine, theirs in zip(
            (*here[:5], here.weights), (*there[:5], there.weights), strict=True
        ):
            assert th.equal(mine, theirs)
    for both in (buffer, copy):
        both.reset()
        fill(both, 10)
    np.testing.assert_array_equal(buffer.sample(16).keys, copy.sample(16).keys)


def test_a_pickled_copy_shows_its_own_rows() -> None:
    buffer = make()
    fill(buffer, 5)
    copy = pickle.loads(pickle.dumps(buffer))
    copy.rewards[:5] = 99.0
    assert (copy.sample(5).rewards == 99.0).all()
    assert not (buffer.rewards == 99.0).any()


def test_pickle_writes_only_what_is_filled() -> None:
    buffer = make(rows=100_000)
    fill(buffer, 10)
    assert len(pickle.dumps(buffer)) < 20_000


# refusals


@pytest.mark.parametrize(
    ("name", "value"),
    [("alpha", -1.0), ("eps", np.nan), ("beta", -1.0), ("weight_norm", "max"), ("fanout", 3)],
)
def test_wrong_settings_are_named(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{name} must be"):
        make(**{name: value})


@pytest.mark.parametrize(
    ("argument", "value", "message"),
    [
        (0, np.zeros((3, 2), np.float32), r"obs must have shape \(2, 3\), got \(3, 2\)"),
        (1, np.zeros(3, np.float32), r"next_obs must have shape \(2, 3\), got \(3,\)"),
        (2, np.zeros(3, int), r"action must have shape \(2, 1\), got \(3,\)"),
        (3, np.zeros((2, 1)), r"reward must have shape \(2,\), got \(2, 1\)"),
        (4, True, r"done must have shape \(2,\), got \(\)"),
        (5, [{}], "infos must have length 2, got 1"),
        (2, np.array([0.5, 1.5]), "'actions' is int64, which cannot hold float64"),
    ],
)
def test_a_wrong_argument_of_add_is_named_and_nothing_is_stored(
    argument: int, value: Any, message: str
) -> None:
    buffer = make(n_envs=2)
    (transition,) = transitions(1, 2, ACTIONS["discrete"], 0)
    wrong = list(transition)
    wrong[argument] = value
    with pytest.raises((ValueError, TypeError), match=message):
        buffer.add(*wrong)
    assert buffer.size() == 0
    assert not buffer.observations.any()


def test_the_core_needs_no_torch() -> None:
    code = (
        "import sys, kary_replay; sys.exit(any(m in sys.modules for m in ('torch', 'gymnasium')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
