"""Each buffer beside SB3's own: the same calls, and every transition is the same, bit for bit."""

from __future__ import annotations

import copy
import pickle
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("stable_baselines3")

import gymnasium as gym
import torch as th
from gymnasium import spaces
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from stable_baselines3.common import buffers as sb3
from stable_baselines3.common.vec_env import (
    DummyVecEnv,
    VecEnv,
    VecFrameStack,
    VecNormalize,
    VecTransposeImage,
)

from kary_replay.adapters.sb3 import (
    DictReplayBuffer,
    NStepReplayBuffer,
    PrioritizedReplayBuffer,
    ReplayBuffer,
)
from kary_replay.adapters.sb3.returns import Returns

BOX = spaces.Box(-5, 5, (3,), np.float32)
IMAGE = spaces.Box(0, 255, (2, 6, 5), np.uint8)
OBSERVATIONS: dict[str, spaces.Space[Any]] = {
    "box": BOX,
    "image": IMAGE,
    "discrete": spaces.Discrete(50, start=3),
    "multi-discrete": spaces.MultiDiscrete([3, 9]),
    "multi-binary": spaces.MultiBinary((2, 3)),
    "dict": spaces.Dict({"image": IMAGE, "box": BOX, "place": spaces.Discrete(7)}),
}
COLUMNS = ("observations", "next_observations", "actions", "rewards", "dones", "timeouts")
LABELS = spaces.Box(-1, 1, (2,), np.float32)  # actions, in which tests write a step's number


class Wandering(gym.Env[Any, Any]):
    """Random observations in episodes of random length; half of them are cut off by time."""

    action_space = LABELS

    def __init__(self, observations: spaces.Space[Any], seed: int) -> None:
        self.observation_space = observations
        observations.seed(seed)
        self.rng = np.random.default_rng(seed)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        ends, cut = self.rng.random(2) < (0.2, 0.5)
        reward = float(self.rng.normal(3, 2))
        return (
            self.observation_space.sample(),
            reward,
            bool(ends and not cut),
            bool(ends and cut),
            {},
        )


def vec_env(kind: str, n_envs: int, seed: int = 0) -> VecEnv:
    return DummyVecEnv(
        [
            lambda i=i: Wandering(copy.deepcopy(OBSERVATIONS[kind]), 100 * seed + i)
            for i in range(n_envs)
        ]
    )


def played(env: VecEnv, steps: int, start: int = 0) -> Iterator[tuple[Any, ...]]:
    """Arguments of `add`, as SB3's algorithms come to them.  Actions are the step's number."""
    normalized = isinstance(env, VecNormalize)
    obs = env.reset()
    if normalized:
        obs = env.get_original_obs()
    for step in range(start, start + steps):
        action = np.stack([np.full(env.num_envs, step), np.arange(env.num_envs)], axis=1) / 1024
        following, reward, done, infos = env.step(action.astype(np.float32))
        if normalized:
            following, reward = env.get_original_obs(), env.get_original_reward()
        next_obs = copy.deepcopy(following)
        for i in np.flatnonzero(done):
            terminal = infos[i]["terminal_observation"]
            if normalized:
                terminal = env.unnormalize_obs(terminal)
            if isinstance(next_obs, dict):
                for key in next_obs:
                    next_obs[key][i] = terminal[key]
            else:
                next_obs[i] = terminal
        yield obs, next_obs, action.astype(np.float32), reward, done, infos
        obs = following


def filled(env: VecEnv, steps: int, *buffers: sb3.ReplayBuffer) -> None:
    for transition in played(env, steps):
        for buffer in buffers:
            buffer.add(*copy.deepcopy(transition))


def assert_same_sample(mine: Any, theirs: Any) -> None:
    """Values, dtypes and shapes of SB3's fields; a prioritized sample has more."""
    for name, want in theirs._asdict().items():
        got = getattr(mine, name)
        if want is None:
            assert got is None, name
            continue
        pairs = [(got, want)]
        if isinstance(want, dict):
            assert got.keys() == want.keys()
            pairs = [(got[key], want[key]) for key in want]
        for here, there in pairs:
            assert (here.dtype, here.shape) == (there.dtype, there.shape), name
            assert th.equal(here, there), name


