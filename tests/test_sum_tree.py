"""The sum tree by examples worked out by hand; its laws are in test_sum_tree_laws.py."""

from __future__ import annotations

import numpy as np
import pytest

from kary_replay import SumTree


@pytest.mark.parametrize("fanout", [2, 4, 8, 16, 32, 64])
@pytest.mark.parametrize("capacity", [1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 63, 64, 65, 513, 4097])
def test_every_leaf_of_any_capacity_has_a_place_of_its_own(capacity: int, fanout: int) -> None:
    tree = SumTree(capacity, fanout)
    tree.update(np.arange(capacity), np.arange(1.0, capacity + 1))
    tree.check()
    assert tree.masses().tolist() == np.arange(1.0, capacity + 1).tolist()
    assert tree.total == capacity * (capacity + 1) / 2
    edges = np.cumsum(np.arange(1.0, capacity + 1))
    assert tree.find(edges - 1.0).tolist() == list(range(capacity))
