"""What is measured: kary-replay and what people would otherwise use.

Only this file and its two companions, rivals_n_step.py and rivals_stacks.py, know peers.

Sum trees all take NumPy arrays; TorchRL's also takes tensors, which is slower by 1 to 5 µs a call.
cpprb's tree cannot be reached from Python, so cpprb is among the whole buffers alone.

Whole buffers take rows in the form in which their users hold them (SB3: arrays with an axis of
environments; Tianshou: a Batch; TorchRL: a TensorDict), made before the clock starts, and hand
out what they hand out (SB3 and TorchRL: torch tensors; the others: NumPy arrays).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import cpprb
import gymnasium
import numpy as np
import tianshou.data as ts
import torch
from numpy.typing import NDArray
from stable_baselines3.common.buffers import ReplayBuffer as Sb3ReplayBuffer
from tensordict import TensorDict
from torchrl import _torchrl as torchrl_compiled
from torchrl.data import LazyTensorStorage, TensorDictPrioritizedReplayBuffer

import kary_replay

Rows = dict[str, NDArray[Any]]  # obs, action, reward, next_obs, terminated, truncated
Columns = dict[str, tuple[tuple[int, ...], type]]
Call = Callable[[], object]

ALPHA, BETA, EPS = 0.6, 0.4, 1e-6
FANOUTS = (4, 8, 16, 32)


@contextmanager
def one_thread(seed: int) -> Iterator[None]:
    """Holds torch to one thread, nothing else here has more, and seeds what can be seeded."""
    np.random.seed(seed)  # noqa: NPY002 (SB3, Tianshou and TorchRL draw from it; cpprb does not)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


# Sum trees


@dataclass
class Tree:
    """A sum tree; `find` may use up its argument."""

    name: str
    capacity: int
    find: Callable[[NDArray[Any]], Any]
    update: Callable[[NDArray[np.int64], NDArray[Any]], object]
    masses: Callable[[NDArray[np.int64]], NDArray[Any]]
    total: Callable[[], float]
    dtype: type[np.floating] = np.float64
    nbytes: int | None = None  # only ours says


def trees(capacity: int) -> list[Tree]:
    """Ours first.  Slow and large ones sit out the large capacities."""
    peers = [_torchrl(capacity, np.float64), _tianshou(capacity)]
    if capacity <= 10**6:
        peers.append(_plain(capacity))
    if capacity > 10**7:
        return [_kary(capacity), *peers]
    ours, *other_fanouts = kary_trees(capacity)
    return [ours, *peers, _torchrl(capacity, np.float32), *other_fanouts]


def kary_trees(capacity: int) -> list[Tree]:
    """One for each fanout, the default first."""
    default = kary_replay.SumTree(1).fanout
    others = [_kary(capacity, fanout) for fanout in FANOUTS if fanout != default]
    return [_kary(capacity), *others]


def _kary(capacity: int, fanout: int | None = None) -> Tree:
    if fanout is None:
        tree, name = kary_replay.SumTree(capacity), "kary-replay"
    else:
        tree, name = kary_replay.SumTree(capacity, fanout), f"kary-replay, fanout {fanout}"
    return Tree(
        name,
        capacity,
        tree.find,
        tree.update,
        tree.masses,
        lambda: tree.total,
        nbytes=tree.nbytes,
    )


def _torchrl(capacity: int, dtype: type[np.floating]) -> Tree:
    single = dtype is np.float32
    kind = torchrl_compiled.SumSegmentTreeFp32 if single else torchrl_compiled.SumSegmentTreeFp64
    tree, name = kind(capacity), "TorchRL float32" if single else "TorchRL"
    total = partial(tree.query, 0, capacity)
    return Tree(name, capacity, tree.scan_lower_bound, tree.update, tree.at, total, dtype)


def _tianshou(capacity: int) -> Tree:
    tree = ts.SegmentTree(capacity)
    update, masses = tree.__setitem__, tree.__getitem__
    return Tree("Tianshou", capacity, tree.get_prefix_sum_idx, update, masses, tree.reduce)


def _plain(capacity: int) -> Tree:
    tree = PlainTree(capacity)
    return Tree(
        "plain Python", capacity, tree.find, tree.update, tree.masses, lambda: tree.nodes[1]
    )


class PlainTree:
    """The binary tree that most projects write for themselves: a list, one leaf at a time.

    Node i has the children 2 i and 2 i + 1; node 1 is the root.
    """

    def __init__(self, capacity: int) -> None:
        self.first_leaf = 1 << (capacity - 1).bit_length()
        self.nodes = [0.0] * (2 * self.first_leaf)

    def update(self, leaves: NDArray[np.int64], masses: NDArray[np.float64]) -> None:
        nodes = self.nodes
        for leaf, mass in zip(leaves.tolist(), masses.tolist(), strict=True):
            node = self.first_leaf + leaf
            nodes[node] = mass
            while node > 1:
                node >>= 1
                nodes[node] = nodes[2 * node] + nodes[2 * node + 1]

    def find(self, targets: NDArray[np.float64]) -> NDArray[np.int64]:
        nodes, first_leaf, found = self.nodes, self.first_leaf, []
        for target in targets.tolist():
            node = 1
            while node < first_leaf:
                node *= 2
                if target >= nodes[node]:
                    target -= nodes[node]
                    node += 1
            found.append(node - first_leaf)
        return np.array(found)

    def masses(self, leaves: NDArray[np.int64]) -> NDArray[np.float64]:
        return np.array(self.nodes[self.first_leaf :])[leaves]


# Whole buffers


class Buffer(Protocol):
    """A replay buffer.  `fill` gives row i the TD error td_errors[i], if it knows priorities."""

    name: str
    prioritized: bool
    adds: tuple[int, ...]  # how many rows one call of its `add` may take
    sample: Callable[[int], Any]

    def fill(self, rows: Rows, td_errors: NDArray[np.float64]) -> None: ...
    def adding(self, rows: Rows) -> Call:
        """A call that inserts the rows."""

    def update(self, sampled: Any, td_errors: Any) -> object: ...
    def errors(self, td_errors: NDArray[np.float64]) -> Any:
        """TD errors as a user of this buffer holds them."""

    def columns(self, sampled: Any) -> Rows:
        """The columns of what `sample` returned, as arrays."""


def vector_buffers(capacity: int, columns: Columns) -> list[Buffer]:
    """Ours first.  Some sit out the large capacities, where each takes gigabytes."""
    buffers: list[Buffer] = [
        KaryReplay(capacity, columns),
        KaryReplay(capacity, columns, lanes=10),
        Sb3(capacity, columns),
        TianshouVector(ts.PrioritizedVectorReplayBuffer(capacity, 10, alpha=ALPHA, beta=BETA)),
        Cpprb(capacity, columns),
        TorchRL(capacity, columns),
    ]
    if capacity <= 10**6:
        buffers += [
            KaryReplay(capacity, columns, prioritized=False),
            Sb3(capacity, columns, envs=10),
            Tianshou(ts.PrioritizedReplayBuffer(capacity, alpha=ALPHA, beta=BETA)),
            Tianshou(ts.ReplayBuffer(capacity)),
        ]
    return buffers


def image_buffers(capacity: int, columns: Columns) -> list[Buffer]:
    """Ours first."""
    return [
        KaryReplay(capacity, columns),
        KaryReplay(capacity, columns, prioritized=False),
        Sb3(capacity, columns),
    ]


class KaryReplay:
    """`kary_replay.PrioritizedReplayBuffer`, or `ReplayBuffer`."""

    def __init__(
        self, capacity: int, columns: Columns, lanes: int = 1, prioritized: bool = True
    ) -> None:
        self.prioritized = prioritized
        self.adds = (lanes,)
        self.buffer: Any
        if prioritized:
            self.buffer = kary_replay.PrioritizedReplayBuffer(
                capacity, columns, alpha=ALPHA, beta=BETA, eps=EPS, lanes=lanes, seed=0
            )
        else:
            self.buffer = kary_replay.ReplayBuffer(capacity, columns, lanes=lanes, seed=0)
        self.name = "kary-replay" + ("" if prioritized else " uniform")
        self.name += "" if lanes == 1 else f", {lanes} lanes"
        self.lanes = lanes
        self.sample = self.buffer.sample

    def fill(self, rows: Rows, td_errors: NDArray[np.float64]) -> None:
        lanes = np.arange(len(rows["reward"])) % self.lanes
        keys = self.buffer.add(**rows, lanes=lanes)
        if self.prioritized:
            self.buffer.update_priorities(keys, td_errors)

    def adding(self, rows: Rows) -> Call:
        return partial(self.buffer.add, **(only(rows) if self.lanes == 1 else rows))

    def update(self, sampled: kary_replay.Batch, td_errors: NDArray[np.float64]) -> object:
        return self.buffer.update_priorities(sampled.keys, td_errors)

    def errors(self, td_errors: NDArray[np.float64]) -> NDArray[np.float64]:
        return td_errors

    def columns(self, sampled: kary_replay.Batch) -> Rows:
        return {name: sampled[name] for name in self.buffer.columns}


class Sb3:
    """Stable-Baselines3 has no priorities."""

    prioritized = False

    def __init__(self, capacity: int, columns: Columns, envs: int = 1) -> None:
        self.name = "SB3 ReplayBuffer" + ("" if envs == 1 else f", {envs} envs")
        self.adds = (envs,)
        obs, action = (box(*columns[name]) for name in ("obs", "action"))
        self.buffer = Sb3ReplayBuffer(capacity, obs, action, device="cpu", n_envs=envs)
        self.sample = self.buffer.sample

    def fill(self, rows: Rows, td_errors: NDArray[np.float64]) -> None:
        buffer = self.buffer
        for stored, name in (
            (buffer.observations, "obs"),
            (buffer.actions, "action"),
            (buffer.rewards, "reward"),
            (buffer.next_observations, "next_obs"),
            (buffer.dones, "terminated"),
        ):
            stored[:] = rows[name].reshape(stored.shape)
        buffer.full = True

    def adding(self, rows: Rows) -> Call:
        infos: list[dict[str, Any]] = [{} for _ in rows["reward"]]
        names = ("obs", "next_obs", "action", "reward", "terminated")
        return partial(self.buffer.add, *(rows[name] for name in names), infos)

    def update(self, sampled: Any, td_errors: Any) -> object:
        raise NotImplementedError("SB3 has no priorities")

    def errors(self, td_errors: NDArray[np.float64]) -> Any:
        return td_errors

    def columns(self, sampled: Any) -> Rows:
        return {
            "obs": sampled.observations.numpy(),
            "action": sampled.actions.numpy(),
            "reward": sampled.rewards.numpy()[:, 0],
            "next_obs": sampled.next_observations.numpy(),
            "terminated": sampled.dones.numpy()[:, 0],
        }


class Tianshou:
    """Tianshou's buffers of one environment."""

    adds: tuple[int, ...] = (1,)

    def __init__(self, buffer: Any) -> None:
        self.buffer = buffer
        self.name = f"Tianshou {type(buffer).__name__}"
        self.prioritized = hasattr(buffer, "update_weight")
        self.sample = buffer.sample

    def fill(self, rows: Rows, td_errors: NDArray[np.float64]) -> None:
        names = ("obs", "action", "reward", "terminated", "truncated", "terminated", "next_obs")
        self.buffer.update(ts.ReplayBuffer.from_data(*(rows[name] for name in names)))
        self.prioritize(td_errors)

    def prioritize(self, td_errors: NDArray[np.float64]) -> None:
        if self.prioritized:
            row_in_slot = self.buffer.rew.astype(np.int64)
            self.buffer.update_weight(np.arange(len(self.buffer)), td_errors[row_in_slot])

    def adding(self, rows: Rows) -> Call:
        return partial(self.buffer.add, tianshou_batch(only(rows)))

    def update(self, sampled: Any, td_errors: NDArray[np.float64]) -> object:
        self.buffer.update_weight(sampled[1], td_errors)
        return None

    def errors(self, td_errors: NDArray[np.float64]) -> NDArray[np.float64]:
        return td_errors

    def columns(self, sampled: Any) -> Rows:
        batch = sampled[0]
        return {
            "obs": batch.obs,
            "action": batch.act,
            "reward": batch.rew,
            "next_obs": batch.obs_next,
            "terminated": batch.terminated,
            "truncated": batch.truncated,
        }


