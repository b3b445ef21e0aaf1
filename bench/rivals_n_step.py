"""Who makes n-step batches of vectors: what a learner needs for its loss, by each one's own way.

Kary-replay, SB3 and Tianshou store single steps and sum the rewards of a window when they sample;
cpprb and TorchRL sum when they add, and sample what they have stored.  Tianshou hands out targets,
the value of the next observation already in them, so the time to get those observations is in its
figure (`q` is one number of them: no network is timed).
"""

from __future__ import annotations

from functools import partial
from typing import Any

import cpprb
import numpy as np
import tianshou.data as ts
import torch
from episodes import GAMMA, N_STEPS, Episodes, Replay, q
from numpy.typing import NDArray
from rivals import ALPHA, BETA, EPS, Call, Rows, box, only, tianshou_batch
from stable_baselines3.common.buffers import NStepReplayBuffer
from tensordict import TensorDict
from tianshou.algorithm.algorithm_base import Algorithm
from torchrl.data import (
    LazyTensorStorage,
    TensorDictPrioritizedReplayBuffer,
    TensorDictReplayBuffer,
)
from torchrl.envs import MultiStepTransform

import kary_replay
from kary_replay import Column, Horizon, Stored, t


def uniform(capacity: int) -> list[Replay]:
    """Ours first."""
    return [
        KaryReplay(kary_replay.ReplayBuffer(capacity, columns(), seed=0)),
        Sb3(capacity),
        Tianshou(ts.ReplayBuffer(capacity)),
        Cpprb(cpprb.ReplayBuffer(capacity, **CPPRB)),
        TorchRL(TensorDictReplayBuffer(**_torchrl(capacity))),
    ]


def prioritized(capacity: int) -> list[Replay]:
    """Ours first; SB3 has no priorities."""
    settings = {"alpha": ALPHA, "beta": BETA, "eps": EPS}
    return [
        KaryReplay(kary_replay.PrioritizedReplayBuffer(capacity, columns(), seed=0, **settings)),
        Tianshou(ts.PrioritizedReplayBuffer(capacity, alpha=ALPHA, beta=BETA)),
        Cpprb(cpprb.PrioritizedReplayBuffer(capacity, alpha=ALPHA, eps=EPS, **CPPRB)),
        TorchRL(TensorDictPrioritizedReplayBuffer(**_torchrl(capacity), **settings)),
    ]


def columns() -> dict[str, Any]:
    obs, reward, k = Column("obs"), Column("reward"), Horizon(N_STEPS)
    return {
        "obs": Stored((17,), np.float32, with_next=True),
        "action": ((6,), np.float32),
        "reward": Stored((), np.float32, drawn=False),
        "terminated": Stored((), np.bool_, drawn=False),
        "truncated": Stored((), np.bool_, drawn=False),
        "next_obs": obs[t + k],
        "return": reward[t : t + k].sum(GAMMA),
        "discount": GAMMA**k,
    }


class KaryReplay:
    def __init__(self, buffer: Any) -> None:
        self.buffer = buffer
        self.name = f"kary-replay {type(buffer).__name__}"
        self.prioritized = hasattr(buffer, "update_priorities")
        self.sample = buffer.sample

    def fill(self, episodes: Episodes) -> None:
        for start, stop in episodes:
            self.buffer.add(**episodes.rows(start, stop))

    def adding(self, episodes: Episodes, step: int) -> Call:
        return partial(self.buffer.add, **only(episodes.rows(step, step + 1)))

    def columns(self, sampled: Any) -> Rows:
        target = sampled["return"] + sampled["discount"] * q(sampled["next_obs"])
        return {"obs": sampled["obs"], "action": sampled["action"], "target": target}


class Sb3:
    name = "SB3 NStepReplayBuffer"
    prioritized = False

    def __init__(self, capacity: int) -> None:
        obs, action = box((17,), np.float32), box((6,), np.float32)
        self.buffer = NStepReplayBuffer(
            capacity, obs, action, device="cpu", n_steps=N_STEPS, gamma=GAMMA
        )
        self.sample = self.buffer.sample

    def fill(self, episodes: Episodes) -> None:
        buffer, places = self.buffer, episodes.place
        buffer.observations[:, 0] = episodes.observations[places]
        buffer.next_observations[:, 0] = episodes.observations[places + 1]
        buffer.actions[:, 0], buffer.rewards[:, 0] = episodes.action, episodes.reward
        buffer.dones[:, 0] = episodes.terminated | episodes.truncated
        buffer.timeouts[:, 0] = episodes.truncated
        buffer.full = True

    def adding(self, episodes: Episodes, step: int) -> Call:
        rows = episodes.rows(step, step + 1)
        done = rows["terminated"] | rows["truncated"]
        infos = [{"TimeLimit.truncated": bool(rows["truncated"][0])}]
        names = ("obs", "next_obs", "action", "reward")
        return partial(self.buffer.add, *(rows[name] for name in names), done, infos)

    def columns(self, sampled: Any) -> Rows:
        value = (1 - sampled.dones) * q(sampled.next_observations)[:, None]
        target = sampled.rewards + sampled.discounts * value
        return {
            "obs": sampled.observations.numpy(),
            "action": sampled.actions.numpy(),
            "target": target.numpy()[:, 0],
        }


