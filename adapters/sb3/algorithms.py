"""SB3's off-policy algorithms on a prioritized buffer."""

from __future__ import annotations

from typing import Any

import torch as th
from stable_baselines3 import DDPG, DQN, SAC, TD3
from stable_baselines3.common.utils import polyak_update

from .learner import Learner, TrainCall, descend
from .losses import LossAndErrors, huber, squared
from .prioritized import PrioritizedReplayBufferSamples as Batch


class PrioritizedDQN(Learner, DQN):
    """SB3's `DQN` on a `PrioritizedReplayBuffer`; the constructor is DQN's."""

    def _optimizers(self) -> list[th.optim.Optimizer]:
        return [self.policy.optimizer]

    def _gradient_step(self, batch: Batch, call: TrainCall) -> th.Tensor:
        target = self._target(batch)
        current = self.q_net(batch.observations).gather(1, batch.actions.long())
        loss, td_errors = huber(current, target, batch.weights)
        call.note("loss", descend(self.policy.optimizer, loss, call.parameters, self.max_grad_norm))
        return td_errors

    @th.no_grad()
    def _target(self, batch: Batch) -> th.Tensor:
        values = self.q_net_target(batch.next_observations)
        return self._bootstrapped(batch, values.amax(dim=1, keepdim=True))


class DelayedActorLearner(Learner):
    """What TD3 and DDPG, its special case, have in common."""

    actor: Any
    actor_target: Any
    critic: Any
    critic_target: Any
    policy_delay: int
    target_policy_noise: float
    target_noise_clip: float

    def _optimizers(self) -> list[th.optim.Optimizer]:
        return [self.actor.optimizer, self.critic.optimizer]

    def _gradient_step(self, batch: Batch, call: TrainCall) -> th.Tensor:
        target = self._target(batch)
        values = self.critic(batch.observations, batch.actions)
        loss, td_errors = squared(values, target, batch.weights)
        call.note("critic_loss", descend(self.critic.optimizer, loss))
        if self._n_updates % self.policy_delay == 0:
            values = self.critic.q1_forward(batch.observations, self.actor(batch.observations))
            call.note("actor_loss", descend(self.actor.optimizer, -values.mean()))
            self._move_targets()
        return td_errors

    @th.no_grad()
    def _target(self, batch: Batch) -> th.Tensor:
        noise = th.empty_like(batch.actions).normal_(0, self.target_policy_noise)
        noise = noise.clamp(-self.target_noise_clip, self.target_noise_clip)
        actions = (self.actor_target(batch.next_observations) + noise).clamp(-1, 1)
        values = th.cat(self.critic_target(batch.next_observations, actions), dim=1)
        return self._bootstrapped(batch, values.amin(dim=1, keepdim=True))

    def _move_targets(self) -> None:
        for network, target in (
            (self.critic, self.critic_target),
            (self.actor, self.actor_target),
        ):
            polyak_update(network.parameters(), target.parameters(), self.tau)
        for statistics in ("critic_batch_norm_stats", "actor_batch_norm_stats"):
            polyak_update(getattr(self, statistics), getattr(self, f"{statistics}_target"), 1.0)


class PrioritizedTD3(DelayedActorLearner, TD3):
    """SB3's `TD3` on a `PrioritizedReplayBuffer`; the constructor is TD3's."""


class PrioritizedDDPG(DelayedActorLearner, DDPG):
    """SB3's `DDPG` on a `PrioritizedReplayBuffer`; the constructor is DDPG's."""


class SoftActorLearner(Learner):
    """What SAC and those that follow it have in common: an entropy that is rewarded."""

    actor: Any
    critic: Any
    critic_target: Any
    ent_coef_optimizer: Any  # None where the coefficient is not learned
    ent_coef_tensor: th.Tensor
    log_ent_coef: th.Tensor | None
    target_entropy: Any
    target_update_interval: int
    batch_norm_stats: list[th.Tensor]
    batch_norm_stats_target: list[th.Tensor]

    def _optimizers(self) -> list[th.optim.Optimizer]:
        optimizers = [self.actor.optimizer, self.critic.optimizer]
        return optimizers + [self.ent_coef_optimizer] * (self.ent_coef_optimizer is not None)

    def _gradient_step(self, batch: Batch, call: TrainCall) -> th.Tensor:
        if self.use_sde:
            self.actor.reset_noise()
        actions, log_prob = self._action_log_prob(batch.observations)
        ent_coef = self._entropy_coefficient(call)
        self._tune_entropy(log_prob, call)
        loss, td_errors = self._critic_loss(batch, ent_coef)
        call.note("critic_loss", descend(self.critic.optimizer, loss))
        actor_loss = (ent_coef * log_prob - self._values(batch.observations, actions)).mean()
        call.note("actor_loss", descend(self.actor.optimizer, actor_loss))
        if call.step % self.target_update_interval == 0:
            polyak_update(self.critic.parameters(), self.critic_target.parameters(), self.tau)
            polyak_update(self.batch_norm_stats, self.batch_norm_stats_target, 1.0)
        return td_errors

    def _action_log_prob(self, observations: Any) -> tuple[th.Tensor, th.Tensor]:
        """Actions of the policy, and the logarithms of their probabilities, (B, 1)."""
        actions, log_prob = self.actor.action_log_prob(observations)
        return actions, log_prob.reshape(-1, 1)

    def _entropy_coefficient(self, call: TrainCall) -> th.Tensor:
        if self.log_ent_coef is None:
            ent_coef = self.ent_coef_tensor
        else:
            ent_coef = self.log_ent_coef.detach().exp()
        call.note("ent_coef", ent_coef.item())
        return ent_coef

    def _tune_entropy(self, log_prob: th.Tensor, call: TrainCall) -> None:
        """A step of the coefficient, if it is learned, towards the target entropy."""
        if self.log_ent_coef is None:
            return
        loss = -(self.log_ent_coef * (log_prob + self.target_entropy).detach()).mean()
        call.note("ent_coef_loss", descend(self.ent_coef_optimizer, loss))

    def _critic_loss(self, batch: Batch, ent_coef: th.Tensor) -> LossAndErrors:
        raise NotImplementedError

    def _values(self, observations: Any, actions: th.Tensor) -> th.Tensor:
        """What the actor climbs, (B, 1): the least of the critics' values."""
        values: th.Tensor = th.cat(self.critic(observations, actions), dim=1)
        return values.min(dim=1, keepdim=True).values


class PrioritizedSAC(SoftActorLearner, SAC):
    """SB3's `SAC` on a `PrioritizedReplayBuffer`; the constructor is SAC's."""

    def _critic_loss(self, batch: Batch, ent_coef: th.Tensor) -> LossAndErrors:
        target = self._target(batch, ent_coef)
        values = self.critic(batch.observations, batch.actions)
        loss, td_errors = squared(values, target, batch.weights)
        return 0.5 * loss, td_errors

    @th.no_grad()
    def _target(self, batch: Batch, ent_coef: th.Tensor) -> th.Tensor:
        actions, log_prob = self._action_log_prob(batch.next_observations)
        values = th.cat(self.critic_target(batch.next_observations, actions), dim=1)
        value = values.amin(dim=1, keepdim=True) - ent_coef * log_prob
        return self._bootstrapped(batch, value)
