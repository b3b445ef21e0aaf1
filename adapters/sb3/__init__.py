"""For Stable-Baselines3."""
