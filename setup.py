"""Builds the compiled modules; everything else is static in pyproject.toml."""

import os
from glob import glob

import numpy as np
from setuptools import Extension, setup

DEBUG = os.environ.get("KARY_REPLAY_DEBUG") == "1"
TSAN = os.environ.get("KARY_REPLAY_TSAN") == "1"
# -O3 unrolls the loops over a family; no -ffast-math (it may reorder the sums and drop
# NaN checks) and no -march=native (one binary serves every machine of an architecture).
FLAGS = ["/O2"] if os.name == "nt" else ["-O3", "-g" if DEBUG or TSAN else "-g0", "-pthread"]
# For tests/tsan.sh. ThreadSanitizer knows no fences; what lies between them is atomic there.
SANITIZE = ["-fsanitize=thread", "-Wno-tsan"] if TSAN else []

setup(
    ext_modules=[
        Extension(
            f"kary_replay.{name}",
            [f"kary_replay/{name}.pyx"],
            depends=glob("kary_replay/*.h") + glob("kary_replay/*.pxd"),
            include_dirs=["kary_replay", np.get_include()],
            extra_compile_args=FLAGS + SANITIZE,
            extra_link_args=SANITIZE if os.name == "nt" else ["-pthread", *SANITIZE],
            define_macros=[("NPY_NO_DEPRECATED_API", "NPY_1_7_API_VERSION")],
        )
        for name in ("_lock", "_sampling", "_sum_tree", "_parts", "_ring", "_windows")
    ],
    options={
        "build_ext": {
            "cython_directives": {
                "language_level": 3,
                "boundscheck": DEBUG,
                "initializedcheck": DEBUG,
                "wraparound": False,
                "cdivision": not DEBUG,
            },
            "cython_c_in_temp": True,  # no generated C among the sources
            "force": True,  # a debug build must never be taken for a fresh one, nor the reverse
        }
    },
)
