"""What `import kary_replay` loads, and what it says when there is nothing to load."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.metadata import requires
from pathlib import Path

import numpy as np
import pytest

import kary_replay

PACKAGE = Path(kary_replay.__file__).parent
LIBRARIES = Path(np.__file__).parents[1]

LIST_WHAT_IMPORT_LOADS = """
import sys
before = set(sys.modules)
import kary_replay
names = {name.partition(".")[0] for name in set(sys.modules) - before}
print(*(names - sys.stdlib_module_names))
"""


def python(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """A fresh interpreter; the second entry of its path, behind `cwd`, holds NumPy."""
    environment = os.environ | {"PYTHONPATH": str(LIBRARIES)}
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )


@pytest.fixture
def package(tmp_path):
    """A copy of the package, to be broken."""
    copy = tmp_path / "kary_replay"
    shutil.copytree(PACKAGE, copy)
    return copy


def error_of_import(package: Path) -> str:
    # Without site (-S), or an editable install would find what the copy lacks.
    run = python("-S", "-c", "import kary_replay", cwd=package.parent)
    return run.stderr.rstrip().rpartition("\n")[2]


def test_import_loads_numpy_and_nothing_heavier(tmp_path):
    run = python("-c", LIST_WHAT_IMPORT_LOADS, cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    # Cython registers modules for what compiled modules share; no file belongs to them.
    loaded = {name for name in run.stdout.split() if not name.startswith(("_cython", "cython_"))}
    assert loaded == {"kary_replay", "numpy"}


def test_the_core_requires_numpy_alone():
    needed = [line for line in requires("kary-replay") or [] if "extra ==" not in line]
    assert [line.rstrip("<>=.0123456789") for line in needed] == ["numpy"]


def test_the_copy_of_the_package_is_importable(package):
    assert error_of_import(package) == ""


@pytest.mark.parametrize("name", ["_sum_tree", "_ring"])
def test_without_a_compiled_module_import_says_what_to_do(package, name):
    for compiled in (*package.glob(f"{name}.*.so"), *package.glob(f"{name}.*.pyd")):
        compiled.unlink()
    assert error_of_import(package) == (
        f"ImportError: kary_replay.{name} is not compiled for this Python in {package}: "
        "run `pip install kary-replay`, or `pip install -e .` in a checkout"
    )


def test_another_missing_module_is_not_taken_for_a_compiled_one(package):
    (package / "sampler.py").write_text("import no_such_module")
    assert error_of_import(package) == "ModuleNotFoundError: No module named 'no_such_module'"
