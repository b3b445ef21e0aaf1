"""Sum trees alone: `find` and `update`, ours beside the peers' (race.py says how it is timed).

Masses are whole numbers up to 2 ** 20, so sums in float64 are exact and there is one right
answer: the leaf that a binary search in the cumulated masses gives.  `extra_info["agrees"]` says
for which share of random targets a tree finds that leaf, and which share of leaves holds the mass
that `update` wrote last; `extra_info["total_error"]` how far the total then is from the sum of
the leaves.  Trees in float32 are shown, but they find wrong leaves.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import rivals
from numpy.typing import NDArray
from pytest_benchmark.fixture import BenchmarkFixture
from race import Call, Runner, race
from rivals import Tree

CAPACITIES = [10**4, 10**5, 10**6, 10**7, pytest.param(10**8, marks=pytest.mark.slow)]
GROWTH = [
    *(10**3, 10**4, 3 * 10**4, 10**5, 3 * 10**5, 10**6, 3 * 10**6, 10**7),
    *(pytest.param(capacity, marks=pytest.mark.slow) for capacity in (3 * 10**7, 10**8)),
]
BATCHES = [32, 256, 4096]
CHECKED = 100_000  # targets, leaves
CHUNK = 10**6  # leaves written or read in one call


@pytest.fixture(scope="module", params=CAPACITIES)
def trees(request: pytest.FixtureRequest) -> list[Tree]:
    """Every tree of one capacity, filled with the same masses."""
    return _filled(rivals.trees(request.param))


@pytest.fixture(scope="module", params=GROWTH)
def fanouts(request: pytest.FixtureRequest) -> list[Tree]:
    """Our trees of one capacity."""
    return _filled(rivals.kary_trees(request.param))


def _filled(trees: list[Tree]) -> list[Tree]:
    rng = np.random.default_rng(1)
    for leaves in _chunks(trees[0].capacity):
        masses = _masses(rng, len(leaves))
        for tree in trees:
            tree.update(leaves, masses.astype(tree.dtype))
    return trees


@pytest.mark.parametrize("batch", BATCHES)
def bench_find(
    benchmark: BenchmarkFixture, trees: list[Tree], batch: int, rng: np.random.Generator
) -> None:
    _race_to_find(benchmark, "find", trees, batch, rng)


def bench_growth(
    benchmark: BenchmarkFixture, fanouts: list[Tree], rng: np.random.Generator
) -> None:
    """What a draw costs as the tree grows, in batches that hide what a call costs."""
    _race_to_find(benchmark, "growth", fanouts, 4096, rng)
    benchmark.extra_info["nbytes"] = {tree.name: tree.nbytes for tree in fanouts}


def _race_to_find(
    benchmark: BenchmarkFixture,
    operation: str,
    trees: list[Tree],
    batch: int,
    rng: np.random.Generator,
) -> None:
    def finding(tree: Tree, calls: int) -> list[Call]:
        return [partial(tree.find, _targets(tree, rng, batch)) for _ in range(calls)]

    race(benchmark, _calls(batch), *(Runner(tree.name, partial(finding, tree)) for tree in trees))
    agrees = {tree.name: _share_found(tree, rng) for tree in trees}
    _describe(benchmark, operation, trees, batch, agrees)


@pytest.mark.parametrize("batch", BATCHES)
def bench_update(
    benchmark: BenchmarkFixture, trees: list[Tree], batch: int, rng: np.random.Generator
) -> None:
    def updating(tree: Tree, calls: int) -> list[Call]:
        return [partial(tree.update, *_update(tree, rng, batch)) for _ in range(calls)]

    race(benchmark, _calls(batch), *(Runner(tree.name, partial(updating, tree)) for tree in trees))
    agrees = {tree.name: _share_held(tree, rng) for tree in trees}
    _describe(benchmark, "update", trees, batch, agrees)
    benchmark.extra_info["total_error"] = {tree.name: _total_error(tree) for tree in trees}


def _calls(batch: int) -> int:
    """To a segment: enough for the clock, few enough for slow trees."""
    return max(1, min(16, 4096 // batch))


def _describe(
    benchmark: BenchmarkFixture,
    operation: str,
    trees: list[Tree],
    batch: int,
    agrees: dict[str, float],
) -> None:
    benchmark.group = f"{operation}, capacity {trees[0].capacity}"
    benchmark.extra_info |= {
        "operation": operation,
        "capacity": trees[0].capacity,
        "batch": batch,
        "agrees": agrees,
        "float32": [tree.name for tree in trees if tree.dtype is np.float32],
    }


def _chunks(capacity: int) -> list[NDArray[np.int64]]:
    firsts = range(0, capacity, CHUNK)
    return [np.arange(first, min(first + CHUNK, capacity)) for first in firsts]


def _masses(rng: np.random.Generator, size: int) -> NDArray[np.float64]:
    return rng.integers(1, 2**20, size, endpoint=True).astype(np.float64)


def _targets(tree: Tree, rng: np.random.Generator, size: int) -> NDArray[np.floating]:
    """Targets in [0, total), in no order, in the tree's own precision."""
    total = tree.dtype(tree.total())
    targets = (rng.random(size) * total).astype(tree.dtype)
    return np.minimum(targets, np.nextafter(total, tree.dtype(0)))


def _update(tree: Tree, rng: np.random.Generator, size: int) -> tuple[NDArray, NDArray]:
    """Leaves in no order, some of them more than once, and their masses."""
    return rng.integers(tree.capacity, size=size), _masses(rng, size).astype(tree.dtype)


def _share_found(tree: Tree, rng: np.random.Generator) -> float:
    ends = np.cumsum(_all_masses(tree))
    targets = _targets(tree, rng, CHECKED)
    right = np.searchsorted(ends, targets.astype(np.float64), side="right")
    return float(np.mean(tree.find(targets) == right))


def _share_held(tree: Tree, rng: np.random.Generator) -> float:
    leaves, masses = _update(tree, rng, CHECKED)
    tree.update(leaves, masses)
    last = dict(zip(leaves.tolist(), masses.tolist(), strict=True))
    return float(np.mean(tree.masses(leaves) == [last[leaf] for leaf in leaves.tolist()]))


def _total_error(tree: Tree) -> float:
    exact = _all_masses(tree).sum()
    return abs(tree.total() - exact) / exact


def _all_masses(tree: Tree) -> NDArray[np.float64]:
    masses = [tree.masses(leaves) for leaves in _chunks(tree.capacity)]
    return np.concatenate(masses).astype(np.float64)