class TianshouVector(Tianshou):
    """Tianshou's buffers of ten environments, which can only be filled step by step."""

    adds = (10,)

    def fill(self, rows: Rows, td_errors: NDArray[np.float64]) -> None:
        for first in range(0, len(rows["reward"]), 10):
            self.adding({name: column[first : first + 10] for name, column in rows.items()})()
        self.prioritize(td_errors)

    def adding(self, rows: Rows) -> Call:
        return partial(self.buffer.add, tianshou_batch(rows))


class Cpprb:
    """cpprb; an update leaves part of its work to the next sample."""

    name = "cpprb PrioritizedReplayBuffer"
    prioritized = True
    adds = (1, 10)

    def __init__(self, capacity: int, columns: Columns) -> None:
        fields = {n: {"shape": shape or 1, "dtype": dtype} for n, (shape, dtype) in columns.items()}
        self.buffer = cpprb.PrioritizedReplayBuffer(capacity, fields, alpha=ALPHA, eps=EPS)
        self.names = list(columns)

    def fill(self, rows: Rows, td_errors: NDArray[np.float64]) -> None:
        self.buffer.add(**rows)
        self.buffer.update_priorities(np.arange(len(td_errors)), td_errors)

    def adding(self, rows: Rows) -> Call:
        return partial(self.buffer.add, **rows)

    def sample(self, size: int) -> Any:
        return self.buffer.sample(size, BETA)

    def update(self, sampled: Any, td_errors: NDArray[np.float64]) -> object:
        return self.buffer.update_priorities(sampled["indexes"], td_errors)

    def errors(self, td_errors: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.abs(td_errors)

    def columns(self, sampled: Any) -> Rows:
        ends = {"reward", "terminated", "truncated"}  # of shape (n, 1)
        return {n: sampled[n][:, 0] if n in ends else sampled[n] for n in self.names}


class TorchRL:
    """TorchRL's prioritized buffer in memory, with its default tree (float32)."""

    name = "TorchRL TensorDictPrioritizedReplayBuffer"
    prioritized = True
    adds = (1, 10)

    def __init__(self, capacity: int, columns: Columns) -> None:
        self.names = list(columns)
        self.buffer = TensorDictPrioritizedReplayBuffer(
            alpha=ALPHA, beta=BETA, eps=EPS, storage=LazyTensorStorage(capacity)
        )
        self.sample = self.buffer.sample

    def fill(self, rows: Rows, td_errors: NDArray[np.float64]) -> None:
        self.buffer.extend(tensordict(rows))
        self.buffer.update_priority(torch.arange(len(td_errors)), self.errors(td_errors))

    def adding(self, rows: Rows) -> Call:
        if len(rows["reward"]) == 1:
            return partial(self.buffer.add, tensordict(rows)[0].clone())
        return partial(self.buffer.extend, tensordict(rows))

    def update(self, sampled: Any, td_errors: torch.Tensor) -> object:
        return self.buffer.update_priority(sampled["index"], td_errors)

    def errors(self, td_errors: NDArray[np.float64]) -> torch.Tensor:
        return torch.from_numpy(np.abs(td_errors).astype(np.float32))

    def columns(self, sampled: Any) -> Rows:
        return {name: sampled[name].numpy() for name in self.names}


def only(rows: Rows) -> Rows:
    """The one row, without the leading axis."""
    return {name: column[0] for name, column in rows.items()}


def box(shape: tuple[int, ...], dtype: type) -> gymnasium.spaces.Box:
    high = 255 if dtype is np.uint8 else np.inf
    return gymnasium.spaces.Box(-high if dtype is not np.uint8 else 0, high, shape, dtype)


def tianshou_batch(rows: Rows) -> Any:
    return ts.Batch(
        obs=rows["obs"],
        act=rows["action"],
        rew=rows["reward"],
        terminated=rows["terminated"],
        truncated=rows["truncated"],
        obs_next=rows["next_obs"],
    )


def tensordict(rows: Rows) -> TensorDict:
    tensors = {name: torch.from_numpy(column) for name, column in rows.items()}
    return TensorDict(tensors, batch_size=[len(rows["reward"])])
