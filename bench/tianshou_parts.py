"""Where the time of a training step in Tianshou goes: python bench/tianshou_parts.py --size 200000

DQN on CartPole as in bench_tianshou.py, whose rivals take turns here too.  µs of each part itself,
without the parts that it calls; medians.  The clocks take about 2 µs of each part.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections import Counter
from collections.abc import Callable
from statistics import median
from typing import Any

import tianshou_trainings as trainings
import torch
from bench_tianshou import KINDS, RIVALS, THEIRS, make

ROUNDS, WARM_UP, STEPS = 20, 10, 25
OF_BUFFER = {
    "add": "buffer: add",
    "sample": "buffer: draws and rows",
    "__getitem__": "buffer: draws and rows",
    "next": "buffer: next, unfinished_index",
    "unfinished_index": "buffer: next, unfinished_index",
    "update_weight": "buffer: update_weight",
    "hasnull": "buffer: hasnull",
}
OF_OTHERS = {
    ("collector", "collect"): "collector",
    ("envs", "step"): "environments",
    ("algorithm", "_preprocess_batch"): "n-step returns",
    ("algorithm", "_target_q"): "networks: targets",
    ("algorithm", "_update_with_batch"): "networks: update",
    ("policy", "forward"): "networks: actions and targets",
}


class Clock:
    """Seconds of parts, each without those that it calls."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self._running: list[str] = []
        self._since = 0.0

    def _switch(self) -> None:
        now = time.process_time()
        if self._running:
            self.seconds[self._running[-1]] += now - self._since
        self._since = now

    def timed(self, part: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            self._switch()
            self._running.append(part)
            try:
                return call(*args, **kwargs)
            finally:
                self._switch()
                self._running.pop()

        return timed


def clocked(buffer: Any, mixin: type) -> tuple[Callable[[], Any], Clock]:
    """A training step, and the clock that goes while it runs."""
    clock, cls = Clock(), type(buffer)
    methods = {
        name: clock.timed(part, getattr(cls, name))
        for name, part in OF_BUFFER.items()
        if hasattr(cls, name)
    }
    buffer.__class__ = type(cls.__name__, (cls,), methods)
    step = trainings.training_step("DQN", buffer, mixin)
    trainer: Any = step.__self__  # type: ignore[attr-defined]
    collector = trainer.params.training_collector
    owners = {
        "collector": collector,
        "envs": collector.env,
        "algorithm": trainer.algorithm,
        "policy": trainer.algorithm.policy,
    }
    for (owner, name), part in OF_OTHERS.items():
        setattr(owners[owner], name, clock.timed(part, getattr(owners[owner], name)))
    return clock.timed("trainer", step), clock


def measure(kind: str, size: int) -> dict[str, dict[str, float]]:
    """µs of each part, for each rival but Tianshou's own buffer, which is one hasnull."""
    steps = {}
    for rival, (module, of_buffer, of_algorithm) in RIVALS.items():
        if rival != THEIRS:
            buffer = make(module, kind, size, of_buffer)
            trainings.fill(buffer, trainings.ENVIRONMENTS["CartPole"]())
            steps[rival] = clocked(buffer, of_algorithm)
    rounds: dict[str, list[Counter[str]]] = {rival: [] for rival in steps}
    gc.collect()
    gc.disable()
    for _ in range(ROUNDS):
        for rival, (step, clock) in steps.items():
            for _ in range(WARM_UP):
                step()
            clock.seconds.clear()
            for _ in range(STEPS):
                step()
            rounds[rival].append(Counter(clock.seconds))
    return {
        rival: {part: 1e6 * median(one[part] for one in of_rival) / STEPS for part in of_rival[0]}
        for rival, of_rival in rounds.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kind", choices=KINDS, default="prioritized")
    parser.add_argument("--size", type=int, default=200_000)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    of_rivals = measure(arguments.kind, arguments.size)
    parts = sorted({part for of_one in of_rivals.values() for part in of_one})
    print(f"{arguments.kind}, {arguments.size:,} rows, µs |", " | ".join(of_rivals))
    for part in parts:
        print(part, "|", " | ".join(f"{of_rivals[r].get(part, 0):.0f}" for r in of_rivals))
    for name, begins in (("buffer, all", "buffer"), ("all", "")):
        sums = (
            sum(us for part, us in of_rivals[r].items() if part.startswith(begins))
            for r in of_rivals
        )
        print(name, "|", " | ".join(f"{us:.0f}" for us in sums))


if __name__ == "__main__":
    main()