def assert_same_rows(mine: sb3.ReplayBuffer, theirs: sb3.ReplayBuffer) -> None:
    assert (mine.pos, mine.full, mine.size()) == (theirs.pos, theirs.full, theirs.size())
    steps = np.arange(theirs.size())
    for name in COLUMNS:
        here, there = getattr(mine, name), getattr(theirs, name)
        if not isinstance(there, dict):
            here, there = {"": here}, {"": there}
        for key, want in there.items():
            assert here[key].dtype == want.dtype
            np.testing.assert_array_equal(here[key][steps], want[steps], err_msg=f"{name} {key}")


def same_draws(mine: sb3.ReplayBuffer, theirs: sb3.ReplayBuffer, env: Any = None) -> None:
    """All rows many times, of environments that both draw alike."""
    steps = np.repeat(np.arange(theirs.size()), 8)
    samples = []
    for buffer in (mine, theirs):
        np.random.seed(5)  # noqa: NPY002
        samples.append(buffer._get_samples(steps, env))
    assert_same_sample(*samples)


def n_step(cls: type[Any], n_steps: int, gamma: float = 0.9) -> Callable[..., Any]:
    return lambda *args, **kwargs: cls(*args, n_steps=n_steps, gamma=gamma, **kwargs)


PAIRS: dict[str, tuple[Any, Any]] = {
    "uniform": (ReplayBuffer, sb3.ReplayBuffer),
    "prioritized": (PrioritizedReplayBuffer, sb3.ReplayBuffer),
    "n-step": (n_step(NStepReplayBuffer, 3), n_step(sb3.NStepReplayBuffer, 3)),
    "prioritized n-step": (n_step(PrioritizedReplayBuffer, 4), n_step(sb3.NStepReplayBuffer, 4)),
    "dict": (DictReplayBuffer, sb3.DictReplayBuffer),
    "prioritized dict": (PrioritizedReplayBuffer, sb3.DictReplayBuffer),
}


@settings(deadline=None, max_examples=60)
@given(
    pair=st.sampled_from(sorted(PAIRS)),
    kind=st.sampled_from(sorted(OBSERVATIONS)),
    n_envs=st.integers(1, 3),
    rows=st.integers(4, 12),
    steps=st.integers(1, 30),
    handle=st.booleans(),
    seed=st.integers(0, 50),
)
def test_stores_and_draws_what_sb3_does(
    pair: str, kind: str, n_envs: int, rows: int, steps: int, handle: bool, seed: int
) -> None:
    assume((kind == "dict") == ("dict" in pair))
    env = vec_env(kind, n_envs, seed)
    mine, theirs = (
        cls(
            rows * n_envs + n_envs - 1,
            env.observation_space,
            env.action_space,
            device="cpu",
            n_envs=n_envs,
            handle_timeout_termination=handle,
        )
        for cls in PAIRS[pair]
    )
    filled(env, steps, mine, theirs)
    assert_same_rows(mine, theirs)
    same_draws(mine, theirs)


@pytest.mark.parametrize("pair", sorted(PAIRS))
def test_normalizes_when_it_draws_as_sb3_does(pair: str) -> None:
    """Every reward of an n-step return for itself, and clipped; rows stay raw."""
    kind = "dict" if "dict" in pair else "box"
    keys = ["box"] if kind == "dict" else None
    env = VecNormalize(vec_env(kind, 2), clip_reward=0.6, clip_obs=0.7, norm_obs_keys=keys)
    mine, theirs = (
        cls(40, env.observation_space, env.action_space, device="cpu", n_envs=2)
        for cls in PAIRS[pair]
    )
    filled(env, 33, mine, theirs)
    assert_same_rows(mine, theirs)
    same_draws(mine, theirs, env)
    assert (env.normalize_reward(mine.rewards) == np.float32(0.6)).any()


@pytest.mark.parametrize("pair", sorted(PAIRS))
def test_drawn_transitions_are_stored_ones(pair: str) -> None:
    """What `sample` draws is what SB3 has under the step and environment that the action names."""
    env = vec_env("dict" if "dict" in pair else "image", 3)
    mine, theirs = (
        cls(60, env.observation_space, env.action_space, device="cpu", n_envs=3)
        for cls in PAIRS[pair]
    )
    filled(env, 50, mine, theirs)
    assert_same_sample(*drawn_from_both(mine, theirs))


