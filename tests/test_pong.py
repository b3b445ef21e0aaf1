"""Real Pong: frames stored once give the very batches that SB3's stock buffers give of stacks."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from kary_replay import Batch, Column, Horizon, PrioritizedReplayBuffer, Stored, t

ale_py = pytest.importorskip("ale_py")
gymnasium = pytest.importorskip("gymnasium")
pytest.importorskip("stable_baselines3")

from stable_baselines3.common.buffers import NStepReplayBuffer, ReplayBuffer  # noqa: E402
from stable_baselines3.common.vec_env import (  # noqa: E402
    DummyVecEnv,
    VecEnv,
    VecFrameStack,
    VecTransposeImage,
)

LONGEST = (50, 110, 1000)  # steps of an episode, of each environment; two points take 100 or so
ENVS, CAPACITY = len(LONGEST), 240  # rows of each
N_STEPS, GAMMA = 3, 0.99

frame, k = Column("frame"), Horizon(N_STEPS)
COLUMNS: dict[str, Any] = {
    "frame": Stored((84, 84), np.uint8, with_next=True, drawn=False),
    "action": ((), np.int64),
    "reward": ((), np.float32),
    "terminated": ((), np.bool_),
    "truncated": ((), np.bool_),
    "obs": frame[t - 3 : t + 1],
    "next_obs": frame[t + k - 3 : t + k + 1],
    "return": Column("reward")[t : t + k].sum(GAMMA),
    "discount": GAMMA**k,
}


class Rounds(gymnasium.Wrapper):  # type: ignore[misc]
    """Pong of two points an episode, so that a short test sees many of them end."""

    points = 0

    def reset(self, **arguments: Any) -> Any:
        self.points = 0
        return self.env.reset(**arguments)

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = self.env.step(action)
        self.points += reward != 0.0
        return obs, reward, terminated or self.points == 2, truncated, info


def small(screen: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """84 x 84 of the screen's pixels, with a last axis of one channel."""
    rows, columns = (np.linspace(0, size - 1, 84).astype(int) for size in screen.shape)
    return screen[np.ix_(rows, columns)][..., None]


def pong(longest: int) -> Any:
    env = gymnasium.make(
        "ALE/Pong-v5", obs_type="grayscale", frameskip=4, repeat_action_probability=0.0
    )
    space = gymnasium.spaces.Box(0, 255, (84, 84, 1), np.uint8)
    env = gymnasium.wrappers.TransformObservation(Rounds(env), small, space)
    return gymnasium.wrappers.TimeLimit(env, longest)


def pongs() -> VecEnv:
    gymnasium.register_envs(ale_py)
    envs = [partial(pong, longest) for longest in LONGEST]
    return VecTransposeImage(VecFrameStack(DummyVecEnv(envs), 4))


class Fed:
    """SB3's buffers of stacks, one for each environment, and ours of frames, of one stream."""

    def __init__(self, steps: int) -> None:
        envs = pongs()
        spaces = (envs.observation_space, envs.action_space)
        self.one_step = [ReplayBuffer(CAPACITY, *spaces, "cpu") for _ in range(ENVS)]
        self.n_steps = [
            NStepReplayBuffer(CAPACITY, *spaces, "cpu", n_steps=N_STEPS, gamma=GAMMA)
            for _ in range(ENVS)
        ]
        columns = COLUMNS | {"next_of_one": frame[t - 2 : t + 2], "gamma": GAMMA ** Horizon(1)}
        self.ours = PrioritizedReplayBuffer(ENVS * CAPACITY, columns, lanes=ENVS, seed=0)
        self.position: dict[int, int] = {}  # of a key in SB3's buffer of its environment
        self.ends = {"terminated": 0, "truncated": 0}
        self.play(envs, steps)
        envs.close()

    def play(self, envs: VecEnv, steps: int) -> None:
        rng = np.random.default_rng(0)
        envs.seed(0)
        obs = envs.reset()
        for step in range(steps):
            action = rng.integers(envs.action_space.n, size=ENVS)
            after, reward, done, infos = envs.step(action)
            last = [
                info.get("terminal_observation", seen)
                for info, seen in zip(infos, after, strict=True)
            ]
            self.add(step, obs, np.stack(last), action, reward, done, infos)
            obs = after

    def add(
        self, step: int, obs: Any, after: Any, action: Any, reward: Any, done: Any, infos: Any
    ) -> None:
        for env, buffers in enumerate(zip(self.one_step, self.n_steps, strict=True)):
            here = slice(env, env + 1)
            for buffer in buffers:
                buffer.add(
                    obs[here], after[here], action[here], reward[here], done[here], infos[here]
                )
        truncated = np.array([info["TimeLimit.truncated"] for info in infos])
        ends = {"terminated": done & ~truncated, "truncated": truncated}
        keys = self.ours.add(
            frame=obs[:, -1], next_frame=after[:, -1], action=action, reward=reward, **ends
        )
        self.position.update((key, step % CAPACITY) for key in keys.tolist())
        for end, flags in ends.items():
            self.ends[end] += int(flags.sum())

    def theirs(self, buffers: list[Any], batch: Batch) -> Any:
        """What SB3's buffers say of the transitions of a batch: columns by name, in its order."""
        positions = [np.array([self.position[key]]) for key in batch.keys.tolist()]
        rows = [
            buffers[key % ENVS]._get_samples(position)
            for key, position in zip(batch.keys.tolist(), positions, strict=True)
        ]
        return {
            name: np.concatenate([getattr(row, name).numpy() for row in rows])
            for name in rows[0]._fields
            if getattr(rows[0], name) is not None
        }


