"""The buffer against a model of dicts and lists: whatever happens, in whatever order.

Above all the law of keys: a key names one transition for ever.
"""

from __future__ import annotations

import copy
import pickle
import tempfile
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kary_replay import PrioritizedReplayBuffer

COLUMNS = {"number": ((), np.int64), "bytes": ((3,), np.uint8), "flag": ((), np.bool_)}
# alpha = 1 and eps = 0 make a mass the error itself: whole numbers, whose sums are exact.
OPTIONS = {"alpha": 1.0, "eps": 0.0}


def row(number: int) -> dict[str, Any]:
    """A row that its number makes, so that a torn one is seen."""
    byte = number % 256
    return {"number": number, "bytes": [byte, 255 - byte, byte // 2], "flag": number % 3 == 0}


class Model:
    """What the buffer should hold: the number and mass of each live key, lane by lane."""

    def __init__(self, lanes: int, rows_per_lane: int) -> None:
        self.rows_per_lane = rows_per_lane
        self.lanes: list[dict[int, int]] = [{} for _ in range(lanes)]  # key to number, by age
        self.masses: dict[int, float] = {}
        self.heads = [0] * lanes
        self.stale = 0

    def add(self, lane: int, number: int, mass: float) -> int:
        key = self.heads[lane] * len(self.lanes) + lane
        self.heads[lane] += 1
        self.lanes[lane][key] = number
        self.masses[key] = mass
        if len(self.lanes[lane]) > self.rows_per_lane:
            oldest = next(iter(self.lanes[lane]))
            del self.lanes[lane][oldest], self.masses[oldest]
        return key

    @property
    def numbers(self) -> dict[int, int]:
        return {key: number for lane in self.lanes for key, number in lane.items()}

    @property
    def new_mass(self) -> float:
        return max(self.masses.values(), default=0.0) or 1.0


class BufferAgainstModel(RuleBasedStateMachine):
    @initialize(
        lanes=st.integers(1, 3),
        rows_per_lane=st.integers(1, 6),
        fanout=st.sampled_from([2, 8]),
        stratified=st.booleans(),
    )
    def start(self, lanes: int, rows_per_lane: int, fanout: int, stratified: bool) -> None:
        self.options = {"lanes": lanes, "fanout": fanout, "stratified": stratified, **OPTIONS}
        self.buffer = self.empty()(lanes * rows_per_lane)
        self.model = Model(lanes, rows_per_lane)
        self.added = 0

    def empty(self) -> Any:
        return lambda capacity: PrioritizedReplayBuffer(capacity, COLUMNS, seed=1, **self.options)

    @rule(data=st.data(), own_errors=st.booleans())
    def add(self, data: st.DataObject, own_errors: bool) -> None:
        lane = st.integers(0, len(self.model.lanes) - 1)
        lanes = data.draw(st.lists(lane, max_size=3 * self.buffer.capacity))
        masses = [self.model.new_mass] * len(lanes)
        if own_errors:
            size = len(lanes)
            masses = data.draw(st.lists(st.integers(0, 9), min_size=size, max_size=size))
        numbers = range(self.added, self.added + len(lanes))
        self.added += len(lanes)
        columns = {name: [row(number)[name] for number in numbers] for name in COLUMNS}
        columns = {
            name: np.array(columns[name], dtype).reshape(len(lanes), *shape)
            for name, (shape, dtype) in COLUMNS.items()
        }
        errors = {"td_errors": -np.array(masses, np.float64)} if own_errors else {}
        keys = self.buffer.add(**columns, lanes=np.array(lanes, np.int64), **errors)
        want = [self.model.add(*each) for each in zip(lanes, numbers, masses, strict=True)]
        assert keys.tolist() == want

    @rule(lane=st.integers(0, 2))
    def add_one(self, lane: int) -> None:
        lane %= len(self.model.lanes)
        mass = self.model.new_mass
        keys = self.buffer.add(**row(self.added), lanes=lane)
        assert keys.tolist() == [self.model.add(lane, self.added, mass)]
        self.added += 1

    def keys_ever(self) -> list[int]:
        lanes = len(self.model.lanes)
        return [i * lanes + lane for lane, head in enumerate(self.model.heads) for i in range(head)]

    @precondition(lambda self: any(self.model.heads))
    @rule(data=st.data())
    def update_priorities(self, data: st.DataObject) -> None:
        pairs = st.tuples(st.sampled_from(self.keys_ever()[-60:]), st.integers(-9, 9))
        updates = data.draw(st.lists(pairs, max_size=20))
        keys, errors = [key for key, _ in updates], [error for _, error in updates]
        applied = self.buffer.update_priorities(keys, errors)
        live = [(key, error) for key, error in updates if key in self.model.masses]
        self.model.masses.update((key, abs(error)) for key, error in live)
        self.model.stale += len(updates) - len(live)
        assert applied == len(live)

    @rule(batch_size=st.integers(1, 40))
    def sample(self, batch_size: int) -> None:
        total = sum(self.model.masses.values())
        if total == 0.0:
            with pytest.raises(ValueError, match=r"empty|mass|total"):
                self.buffer.sample(batch_size)
            return
        batch = self.buffer.sample(batch_size)
        numbers, keys = self.model.numbers, batch.keys.tolist()
        for i, key in enumerate(keys):
            want = row(numbers[key])
            assert {name: batch[name][i].tolist() for name in COLUMNS} == want
        masses = np.array([self.model.masses[key] for key in keys], np.float64)
        assert (masses > 0.0).all()
        assert (batch.slots == batch.keys % self.buffer.capacity).all()
        assert batch.probabilities.tolist() == (masses / total).tolist()
        weights = (masses.min() / masses) ** self.buffer.beta
        assert batch.weights.tolist() == weights.astype(np.float32).tolist()

    @rule()
    def pickle(self) -> None:
        self.buffer = pickle.loads(pickle.dumps(self.buffer))

    @rule()
    def deepcopy(self) -> None:
        self.buffer = copy.deepcopy(self.buffer)

    @rule(filled=st.booleans())
    def save_and_load_into_another(self, filled: bool) -> None:
        other = self.empty()(self.buffer.capacity)
        if filled:  # with rows that must not be drawn any more
            lanes = np.arange(other.capacity) % other.lanes
            garbage = {name: [row(10**6)[name]] * other.capacity for name in COLUMNS}
            other.add(**garbage, lanes=lanes, td_errors=np.full(other.capacity, 1e9))
        with tempfile.TemporaryDirectory() as folder:
            self.buffer.save(Path(folder) / "buffer")
            other.load(Path(folder) / "buffer")
        self.buffer = other

    @rule(data=st.data())
    def refused(self, data: st.DataObject) -> None:
        """Whatever is refused leaves everything as it was."""
        before = pickle.dumps(self.buffer)
        never = max(self.keys_ever(), default=-1) + 10
        calls = [
            lambda: self.buffer.update_priorities([never], [1.0]),
            lambda: self.buffer.update_priorities([-1], [1.0]),
            lambda: self.buffer.add(**row(0), lanes=[7]),
            lambda: self.buffer.add(**row(0), lanes=[0], td_errors=[np.nan]),
            lambda: self.buffer.add(**(row(0) | {"bytes": [1, 2, 300]}), lanes=[0]),
            lambda: self.buffer.sample(0),
        ]
        with pytest.raises((ValueError, IndexError)):
            data.draw(st.sampled_from(calls))()
        assert pickle.dumps(self.buffer) == before

    @invariant()
    def agrees_on_what_can_be_read(self) -> None:
        if not hasattr(self, "model"):
            return
        assert len(self.buffer) == len(self.model.masses)
        assert self.buffer.stale_updates == self.model.stale
        assert self.buffer.max_priority == self.model.new_mass


BufferAgainstModel.TestCase.settings = settings(max_examples=80, stateful_step_count=25)
TestBufferAgainstModel = BufferAgainstModel.TestCase
