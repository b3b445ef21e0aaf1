"""Who makes stacks of frames, of a step's observation and of the next one.

Kary-replay, Tianshou and cpprb store a frame once; SB3 stores the stacks that its user makes.
Stacks lie as (4, 84, 84), cpprb's as (84, 84, 4).

TorchRL sits out: its CatFrames over slices of four steps took a thousand times as long as the
others for a batch of 32, and never draws the first three steps of an episode.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import cpprb
import numpy as np
import tianshou.data as ts
from episodes import STACK, Episodes, Replay
from numpy.typing import NDArray
from rivals import ALPHA, BETA, EPS, Call, Rows, box, only, tianshou_batch
from stable_baselines3.common.buffers import ReplayBuffer as Sb3ReplayBuffer

import kary_replay
from kary_replay import Column, Stored, t

SB3_CAPACITY = 8_000  # 450 MB: it takes eight times the memory of one frame a step


def uniform(capacity: int) -> list[Replay]:
    """Ours first."""
    return [
        KaryReplay(kary_replay.ReplayBuffer(capacity, columns(), seed=0)),
        Sb3(),
        Tianshou(ts.ReplayBuffer(capacity, **TIANSHOU)),
        Cpprb(cpprb.ReplayBuffer(capacity, **CPPRB)),
    ]


def prioritized(capacity: int) -> list[Replay]:
    """Ours first; SB3 has no priorities."""
    ours = kary_replay.PrioritizedReplayBuffer(
        capacity, columns(), alpha=ALPHA, beta=BETA, eps=EPS, seed=0
    )
    return [
        KaryReplay(ours),
        Tianshou(ts.PrioritizedReplayBuffer(capacity, alpha=ALPHA, beta=BETA, **TIANSHOU)),
        Cpprb(cpprb.PrioritizedReplayBuffer(capacity, alpha=ALPHA, eps=EPS, **CPPRB)),
    ]


def columns() -> dict[str, Any]:
    frame = Column("frame")
    return {
        "frame": Stored((84, 84), np.uint8, with_next=True, drawn=False),
        "action": ((1,), np.float32),
        "reward": ((), np.float32),
        "terminated": ((), np.bool_),
        "truncated": ((), np.bool_),
        "obs": frame[t - STACK + 1 : t + 1].pad("edge"),
        "next_obs": frame[t - STACK + 2 : t + 2].pad("edge"),
    }


class KaryReplay:
    def __init__(self, buffer: Any) -> None:
        self.buffer = buffer
        self.name = f"kary-replay {type(buffer).__name__}"
        self.prioritized = hasattr(buffer, "update_priorities")
        self.sample = buffer.sample

    @property
    def bytes_per_transition(self) -> float:
        return self.buffer.nbytes / len(self.buffer)

    def fill(self, episodes: Episodes) -> None:
        for start, stop in episodes:
            self.buffer.add(**_frames(episodes.rows(start, stop)))

    def adding(self, episodes: Episodes, step: int) -> Call:
        return partial(self.buffer.add, **only(_frames(episodes.rows(step, step + 1))))

    def columns(self, sampled: Any) -> Rows:
        return {name: sampled[name] for name in ("obs", "next_obs", "action")}


def _frames(rows: Rows) -> Rows:
    return {name.replace("obs", "frame"): column for name, column in rows.items()}


class Sb3:
    name = "SB3 ReplayBuffer"
    prioritized = False

    def __init__(self) -> None:
        stack, action = box((STACK, 84, 84), np.uint8), box((1,), np.float32)
        self.buffer = Sb3ReplayBuffer(SB3_CAPACITY, stack, action, device="cpu")
        self.sample = self.buffer.sample

    @property
    def bytes_per_transition(self) -> float:
        buffer = self.buffer
        observations = buffer.observations, buffer.next_observations
        rest = buffer.actions, buffer.rewards, buffer.dones, buffer.timeouts
        return sum(column.nbytes for column in observations + rest) / SB3_CAPACITY

    def fill(self, episodes: Episodes) -> None:
        buffer, steps = self.buffer, np.arange(SB3_CAPACITY)
        stacks = episodes.stacks(steps)
        buffer.observations[:, 0], buffer.next_observations[:, 0] = stacks.values()
        buffer.actions[:, 0], buffer.rewards[:, 0] = episodes.action[steps], episodes.reward[steps]
        buffer.timeouts[:, 0] = episodes.truncated[steps]
        buffer.dones[:, 0] = episodes.terminated[steps] | episodes.truncated[steps]
        buffer.full = True

    def adding(self, episodes: Episodes, step: int) -> Call:
        rows = _stacked(episodes, step, step + 1)
        infos = [{"TimeLimit.truncated": bool(rows["truncated"][0])}]
        done = rows["terminated"] | rows["truncated"]
        names = ("obs", "next_obs", "action", "reward")
        return partial(self.buffer.add, *(rows[name] for name in names), done, infos)

    def columns(self, sampled: Any) -> Rows:
        return {
            "obs": sampled.observations.numpy(),
            "next_obs": sampled.next_observations.numpy(),
            "action": sampled.actions.numpy(),
        }


def _stacked(episodes: Episodes, start: int, stop: int) -> Rows:
    return episodes.rows(start, stop) | episodes.stacks(np.arange(start, stop))


TIANSHOU = {"stack_num": STACK, "ignore_obs_next": True, "save_only_last_obs": True}


class Tianshou:
    """It takes stacks, and keeps the last frame of each."""

    def __init__(self, buffer: Any) -> None:
        self.buffer = buffer
        self.name = f"Tianshou {type(buffer).__name__}"
        self.prioritized = hasattr(buffer, "update_weight")
        self.sample = buffer.sample

    def fill(self, episodes: Episodes) -> None:
        for start, stop in episodes:
            rows = _stacked(episodes, start, stop)
            for row in range(stop - start):
                self.buffer.add(tianshou_batch({name: rows[name][row] for name in rows}))

    def adding(self, episodes: Episodes, step: int) -> Call:
        return partial(self.buffer.add, tianshou_batch(only(_stacked(episodes, step, step + 1))))

    def columns(self, sampled: Any) -> Rows:
        batch = sampled[0]
        return {"obs": batch.obs, "next_obs": batch.obs_next, "action": batch.act}


CPPRB = {
    "env_dict": {
        "obs": {"shape": (84, 84, STACK), "dtype": np.uint8},
        "action": {},
        "reward": {},
        "terminated": {"dtype": np.bool_},
        "truncated": {"dtype": np.bool_},
    },
    "next_of": "obs",
    "stack_compress": "obs",
}


class Cpprb:
    """It takes stacks, and keeps what is new in each; its user says where episodes end."""

    def __init__(self, buffer: Any) -> None:
        self.buffer = buffer
        self.name = f"cpprb {type(buffer).__name__}"
        self.prioritized = hasattr(buffer, "update_priorities")
        self.sample = partial(buffer.sample, beta=BETA) if self.prioritized else buffer.sample

    def fill(self, episodes: Episodes) -> None:
        for start, stop in episodes:
            rows = _cpprb_rows(_stacked(episodes, start, stop))
            self._add(rows, ended=stop < episodes.count)

    def adding(self, episodes: Episodes, step: int) -> Call:
        rows = only(_cpprb_rows(_stacked(episodes, step, step + 1)))
        return partial(self._add, rows, bool(rows["terminated"] or rows["truncated"]))

    def _add(self, rows: Rows, ended: bool) -> None:
        self.buffer.add(**rows)
        if ended:
            self.buffer.on_episode_end()

    def columns(self, sampled: Any) -> Rows:
        stacks = {name: np.moveaxis(sampled[name], -1, 1) for name in ("obs", "next_obs")}
        return stacks | {"action": sampled["action"]}


def _cpprb_rows(rows: Rows) -> Rows:
    return rows | {name: _stack_last(rows[name]) for name in ("obs", "next_obs")}


def _stack_last(stacks: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return np.ascontiguousarray(np.moveaxis(stacks, 1, -1))