def drawn_from_both(mine: sb3.ReplayBuffer, theirs: sb3.ReplayBuffer, n: int = 400) -> Any:
    """A sample of `mine`, and what `theirs` has under the same steps and environments."""
    sample = mine.sample(n)
    steps, envs = (sample.actions.numpy() * 1024).astype(int).T
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(np.random, "randint", lambda *_, **__: envs)
        return sample, theirs._get_samples(steps % theirs.buffer_size)


def test_relations_of_the_classes_are_those_of_sb3() -> None:
    for mine, theirs in [
        (ReplayBuffer, sb3.ReplayBuffer),
        (DictReplayBuffer, sb3.DictReplayBuffer),
        (NStepReplayBuffer, sb3.NStepReplayBuffer),
        (PrioritizedReplayBuffer, sb3.ReplayBuffer),
    ]:
        assert issubclass(mine, theirs)
        assert issubclass(mine, ReplayBuffer)


@pytest.mark.parametrize(("buffer_size", "n_envs", "rows"), [(10, 4, 2), (3, 4, 1), (10, 1, 10)])
@pytest.mark.parametrize("cls", [ReplayBuffer, PrioritizedReplayBuffer])
def test_rows_are_rounded_as_in_sb3(cls: Any, buffer_size: int, n_envs: int, rows: int) -> None:
    buffer = cls(buffer_size, BOX, LABELS, "cpu", n_envs)
    assert buffer.buffer_size == rows
    assert buffer.observations.shape == (rows, n_envs, 3)


# observations stored once


@settings(deadline=None, max_examples=40)
@given(
    kind=st.sampled_from(sorted(OBSERVATIONS)),
    n_steps=st.integers(1, 3),
    n_envs=st.integers(1, 3),
    rows=st.integers(8, 20),
    steps=st.integers(3, 40),
    seed=st.integers(0, 50),
)
def test_observations_stored_once_are_drawn_as_if_stored_twice(
    kind: str, n_steps: int, n_envs: int, rows: int, steps: int, seed: int
) -> None:
    """Timeouts are handled too, which SB3 refuses."""
    env = vec_env(kind, n_envs, seed)
    arguments = (env.observation_space, env.action_space, "cpu", n_envs)
    mine = PrioritizedReplayBuffer(
        rows * n_envs, *arguments, optimize_memory_usage=True, n_steps=n_steps, gamma=0.9
    )
    stored_twice = sb3.DictReplayBuffer if kind == "dict" else sb3.ReplayBuffer
    if n_steps == 1:
        theirs = stored_twice(rows * n_envs, *arguments)
    elif kind == "dict":
        return  # SB3 has no such buffer
    else:
        theirs = sb3.NStepReplayBuffer(rows * n_envs, *arguments, n_steps=n_steps, gamma=0.9)
    filled(env, steps, mine, theirs)
    assert_same_sample(*drawn_from_both(mine, theirs))


def test_observations_stored_once_take_half_the_memory() -> None:
    once, twice = (
        ReplayBuffer(50_000, spaces.Box(-1, 1, (100,), np.float32), LABELS, optimize_memory_usage=o)
        for o in (True, False)
    )
    assert once._core.nbytes < 0.56 * twice._core.nbytes
    with pytest.raises(AttributeError, match="next_observations are not stored"):
        once.next_observations  # noqa: B018


def test_learning_again_distorts_no_transition_of_observations_stored_once() -> None:
    """SB3 writes to `dones` before it learns anew, for the sake of its own buffer."""
    env = vec_env("box", 1)
    mine = ReplayBuffer(40, BOX, LABELS, "cpu", optimize_memory_usage=True)
    theirs = sb3.ReplayBuffer(40, BOX, LABELS, "cpu")
    filled(env, 6, mine, theirs)
    mine.dones[mine.pos - 1] = True
    assert_same_sample(*drawn_from_both(mine, theirs))


@pytest.mark.parametrize("once", [False, True])
def test_weights_count_transitions(once: bool) -> None:
    """1 / (N * probability) of equal priorities is 1 if N is the number that can be drawn."""
    env = vec_env("box", 3)
    buffer = PrioritizedReplayBuffer(
        60, BOX, LABELS, "cpu", 3, optimize_memory_usage=once, weight_norm="none", beta=1.0
    )
    filled(env, 13, buffer)
    for _ in range(2):
        th.testing.assert_close(buffer.sample(50).weights, th.ones(50, 1))
        filled(env, 20, buffer)  # and when it has wrapped round


