"""Settings of DQN in SB3: those that are known to solve these environments."""

from __future__ import annotations

from typing import Any

SETTINGS: dict[str, dict[str, Any]] = {
    "CartPole-v1": {
        "learning_rate": 2.3e-3,
        "buffer_size": 100_000,
        "learning_starts": 1_000,
        "batch_size": 64,
        "target_update_interval": 10,
        "train_freq": 256,
        "gradient_steps": 128,
        "exploration_fraction": 0.16,
        "exploration_final_eps": 0.04,
        "policy_kwargs": {"net_arch": [256, 256]},
    },
    "LunarLander-v3": {
        "learning_rate": 6.3e-4,
        "buffer_size": 50_000,
        "learning_starts": 1_000,
        "batch_size": 128,
        "target_update_interval": 250,
        "train_freq": 4,
        "gradient_steps": 4,
        "exploration_fraction": 0.12,
        "exploration_final_eps": 0.1,
        "policy_kwargs": {"net_arch": [256, 256]},
    },
}
