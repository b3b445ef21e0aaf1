"""What holds for every test, whichever environment it runs in."""

from __future__ import annotations

import os

from hypothesis import settings

# Before anything imports torch: tiny networks are faster, and repeatable, on one thread.
os.environ["OMP_NUM_THREADS"] = "1"

# The same examples on every run, and no verdict on how busy the machine is.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")