# stacks of frames


class Pong(gym.Env[Any, Any]):
    """Images with a moving dot."""

    action_space = LABELS

    def __init__(self, shape: tuple[int, ...], seed: int) -> None:
        self.observation_space = spaces.Box(0, 255, shape, np.uint8)
        self.rng = np.random.default_rng(seed)

    def _image(self) -> np.ndarray:
        image = np.zeros(self.observation_space.shape, np.uint8)
        image.flat[self.rng.integers(image.size)] = self.rng.integers(256)
        return image

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return self._image(), {}

    def step(self, action: Any) -> Any:
        ends, cut = self.rng.random(2) < (0.1, 0.5)
        return self._image(), 1.0, bool(ends and not cut), bool(ends and cut), {}


def stacked_env(order: str, n_envs: int = 1, side: int = 12, size: int = 4) -> VecEnv:
    shape = (1, side, side) if order == "first" else (side, side, 1)
    env = DummyVecEnv([lambda i=i: Pong(shape, i) for i in range(n_envs)])
    stacked: VecEnv = VecFrameStack(
        env, size, channels_order="first" if order == "first" else "last"
    )
    return VecTransposeImage(stacked) if order == "transposed" else stacked


@pytest.mark.parametrize("n_steps", [1, 3])
@pytest.mark.parametrize("n_envs", [1, 3])
@pytest.mark.parametrize("order", ["first", "last", "transposed"])
def test_stacks_of_frames_are_those_of_sb3(order: str, n_envs: int, n_steps: int) -> None:
    env = stacked_env(order, n_envs)
    arguments = (env.observation_space, env.action_space, "cpu", n_envs)
    mine = PrioritizedReplayBuffer(
        60 * n_envs, *arguments, frame_stack=4, n_steps=n_steps, gamma=0.9
    )
    theirs = sb3.ReplayBuffer(60 * n_envs, *arguments)
    if n_steps > 1:
        theirs = sb3.NStepReplayBuffer(60 * n_envs, *arguments, n_steps=n_steps, gamma=0.9)
    # A second game begins in mid-episode, across which SB3 sums its n-step returns.
    for start, steps in [(0, 47), (47, 47)] if n_steps == 1 else [(0, 94)]:
        for transition in played(env, steps, start):
            mine.add(*transition)
            theirs.add(*transition)
        assert_same_sample(*drawn_from_both(mine, theirs))