@pytest.fixture(scope="module", params=[230, 3 * CAPACITY], ids=["filling", "full"])
def fed(request: pytest.FixtureRequest) -> Fed:
    return Fed(request.param)


@pytest.fixture(scope="module")
def batch(fed: Fed) -> Batch:
    """Every transition that can be drawn, and many of them twice."""
    batch = fed.ours.sample(2 * len(fed.ours))
    assert (
        len(set(batch.keys.tolist()))
        == len(fed.ours)
        > 0.9 * min(len(fed.position), fed.ours.capacity)
    )
    return batch


def test_episodes_end_in_both_ways(fed: Fed) -> None:
    assert min(fed.ends.values()) >= 2


def test_one_step_transitions_are_those_of_sb3(fed: Fed, batch: Batch) -> None:
    theirs = fed.theirs(fed.one_step, batch)
    assert np.array_equal(batch["obs"], theirs["observations"])
    assert np.array_equal(batch["next_of_one"], theirs["next_observations"])
    assert np.array_equal(batch["action"], theirs["actions"][:, 0])
    assert np.array_equal(batch["reward"], theirs["rewards"][:, 0])
    assert np.array_equal(batch["terminated"], theirs["dones"][:, 0])
    discounts = GAMMA * (1.0 - theirs["dones"][:, 0])
    assert np.array_equal(batch["gamma"], discounts.astype(np.float32))


def test_n_step_transitions_are_those_of_sb3(fed: Fed, batch: Batch) -> None:
    theirs = fed.theirs(fed.n_steps, batch)
    assert np.array_equal(batch["obs"], theirs["observations"])
    assert np.array_equal(batch["next_obs"], theirs["next_observations"])
    assert np.array_equal(batch["action"], theirs["actions"][:, 0])
    # SB3 takes powers of gamma in float32, and adds up in that.
    np.testing.assert_allclose(batch["return"], theirs["rewards"][:, 0], rtol=1e-6)
    discounts = (theirs["discounts"] * (1.0 - theirs["dones"]))[:, 0]
    np.testing.assert_allclose(batch["discount"], discounts, rtol=1e-6)
    assert (batch["discount"] == 0.0).tolist() == theirs["dones"][:, 0].astype(bool).tolist()
    assert len(np.unique(batch["return"])) >= 4  # nothing, and a point that is 0, 1 or 2 steps off


def test_frames_are_stored_once() -> None:
    """Bytes for each of as many transitions, of which one in 50 has its last observation."""
    ours = PrioritizedReplayBuffer(10_000, COLUMNS)
    spaces = gymnasium.spaces
    images = spaces.Box(0, 255, (4, 84, 84), np.uint8)
    theirs = NStepReplayBuffer(100, images, spaces.Discrete(6), "cpu")
    arrays = (array for array in vars(theirs).values() if isinstance(array, np.ndarray))
    transition = sum(array.nbytes for array in arrays) / 100
    assert ours.nbytes / 10_000 * (51 / 50) <= transition / 7.5
