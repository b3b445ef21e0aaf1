"""SB3's algorithms with what prioritized replay asks of them: weighed losses, TD errors back."""

from __future__ import annotations

import numpy as np
import torch as th
from stable_baselines3 import DQN
from torch.nn import functional as F

from .buffers import (
    PrioritizedReplayBuffer,
    PrioritizedReplayBufferSamples,
)


class PrioritizedDQN(DQN):
    """SB3's DQN on a `PrioritizedReplayBuffer`, its default buffer; the constructor is DQN's.

    Each loss is weighed against the bias of the draw, each TD error goes back as a priority, and
    a beta that is a function of the training progress is followed.  Options of the buffer go
    into `replay_buffer_kwargs`.  ``replay/beta`` is logged beside what DQN logs.

    Raises TypeError for another class of buffer, ValueError for ``n_steps != 1``.
    """

    def _setup_model(self) -> None:
        # Here, not in the constructor, so that a loaded model is checked too.
        if self.n_steps != 1:
            raise ValueError(f"n_steps must be 1 with a prioritized buffer, got {self.n_steps}")
        if self.replay_buffer_class is None:
            self.replay_buffer_class = PrioritizedReplayBuffer
        if not issubclass(self.replay_buffer_class, PrioritizedReplayBuffer):
            raise TypeError(
                "replay_buffer_class must be a subclass of kary_replay.adapters.sb3."
                f"PrioritizedReplayBuffer, got {self.replay_buffer_class.__name__}"
            )
        super()._setup_model()

    def train(self, gradient_steps: int, batch_size: int = 100) -> None:
        """Takes `gradient_steps` optimizer steps, each on `batch_size` transitions."""
        buffer = self._prioritized_buffer()
        buffer.anneal_beta(self._current_progress_remaining)
        self.logger.record("replay/beta", buffer.beta)
        self.policy.set_training_mode(True)
        self._update_learning_rate(self.policy.optimizer)
        losses = [self._train_step(buffer, batch_size) for _ in range(gradient_steps)]
        self._n_updates += gradient_steps
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        self.logger.record("train/loss", np.mean(losses))

    def _prioritized_buffer(self) -> PrioritizedReplayBuffer:
        if not isinstance(self.replay_buffer, PrioritizedReplayBuffer):
            # load_replay_buffer takes whatever buffer a file holds.
            raise TypeError(
                "replay_buffer must be a PrioritizedReplayBuffer, "
                f"got {type(self.replay_buffer).__name__}"
            )
        return self.replay_buffer

    def _train_step(self, buffer: PrioritizedReplayBuffer, batch_size: int) -> float:
        batch = buffer.sample(batch_size, env=self._vec_normalize_env)
        target = self._target(batch)
        current = self.q_net(batch.observations).gather(1, batch.actions.long())
        losses = F.smooth_l1_loss(current, target, reduction="none")
        loss = (batch.weights * losses).mean()

        optimizer = self.policy.optimizer
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        th.nn.utils.clip_grad_norm_(self.policy.parameters(), self.max_grad_norm)
        optimizer.step()
        buffer.update_priorities(batch.keys, target - current)
        return loss.item()

    @th.no_grad()
    def _target(self, batch: PrioritizedReplayBufferSamples) -> th.Tensor:
        """Reward plus the discounted value of the next observation, shape (B, 1)."""
        value = self.q_net_target(batch.next_observations).amax(dim=1, keepdim=True)
        discounts = self.gamma if batch.discounts is None else batch.discounts
        target: th.Tensor = batch.rewards + (1 - batch.dones) * discounts * value
        return target
