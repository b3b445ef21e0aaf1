"""Algorithms of Tianshou whose priorities or weights go wrong, put right.

The others need nothing: C51, Rainbow, QRDQN, IQN, FQF, DDPG, DiscreteCQL, and DQN without
`huber_loss_delta`.  Those that have no TD errors at all (CQL, BCQ, DiscreteBCQ, DiscreteCRR,
imitation) a prioritized buffer refuses at their first update.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from tianshou.algorithm.algorithm_base import Algorithm
from tianshou.algorithm.imitation.td3_bc import TD3BC
from tianshou.algorithm.modelfree.bdqn import BDQN
from tianshou.algorithm.modelfree.ddpg import ActorCriticOffPolicyAlgorithm
from tianshou.algorithm.modelfree.discrete_sac import DiscreteSAC
from tianshou.algorithm.modelfree.dqn import DQN
from tianshou.algorithm.modelfree.redq import REDQ
from tianshou.algorithm.modelfree.reinforce import SimpleLossTrainingStats
from tianshou.algorithm.modelfree.sac import SAC
from tianshou.algorithm.modelfree.td3 import TD3
from tianshou.algorithm.multiagent.marl import MultiAgentOffPolicyAlgorithm
from tianshou.data import to_torch, to_torch_as


class AbsoluteTDErrors:
    """In front of TD3, TD3BC or SAC: errors of two critics cannot cancel in the priority.

    It is the mean of the absolute errors, not the absolute value of the mean.
    """

    @staticmethod
    def _minimize_critic_squared_loss(
        batch: Any, critic: torch.nn.Module, optimizer: Algorithm.Optimizer
    ) -> tuple[torch.Tensor, torch.Tensor]:
        td_error, loss = ActorCriticOffPolicyAlgorithm._minimize_critic_squared_loss(
            batch, critic, optimizer
        )
        return td_error.abs(), loss


class PrioritizedTD3(AbsoluteTDErrors, TD3):
    """TD3, whose priorities are the mean of the absolute errors of both critics."""


class PrioritizedTD3BC(AbsoluteTDErrors, TD3BC):  # type: ignore[misc]  # Tianshou's own bases
    """TD3+BC, whose priorities are the mean of the absolute errors of both critics."""


class PrioritizedSAC(AbsoluteTDErrors, SAC[Any]):
    """SAC, whose priorities are the mean of the absolute errors of both critics."""


class ReportsErrors:
    """In front of an algorithm: the priorities are those of `td_errors`, taken before its update.

    That costs one more forward pass of the critics.
    """

    def td_errors(self, batch: Any) -> torch.Tensor:
        """One number >= 0 for each row, shape (B,)."""
        raise NotImplementedError

    def _update_with_batch(self, batch: Any) -> Any:
        with torch.no_grad():
            td_errors = self.td_errors(batch)
        stats = super()._update_with_batch(batch)  # type: ignore[misc]
        batch.weight = td_errors
        return stats


class PrioritizedDiscreteSAC(ReportsErrors, DiscreteSAC):
    """DiscreteSAC, whose priorities are the mean of the absolute errors of both critics."""

    def td_errors(self, batch: Any) -> torch.Tensor:
        returns = batch.returns.flatten()
        act = to_torch(batch.act[:, None], device=returns.device, dtype=torch.long)
        errors = [
            critic(batch.obs).gather(1, act).flatten() - returns
            for critic in (self.critic, self.critic2)
        ]
        return torch.stack(errors).abs().mean(0)


class PrioritizedREDQ(ReportsErrors, REDQ):
    """REDQ, whose priorities are the mean of the absolute errors of its critics."""

    def td_errors(self, batch: Any) -> torch.Tensor:
        values: torch.Tensor = self.critic(batch.obs, batch.act).flatten(1)
        errors: torch.Tensor = values - batch.returns.flatten()
        return errors.abs().mean(0)


class PrioritizedBDQN(ReportsErrors, BDQN):
    """BDQN, whose priorities are the sum of the absolute errors of its branches."""

    def td_errors(self, batch: Any) -> torch.Tensor:
        errors: torch.Tensor = batch.returns - self.policy(batch).logits
        act = to_torch(batch.act, dtype=torch.long, device=errors.device)
        return errors.gather(-1, act.unsqueeze(-1)).squeeze(-1).abs().sum(-1)


class PrioritizedDQN(DQN[Any]):
    """DQN, whose loss is weighted with `huber_loss_delta` too."""

    def _update_with_batch(self, batch: Any) -> SimpleLossTrainingStats:
        if self.huber_loss_delta is None:
            return super()._update_with_batch(batch)
        self._periodically_update_lagged_network_weights()
        weights = batch.pop("weight", 1.0)
        logits = self.policy(batch).logits
        values = logits[np.arange(len(logits)), batch.act]
        returns = to_torch_as(batch.returns.flatten(), values)
        losses = torch.nn.functional.huber_loss(
            values, returns, delta=self.huber_loss_delta, reduction="none"
        )
        loss = (losses * weights).mean()
        batch.weight = (returns - values).detach()
        self.optim.step(loss)
        return SimpleLossTrainingStats(loss=loss.item())


class PrioritizedMultiAgentOffPolicyAlgorithm(MultiAgentOffPolicyAlgorithm):
    """Independent off-policy agents, whose TD errors reach the buffer, each for its own rows."""

    def _preprocess_batch(self, batch: Any, buffer: Any, indices: npt.NDArray[Any]) -> Any:
        agents = batch.obs.agent_id
        prepared: Any = super()._preprocess_batch(batch, buffer, indices)
        self._rows = {agent: indices[agents == agent] for agent in prepared.get_keys()}
        return prepared

    def _postprocess_batch(
        self,
        batch: Any,
        buffer: Any,
        indices: npt.NDArray[Any],  # noqa: ARG002 (each agent has its own)
    ) -> None:
        for agent, rows in self._rows.items():
            if len(rows):
                self.get_algorithm(agent)._postprocess_batch(batch[agent], buffer, rows)
