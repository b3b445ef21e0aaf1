"""What SB3's algorithms have in common once they learn from a prioritized buffer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm

from .losses import effective_sample_size
from .prioritized import PrioritizedReplayBuffer, PrioritizedReplayBufferSamples


@dataclass
class TrainCall:
    """What the gradient steps of one call of `train` have in common."""

    parameters: list[th.Tensor]  # of the policy, whose modules would be walked in every step
    step: int = 0  # which of them it is, from 0
    metrics: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def note(self, metric: str, value: float) -> None:
        """Adds to what the logger is told the mean of."""
        self.metrics[metric].append(value)


class Learner(OffPolicyAlgorithm):
    """Puts a `PrioritizedReplayBuffer` behind an algorithm, and its `train` around gradient steps.

    The other base class is SB3's algorithm, whose constructor, policies and callbacks stay as
    they are.  A subclass says what a gradient step is.

    Raises TypeError for another class of buffer, ValueError if `replay_buffer_kwargs` has other
    `n_steps` than the algorithm.
    """

    replay_buffer: Any  # SB3 declares its own class

    def _setup_model(self) -> None:
        # Here, not in the constructor, so that a loaded model is checked too.
        if self.replay_buffer_class is None:
            self.replay_buffer_class = PrioritizedReplayBuffer
        if not issubclass(self.replay_buffer_class, PrioritizedReplayBuffer):
            raise TypeError(
                "replay_buffer_class must be a subclass of kary_replay.adapters.sb3."
                f"PrioritizedReplayBuffer, got {self.replay_buffer_class.__name__}"
            )
        # SB3 would say that it ignores n_steps, and refuse it with Dict observations.  Afterwards
        # both are as they were given, for a model that is loaded with another gamma.
        given, n_steps = self.replay_buffer_kwargs, self.n_steps
        self.replay_buffer_kwargs, self.n_steps = self._kwargs_with_horizon(given), 1
        super()._setup_model()
        self.replay_buffer_kwargs, self.n_steps = given, n_steps

    def _kwargs_with_horizon(self, given: dict[str, Any]) -> dict[str, Any]:
        """The buffer's arguments, with `n_steps` and `gamma` of the algorithm unless given."""
        if self.n_steps != 1 and given.get("n_steps", self.n_steps) != self.n_steps:
            raise ValueError(
                f"n_steps must be that of replay_buffer_kwargs, {given['n_steps']}, "
                f"got {self.n_steps}"
            )
        return {"n_steps": self.n_steps, "gamma": self.gamma} | given

    def train(self, gradient_steps: int, batch_size: int = 64) -> None:
        """Takes `gradient_steps` steps, each on `batch_size` transitions.

        Losses of critics are weighed against the bias of the draw, TD errors go back as
        priorities, and a beta that is a function of the training progress is followed.
        """
        buffer = self._prioritized_buffer()
        buffer.anneal_beta(self._current_progress_remaining)
        self.policy.set_training_mode(True)
        self._update_learning_rate(self._optimizers())
        call = TrainCall(list(self.policy.parameters()))
        for call.step in range(gradient_steps):
            self._n_updates += 1
            batch = buffer.sample(batch_size, env=self._vec_normalize_env)
            td_errors = self._gradient_step(batch, call)
            buffer.update_priorities(batch.keys, td_errors)
            if call.step == gradient_steps - 1:
                self._log_replay(buffer, batch.weights)
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        for name, values in call.metrics.items():
            self.logger.record(f"train/{name}", np.mean(values))

    def _optimizers(self) -> list[th.optim.Optimizer]:
        """Those that follow the schedule of the learning rate."""
        raise NotImplementedError

    def _gradient_step(self, batch: PrioritizedReplayBufferSamples, call: TrainCall) -> th.Tensor:
        """Learns from `batch`, notes metrics, and returns the TD errors, (B, 1)."""
        raise NotImplementedError

    def _prioritized_buffer(self) -> PrioritizedReplayBuffer:
        if not isinstance(self.replay_buffer, PrioritizedReplayBuffer):
            # load_replay_buffer takes whatever buffer a file holds.
            raise TypeError(
                "replay_buffer must be a PrioritizedReplayBuffer, "
                f"got {type(self.replay_buffer).__name__}"
            )
        return self.replay_buffer

    def _log_replay(self, buffer: PrioritizedReplayBuffer, weights: th.Tensor) -> None:
        """Of the newest batch, where it is about one."""
        self.logger.record("replay/beta", buffer.beta)
        self.logger.record("replay/max_priority", buffer.max_priority)
        self.logger.record("replay/mean_weight", weights.mean().item())
        self.logger.record("replay/effective_sample_size", effective_sample_size(weights))
        self.logger.record("replay/stale_updates", buffer.stale_updates)

    def _bootstrapped(
        self, batch: PrioritizedReplayBufferSamples, next_values: th.Tensor
    ) -> th.Tensor:
        """Rewards and the discounted values of what came after them, unless nothing did."""
        discounts = self.gamma if batch.discounts is None else batch.discounts
        return batch.rewards + (1 - batch.dones) * discounts * next_values


def descend(
    optimizer: th.optim.Optimizer,
    loss: th.Tensor,
    parameters: Iterable[th.Tensor] = (),
    max_grad_norm: float | None = None,
) -> float:
    """One step of the optimizer, with the gradients of `parameters` clipped; returns the loss."""
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    if max_grad_norm is not None:
        th.nn.utils.clip_grad_norm_(parameters, max_grad_norm)
    optimizer.step()
    return loss.item()
