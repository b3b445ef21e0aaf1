"""For Tianshou 2."""
