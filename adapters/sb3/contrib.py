"""The off-policy algorithms of sb3-contrib on a prioritized buffer."""

from __future__ import annotations

from typing import Any

import torch as th
from sb3_contrib import QRDQN, TQC, CrossQ

from .algorithms import SoftActorLearner
from .learner import Learner, TrainCall, descend
from .losses import LossAndErrors, quantile_huber, squared
from .prioritized import PrioritizedReplayBufferSamples as Batch


class PrioritizedQRDQN(Learner, QRDQN):
    """sb3-contrib's `QRDQN` on a `PrioritizedReplayBuffer`; the constructor is QRDQN's."""

    def _optimizers(self) -> list[th.optim.Optimizer]:
        return [self.policy.optimizer]

    def _gradient_step(self, batch: Batch, call: TrainCall) -> th.Tensor:
        target = self._target(batch)
        current = _of_actions(self.quantile_net(batch.observations), batch.actions.long())
        loss, td_errors = quantile_huber(current, target, batch.weights, summed=True)
        call.note("loss", descend(self.policy.optimizer, loss, call.parameters, self.max_grad_norm))
        return td_errors

    @th.no_grad()
    def _target(self, batch: Batch) -> th.Tensor:
        quantiles = self.quantile_net_target(batch.next_observations)
        greedy = quantiles.mean(dim=1).argmax(dim=1, keepdim=True)
        return self._bootstrapped(batch, _of_actions(quantiles, greedy))


class PrioritizedTQC(SoftActorLearner, TQC):
    """sb3-contrib's `TQC` on a `PrioritizedReplayBuffer`; the constructor is TQC's."""

    def _critic_loss(self, batch: Batch, ent_coef: th.Tensor) -> LossAndErrors:
        target = self._target(batch, ent_coef)
        current = self.critic(batch.observations, batch.actions)  # (B, critics, quantiles)
        return quantile_huber(current, target.unsqueeze(1), batch.weights, summed=False)

    @th.no_grad()
    def _target(self, batch: Batch, ent_coef: th.Tensor) -> th.Tensor:
        """The quantiles of all critics together, without the largest."""
        actions, log_prob = self._action_log_prob(batch.next_observations)
        quantiles = self.critic_target(batch.next_observations, actions).flatten(start_dim=1)
        dropped = self.top_quantiles_to_drop_per_net * self.critic.n_critics
        kept = quantiles.sort(dim=1).values[:, : quantiles.shape[1] - dropped]
        return self._bootstrapped(batch, kept - ent_coef * log_prob)

    def _values(self, observations: Any, actions: th.Tensor) -> th.Tensor:
        quantiles: th.Tensor = self.critic(observations, actions)
        return quantiles.mean(dim=2).mean(dim=1, keepdim=True)


class PrioritizedCrossQ(SoftActorLearner, CrossQ):
    """sb3-contrib's `CrossQ` on a `PrioritizedReplayBuffer`; the constructor is CrossQ's.

    Its critic has no target network: batch normalization sees both ends of a step together.
    """

    def _gradient_step(self, batch: Batch, call: TrainCall) -> th.Tensor:
        if self.use_sde:
            self.actor.reset_noise()
        ent_coef = self._entropy_coefficient(call)
        loss, td_errors = self._critic_loss(batch, ent_coef)
        call.note("critic_loss", descend(self.critic.optimizer, loss))
        if self._n_updates % self.policy_delay == 0:
            self._improve_actor(batch, ent_coef, call)
        return td_errors

    def _critic_loss(self, batch: Batch, ent_coef: th.Tensor) -> LossAndErrors:
        with th.no_grad():
            self.actor.set_bn_training_mode(False)
            next_actions, log_prob = self._action_log_prob(batch.next_observations)
        ends: Any = (batch.observations, batch.next_observations)  # arrays: CrossQ knows no Dict
        observations = th.cat(ends)
        self.critic.set_bn_training_mode(True)
        values = th.cat(self.critic(observations, th.cat([batch.actions, next_actions])), dim=1)
        self.critic.set_bn_training_mode(False)
        current, following = values.chunk(2)  # (B, critics) each
        value = following.detach().amin(dim=1, keepdim=True) - ent_coef * log_prob
        target = self._bootstrapped(batch, value)
        loss, td_errors = squared(current.chunk(current.shape[1], dim=1), target, batch.weights)
        return 0.5 * loss, td_errors

    def _improve_actor(self, batch: Batch, ent_coef: th.Tensor, call: TrainCall) -> None:
        self.actor.set_bn_training_mode(True)
        actions, log_prob = self._action_log_prob(batch.observations)
        self.actor.set_bn_training_mode(False)
        self._tune_entropy(log_prob, call)
        self.critic.set_bn_training_mode(False)
        loss = (ent_coef * log_prob - self._values(batch.observations, actions)).mean()
        call.note("actor_loss", descend(self.actor.optimizer, loss))


def _of_actions(quantiles: th.Tensor, actions: th.Tensor) -> th.Tensor:
    """Those of (B, n, actions) that belong to the actions, (B, 1): shape (B, n)."""
    index = actions.unsqueeze(-1).expand(-1, quantiles.shape[1], 1)
    return quantiles.gather(2, index).squeeze(2)