class Tianshou:
    """The buffer of one environment, and what an algorithm does to its batches before a loss."""

    def __init__(self, buffer: Any) -> None:
        self.buffer = buffer
        self.name = f"Tianshou {type(buffer).__name__}"
        self.prioritized = hasattr(buffer, "update_weight")

    def sample(self, size: int) -> Any:
        batch, indices = self.buffer.sample(size)
        return Algorithm.compute_nstep_return(
            batch, self.buffer, indices, _next_value, GAMMA, N_STEPS
        )

    def fill(self, episodes: Episodes) -> None:
        flags = episodes.terminated, episodes.truncated, episodes.terminated | episodes.truncated
        obs, next_obs = (episodes.observations[episodes.place + ahead] for ahead in (0, 1))
        self.buffer.update(
            ts.ReplayBuffer.from_data(obs, episodes.action, episodes.reward, *flags, next_obs)
        )

    def adding(self, episodes: Episodes, step: int) -> Call:
        return partial(self.buffer.add, tianshou_batch(only(episodes.rows(step, step + 1))))

    def columns(self, sampled: Any) -> Rows:
        return {
            "obs": sampled.obs,
            "action": sampled.act,
            "target": sampled.returns.numpy().reshape(-1),
        }


def _next_value(buffer: Any, indices: NDArray[np.int64]) -> torch.Tensor:
    """As in Tianshou's algorithms: a second batch is taken out, for its next observations."""
    return torch.from_numpy(q(buffer[indices].obs_next).copy())


CPPRB = {
    "env_dict": {
        "obs": {"shape": 17},
        "action": {"shape": 6},
        "reward": {},
        "next_obs": {"shape": 17},
        "done": {},
    },
    "Nstep": {"size": N_STEPS, "gamma": GAMMA, "rew": "reward", "next": "next_obs"},
}


class Cpprb:
    """cpprb leaves it to its user to multiply by gamma ** n and to say where episodes end."""

    def __init__(self, buffer: Any) -> None:
        self.buffer = buffer
        self.name = f"cpprb {type(buffer).__name__}"
        self.prioritized = hasattr(buffer, "update_priorities")
        self.sample = partial(buffer.sample, beta=BETA) if self.prioritized else buffer.sample

    def fill(self, episodes: Episodes) -> None:
        for start, stop in episodes:
            self._add(_cpprb_rows(episodes.rows(start, stop)), stop < episodes.count)

    def adding(self, episodes: Episodes, step: int) -> Call:
        rows = episodes.rows(step, step + 1)
        ended = bool(rows["terminated"][0] or rows["truncated"][0])
        return partial(self._add, only(_cpprb_rows(rows)), ended)

    def _add(self, rows: Rows, ended: bool) -> None:
        self.buffer.add(**rows)
        if ended:
            self.buffer.on_episode_end()

    def columns(self, sampled: Any) -> Rows:
        value = (1 - sampled["done"][:, 0]) * q(sampled["next_obs"])
        target = sampled["reward"][:, 0] + GAMMA**N_STEPS * value
        return {"obs": sampled["obs"], "action": sampled["action"], "target": target}


def _cpprb_rows(rows: Rows) -> Rows:
    """Copies: cpprb sums the rewards in the array that it is given."""
    kept = {name: rows[name].copy() for name in ("obs", "action", "reward", "next_obs")}
    return kept | {"done": rows["terminated"].astype(np.float32)}


def _torchrl(capacity: int) -> dict[str, Any]:
    return {
        "storage": LazyTensorStorage(capacity),
        "transform": MultiStepTransform(n_steps=N_STEPS, gamma=GAMMA),
    }


class TorchRL:
    def __init__(self, buffer: Any) -> None:
        self.buffer = buffer
        self.name = f"TorchRL {type(buffer).__name__}"
        self.prioritized = isinstance(buffer, TensorDictPrioritizedReplayBuffer)
        self.sample = buffer.sample

    def fill(self, episodes: Episodes) -> None:
        for start, stop in episodes:
            self.buffer.extend(_torchrl_steps(episodes.rows(start, stop)))

    def adding(self, episodes: Episodes, step: int) -> Call:
        return partial(self.buffer.extend, _torchrl_steps(episodes.rows(step, step + 1)))

    def columns(self, sampled: Any) -> Rows:
        after = sampled["next"]
        bootstrapped = ~after["terminated"][:, 0] * sampled["gamma"]
        target = after["reward"][:, 0] + bootstrapped * q(after["obs"])
        return {
            "obs": sampled["obs"].numpy(),
            "action": sampled["action"].numpy(),
            "target": target.numpy(),
        }


def _torchrl_steps(rows: Rows) -> TensorDict:
    """In TorchRL's form: what came of a step lies under "next", flags and rewards with an axis."""
    tensors = {name: torch.from_numpy(column) for name, column in rows.items()}
    after = {name: tensors[name][:, None] for name in ("reward", "terminated", "truncated")}
    after["done"] = after["terminated"] | after["truncated"]
    after["obs"] = tensors["next_obs"]
    size = [len(rows["reward"])]
    step = {"obs": tensors["obs"], "action": tensors["action"], "next": TensorDict(after, size)}
    return TensorDict(step, size)