def test_stacks_of_frames_take_an_eighth_of_the_memory() -> None:
    env = stacked_env("first", side=84)
    arguments = (10_000, env.observation_space, env.action_space, "cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # SB3's may be more than there is
        theirs = sb3.ReplayBuffer(*arguments)
    arrays = (theirs.observations, theirs.next_observations, theirs.actions, theirs.rewards)
    mine = ReplayBuffer(*arguments, frame_stack=4)
    assert mine._core.nbytes <= sum(array.nbytes for array in arrays) / 7.5


def test_vectors_are_stacked_too() -> None:
    env = VecFrameStack(vec_env("box", 2), 3)
    mine = ReplayBuffer(60, env.observation_space, LABELS, "cpu", 2, frame_stack=3)
    theirs = sb3.ReplayBuffer(60, env.observation_space, LABELS, "cpu", 2)
    filled(env, 25, mine, theirs)
    assert_same_sample(*drawn_from_both(mine, theirs))


def test_a_reset_to_an_equal_frame_begins_an_episode() -> None:
    """The newest frames alone would be the same stream."""
    buffer = ReplayBuffer(10, spaces.Box(0, 9, (2, 3, 3), np.uint8), LABELS, "cpu", frame_stack=2)
    action, moved = np.zeros((1, 2), np.float32), np.full((1, 2, 3, 3), 7, np.uint8)
    stack = moved.copy()
    stack[:, 0] = 0
    for _ in range(2):  # the second time it is what a reset gives
        buffer.add(stack, moved, action, [0.0], [False], [{}])
    observations = buffer.sample(20).observations.numpy()
    assert (observations == stack).all()


def test_an_episode_begins_with_frames_of_zeros() -> None:
    """What follows a step that ended cannot continue it, though it looks like it."""
    buffer = ReplayBuffer(10, spaces.Box(0, 9, (2, 3, 3), np.uint8), LABELS, "cpu", frame_stack=2)
    action, moved = np.zeros((1, 2), np.float32), np.full((1, 2, 3, 3), 7, np.uint8)
    stack = moved.copy()
    stack[:, 0] = 0
    buffer.add(stack, moved, action, [0.0], [True], [{}])
    with pytest.raises(
        ValueError, match="obs must be a stack of 2 frames along axis 0: it must continue"
    ):
        buffer.add(moved, moved, action, [0.0], [False], [{}])


@pytest.mark.parametrize("order", ["first", "last"])
def test_a_stream_that_is_no_stack_is_refused_at_the_first_row_that_shows_it(order: str) -> None:
    env = stacked_env(order, 2)
    buffer = ReplayBuffer(100, env.observation_space, LABELS, "cpu", 2, frame_stack=4)
    transitions = list(played(env, 8))
    for transition in transitions[:5]:
        buffer.add(*transition)
    obs, next_obs, *rest = transitions[5]
    for wrong, message in [
        (
            (next_obs, next_obs),
            "obs must be a stack of 4 frames along axis .: it must continue .* environment",
        ),
        (
            (obs, obs),
            "next_obs must be a stack of 4 frames .* it must be obs moved on by one frame",
        ),
    ]:
        with pytest.raises(ValueError, match=message):
            buffer.add(*wrong, *rest)
        assert buffer.pos == 5
    for transition in transitions[5:]:  # and nothing of it is left
        buffer.add(*transition)


@pytest.mark.parametrize(
    ("kind", "size", "error", "message"),
    [
        ("image", 3, ValueError, r"frame_stack must divide the channels .* \(2, 6, 5\), got 3"),
        ("box", 0, ValueError, "frame_stack must be >= 1, got 0"),
        ("box", 1.5, TypeError, "frame_stack must be an integer, got 1.5"),
        ("dict", 2, TypeError, "frame_stack must be 1 with observations in a Dict, got 2"),
    ],
)
def test_wrong_stacks_are_named(kind: str, size: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        ReplayBuffer(10, OBSERVATIONS[kind], LABELS, frame_stack=size)


# what users do with SB3's


@pytest.mark.parametrize("pair", sorted(PAIRS))
def test_rows_written_to_the_arrays_can_be_declared_filled(pair: str) -> None:
    env = vec_env("dict" if "dict" in pair else "box", 2)
    arguments = (20, env.observation_space, env.action_space, "cpu", 2)
    mine, theirs = (cls(*arguments) for cls in PAIRS[pair])
    source = PAIRS[pair][1](*arguments)
    filled(env, 27, source)
    for buffer in (mine, theirs):
        buffer.pos, buffer.full = source.pos, True
        for name in (
            "observations",
            "next_observations",
            "actions",
            "rewards",
            "dones",
            "timeouts",
        ):
            setattr(buffer, name, copy.deepcopy(getattr(source, name)))
        buffer.full = False
        buffer.full = True
    assert_same_rows(mine, theirs)
    same_draws(mine, theirs)
    filled(env, 4, mine, theirs)
    assert_same_rows(mine, theirs)
    same_draws(mine, theirs)


def test_a_buffer_that_is_only_said_to_be_full_holds_zeros() -> None:
    buffer = ReplayBuffer(5, BOX, LABELS, "cpu")
    buffer.full = True
    assert not buffer.sample(8).observations.any()
    with pytest.raises(IndexError, match=r"pos must be in 0 .. 4, got 5"):
        buffer.pos = 5
    once = ReplayBuffer(5, BOX, LABELS, "cpu", optimize_memory_usage=True)
    with pytest.raises(AttributeError, match="pos and full cannot be set"):
        once.full = True


@pytest.mark.parametrize(
    "options", [{}, {"optimize_memory_usage": True}, {"frame_stack": 4}], ids=str
)
@pytest.mark.parametrize("cls", [ReplayBuffer, n_step(NStepReplayBuffer, 3)], ids=["1", "3"])
def test_copies_draw_on_alike(cls: Any, options: dict[str, Any]) -> None:
    env = stacked_env("first", 2)
    buffer = cls(50, env.observation_space, LABELS, "cpu", 2, **options)
    transitions = list(played(env, 40))
    for transition in transitions[:30]:
        buffer.add(*transition)
    for other in (copy.deepcopy(buffer), pickle.loads(pickle.dumps(buffer))):
        same = copy.deepcopy(buffer)
        for both in (same, other):
            for transition in transitions[30:]:
                both.add(*transition)
        assert (same.pos, same.full) == (other.pos, other.full)
        assert_same_sample(other.sample(64), same.sample(64))


def test_steps_that_are_not_there_count_nothing_whatever_their_reward() -> None:
    """A normalizer could make something of the zeros that fill the window."""
    rewards = np.array([[1.0, 2.0, 4.0]] * 2, np.float32)
    there = np.array([[True, True, False], [True, True, True]])
    returned, discounts = Returns(3, 0.5).of(rewards, there)
    assert returned.tolist() == [[2.0], [3.0]]
    assert discounts.tolist() == [[0.25], [0.125]]


def test_n_step_returns_do_not_reach_across_a_reset_from_outside() -> None:
    """Where an observation does not follow from the step before it, an episode begins."""
    buffer = NStepReplayBuffer(60, BOX, LABELS, "cpu", optimize_memory_usage=True, n_steps=9)
    for step in (*range(4), *range(10, 14)):
        obs, action = np.full((1, 3), step, np.float32), np.full((1, 2), step, np.float32)
        buffer.add(obs, obs + 1, action, np.ones(1), np.zeros(1, bool), [{}])
    sample = buffer.sample(200)
    to_go = {0: 4, 1: 3, 2: 2, 3: 1, 10: 4, 11: 3, 12: 2, 13: 1}
    k = th.tensor([to_go[int(step)] for step in sample.actions[:, 0]])
    th.testing.assert_close(sample.discounts[:, 0], 0.99**k)


def test_infos_and_arrays_may_change_after_add() -> None:
    env = vec_env("dict", 2)
    mine = DictReplayBuffer(40, env.observation_space, LABELS, "cpu", 2)
    theirs = sb3.DictReplayBuffer(40, env.observation_space, LABELS, "cpu", 2)
    for obs, next_obs, action, reward, done, infos in played(env, 15):
        theirs.add(*copy.deepcopy((obs, next_obs, action, reward, done, infos)))
        before = copy.deepcopy(obs)
        mine.add(obs, next_obs, action, reward, done, infos)
        assert {key: array.shape for key, array in obs.items()} == {
            key: array.shape for key, array in before.items()
        }
        for array in (*next_obs.values(), action, reward, done):
            array[...] = 0
        for info in infos:
            info.clear()
    same_draws(mine, theirs)


def test_stacks_may_change_after_add() -> None:
    env = stacked_env("first")
    mine = ReplayBuffer(100, env.observation_space, LABELS, "cpu", frame_stack=4)
    theirs = sb3.ReplayBuffer(100, env.observation_space, LABELS, "cpu")
    for transition in played(env, 30):
        theirs.add(*copy.deepcopy(transition))
        given = copy.deepcopy(transition)
        mine.add(*given)
        for array in given[:2]:
            array[...] = 99
    assert_same_sample(*drawn_from_both(mine, theirs))


@pytest.mark.parametrize(
    ("shape", "dtype", "axis"),
    [
        ((4, 84, 84), np.uint8, 0),
        ((12, 36, 36), np.uint8, 0),
        ((84, 84, 4), np.uint8, 2),
        ((10, 10, 16), np.uint8, 2),
        ((8, 8, 12), np.uint8, 2),
        ((1, 6, 24), np.float32, 2),
        ((8,), np.float32, 0),
        ((3, 8), np.float32, 1),
    ],
)
def test_frames_are_stacked_along_the_axis_of_their_channels(
    shape: tuple[int, ...], dtype: Any, axis: int
) -> None:
    space = spaces.Box(0, 9, shape, dtype)
    frames = ReplayBuffer(10, space, LABELS, "cpu", frame_stack=4).observations
    assert frames.shape[2 + axis] == shape[axis] // 4


def test_normalized_stacks_are_refused_with_a_way_out() -> None:
    """SB3 hands over what it has normalized and back, at the ends of episodes."""
    env = VecNormalize(stacked_env("first"))
    buffer = ReplayBuffer(100, env.observation_space, LABELS, "cpu", frame_stack=4)
    with pytest.raises(ValueError, match=r"next_obs must .* norm_obs=False"):
        filled(env, 60, buffer)
    env = VecNormalize(stacked_env("first"), norm_obs=False)
    buffer = ReplayBuffer(100, env.observation_space, LABELS, "cpu", frame_stack=4)
    filled(env, 60, buffer)


@pytest.mark.parametrize("hook", ["_get_samples", "to_torch"])
def test_a_subclass_with_a_hook_that_nobody_calls_is_refused(hook: str) -> None:
    with pytest.raises(TypeError, match=f"Relabelled must override sample, which calls no {hook}"):
        type("Relabelled", (ReplayBuffer,), {hook: lambda *_: None})


def test_one_step_has_a_discount_as_in_sb3() -> None:
    env, options = vec_env("box", 2), {"n_steps": 1, "gamma": 0.5}
    mine = NStepReplayBuffer(40, BOX, LABELS, "cpu", 2, **options)
    theirs = sb3.NStepReplayBuffer(40, BOX, LABELS, "cpu", 2, **options)
    filled(env, 10, mine, theirs)
    same_draws(mine, theirs)
    assert (mine.sample(3).discounts == 0.5).all()


def test_a_reset_lets_go_of_the_rows_before_it_makes_others() -> None:
    buffer = ReplayBuffer(10, BOX, LABELS, "cpu")
    old, new_core = weakref.ref(buffer._core), buffer._new_core
    there = []
    buffer._new_core = lambda: (there.append(old()), new_core())[1]
    buffer.reset()
    assert there == [None]


def test_infos_may_be_missing_where_timeouts_are_not_handled() -> None:
    buffer = ReplayBuffer(10, BOX, LABELS, "cpu", handle_timeout_termination=False)
    buffer.add(np.zeros(3), np.ones(3), np.zeros(2), [0.0], [False], None)
    assert buffer.size() == 1


def test_drawing_writes_nothing() -> None:
    env = vec_env("box", 2)
    buffer = NStepReplayBuffer(20, BOX, LABELS, "cpu", 2)
    filled(env, 13, buffer)
    for name in ("observations", "next_observations", "timeouts", "dones", "rewards"):
        getattr(buffer, name).flags.writeable = False
    buffer._core.view("timeouts").flags.writeable = False
    before = buffer.timeouts.copy()
    buffer.sample(64)
    buffer._get_samples(np.arange(10))
    np.testing.assert_array_equal(buffer.timeouts, before)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"box": 0, "image": 0}, ValueError, r"obs must have exactly the keys .* got \['box', "),
        (np.zeros(3), TypeError, "obs must be a dict of arrays, got ndarray"),
    ],
)
def test_a_wrong_dict_is_named(given: Any, error: Any, message: str) -> None:
    env = vec_env("dict", 1)
    buffer = DictReplayBuffer(4, env.observation_space, LABELS, "cpu")
    ((_, *rest),) = played(env, 1)
    with pytest.raises(error, match=message):
        buffer.add(given, *rest)
    assert buffer.size() == 0


