"""Losses of single samples, what they weigh, and the TD errors that go back to the buffer.

Each function takes B rows and weights of shape (B, 1), and returns the loss, and the TD errors:
shape (B, 1), of which absolute values are taken before they are averaged, so that none cancel.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

import torch as th
from torch.nn import functional as F

LossAndErrors: TypeAlias = tuple[th.Tensor, th.Tensor]


def huber(current: th.Tensor, target: th.Tensor, weights: th.Tensor) -> LossAndErrors:
    """Of one critic's values, (B, 1)."""
    losses = F.smooth_l1_loss(current, target, reduction="none")
    return weighed(losses, weights), target - current.detach()


def squared(critics: Iterable[th.Tensor], target: th.Tensor, weights: th.Tensor) -> LossAndErrors:
    """Of the values of several critics, (B, 1) each: the sum of their losses."""
    values = list(critics)
    losses = [weighed(F.mse_loss(v, target, reduction="none"), weights) for v in values]
    errors = th.stack([(target - value.detach()).abs() for value in values])
    return sum(losses, losses[0].new_zeros(())), errors.mean(dim=0)


def quantile_huber(
    current: th.Tensor, target: th.Tensor, weights: th.Tensor, *, summed: bool
) -> LossAndErrors:
    """Of quantiles, (B, ..., n) beside (B, ..., m): the mean over all pairs of them.

    With `summed` the n quantiles are summed, as in QR-DQN (arXiv 1710.10044); otherwise they are
    averaged, as in TQC (arXiv 2005.04269).
    """
    n = current.shape[-1]
    # The middle of each of n equal pieces of [0, 1], (n, 1) beside errors of (B, ..., n, m).
    fractions = (th.arange(n, device=current.device, dtype=th.float).unsqueeze(-1) + 0.5) / n
    errors = target.unsqueeze(-2) - current.unsqueeze(-1)
    sizes = errors.abs()
    losses = th.where(sizes > 1, sizes - 0.5, errors**2 * 0.5)
    losses = (fractions - (errors.detach() < 0).float()).abs() * losses
    loss = weighed(losses.sum(dim=-2) if summed else losses, weights)
    return loss, sizes.detach().flatten(start_dim=1).mean(dim=1, keepdim=True)


def weighed(losses: th.Tensor, weights: th.Tensor) -> th.Tensor:
    """The mean of losses, (B, ...), each row of which counts by its weight, (B, 1).

    ValueError for other shapes, which would be broadcast to (B, B).
    """
    rows = len(losses)
    if losses.ndim < 2 or weights.shape != (rows, 1):
        raise ValueError(
            f"weights must have shape ({rows}, 1) beside losses of {tuple(losses.shape)}, "
            f"got {tuple(weights.shape)}"
        )
    if losses.ndim > 2:
        weights = weights.reshape(rows, *(1,) * (losses.ndim - 1))
    return (weights * losses).mean()


def effective_sample_size(weights: th.Tensor) -> float:
    """Of how many equal weights the estimate is as good as that of these."""
    return (weights.sum() ** 2 / (weights**2).sum()).item()