def test_a_wrong_array_in_a_dict_is_named() -> None:
    env = vec_env("dict", 1)
    buffer = DictReplayBuffer(4, env.observation_space, LABELS, "cpu")
    ((obs, *rest),) = played(env, 1)
    with pytest.raises(ValueError, match=r"obs\['box'\] must have shape \(1, 3\), got \(4,\)"):
        buffer.add(obs | {"box": np.zeros(4)}, *rest)


def test_a_dict_buffer_needs_a_dict() -> None:
    with pytest.raises(TypeError, match="observation_space must be a Dict, got Box"):
        DictReplayBuffer(4, BOX, LABELS)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_steps": 0}, "n_steps must be >= 1, got 0"),
        ({"gamma": -1.0}, "gamma must be finite and >= 0, got -1.0"),
        ({"n_steps": 11}, "n_steps must be at most buffer_size // n_envs, 10, got 11"),
    ],
)
@pytest.mark.parametrize("cls", [NStepReplayBuffer, PrioritizedReplayBuffer])
def test_wrong_horizons_are_named(cls: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        cls(10, BOX, LABELS, **options)


def test_more_memory_than_is_free_is_warned_of_with_both_figures(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kary_replay._room.memory_left", lambda: 10_000_000)
    with pytest.warns(UserWarning, match=r"needs more than is free of memory: 0.0\dGB > 0.01GB"):
        ReplayBuffer(500_000, BOX, LABELS, "cpu")
