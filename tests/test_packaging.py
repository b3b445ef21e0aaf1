"""What the sdist and the wheel hold, and that every way of installing them works.

Nothing is downloaded: the package is installed into environments that see the libraries of the
one that runs the tests.  Sources are copies, and gone before what was built from them is used.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import numpy as np
import pytest

from kary_replay import ReplayBuffer

ROOT = Path(__file__).parents[1]
COMPILED = ("_lock", "_parts", "_ring", "_sampling", "_sum_tree", "_windows")

SMOKE = """
import numpy as np
import kary_replay.adapters.sb3, kary_replay.adapters.tianshou
from kary_replay import PrioritizedReplayBuffer, SumTree

tree = SumTree(5, fanout=2)
tree.update([0, 4], [1.0, 3.0])
assert tree.find([0.5, 2.5]).tolist() == [0, 4]

buffer = PrioritizedReplayBuffer(4, {"obs": ((2,), np.float32)}, seed=0)
keys = buffer.add(obs=np.ones((3, 2)))
assert buffer.update_priorities(keys, [1.0, 2.0, 3.0]) == 3
assert buffer.sample(8)["obs"].shape == (8, 2)

print(kary_replay.__file__, kary_replay.adapters.__file__, sep="\\n")
"""


def run(*command: str | Path, cwd: Path) -> str:
    """What a command that must succeed prints."""
    result = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


class Environment:
    """A fresh virtual environment that sees the libraries of this one."""

    def __init__(self, path: Path) -> None:
        venv.create(path, symlinks=os.name != "nt")
        layout = {"base": str(path), "platbase": str(path)}
        self.path = path
        self.python = Path(sysconfig.get_path("scripts", "venv", layout), "python")
        # Behind the environment's own packages, and the path files there are not read: a
        # kary_replay of this environment cannot be taken for the one installed here.
        seen = "\n".join(entry for entry in sys.path if entry.endswith("site-packages"))
        Path(sysconfig.get_path("purelib", "venv", layout), "seen.pth").write_text(seen)

    def install(self, *what: str | Path) -> None:
        options = ("--no-deps", "--no-build-isolation", "--ignore-installed", "--no-index")
        pip = (sys.executable, "-m", "pip", "--python", self.python, "install")
        run(*pip, *options, *what, cwd=self.path)

    def files_of_smoke_run(self) -> list[Path]:
        """Where a program elsewhere found the package and its adapters."""
        elsewhere = self.path / "elsewhere"
        elsewhere.mkdir()
        return [Path(line) for line in run(self.python, "-c", SMOKE, cwd=elsewhere).split()]


def copy_of_sources(path: Path) -> Path:
    """To build from; where the tools for that are not installed, the test is skipped."""
    for tool in ("build", "Cython", "setuptools"):
        pytest.importorskip(tool, reason=f"building needs {tool}, of the extra dev")
    built = shutil.ignore_patterns(".*", "build", "*.c", "*.egg-info", "*.so", "__pycache__")
    return Path(shutil.copytree(ROOT, path, ignore=built))


@pytest.fixture(scope="module")
def sdist(tmp_path_factory):
    sources = copy_of_sources(tmp_path_factory.mktemp("sources") / "kary-replay")
    dist = tmp_path_factory.mktemp("sdist")
    build = (sys.executable, "-m", "build", "--no-isolation", "--sdist", "--outdir", dist)
    run(*build, cwd=sources)
    shutil.rmtree(sources)
    return next(dist.iterdir())


@pytest.fixture(scope="module")
def wheel(sdist, tmp_path_factory):
    """Built as pip does where it is given the sdist: from nothing but what that holds."""
    dist = tmp_path_factory.mktemp("wheel")
    pip = (sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index")
    run(*pip, sdist, cwd=dist)
    return next(dist.glob("*.whl"))


def test_the_sdist_holds_what_building_and_testing_need(sdist):
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    patterns = ("kary_replay/*.p*", "kary_replay/*.h", "adapters/**/*.py", "tests/**/*.py")
    sources = {path.relative_to(ROOT).as_posix() for each in patterns for path in ROOT.glob(each)}
    top = {"LICENSE", "Makefile", "README.md", "constraints.txt", "pyproject.toml", "setup.py"}
    assert {"kary_replay/_sum_tree.pyx", "tests/test_packaging.py"} <= sources
    assert sources | top <= names
    assert not [name for name in names if name.endswith((".c", ".so", ".pyd"))]


def test_the_wheel_holds_the_package_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    sources = [path for path in ROOT.glob("kary_replay/*.py*") if path.suffix != ".pyx"]
    expected = {f"kary_replay/{path.name}" for path in sources if path.suffix != ".pxd"}
    expected |= {f"kary_replay/{path.relative_to(ROOT)}" for path in ROOT.glob("adapters/**/*.py")}
    expected |= {f"kary_replay/{name}{sysconfig.get_config_var('EXT_SUFFIX')}" for name in COMPILED}
    expected.add("kary_replay/py.typed")
    assert {"kary_replay/_ring.pyi", "kary_replay/adapters/sb3/__init__.py"} <= expected
    assert names == expected


def test_the_wheel_of_the_sdist_works_without_its_sources(wheel, tmp_path):
    environment = Environment(tmp_path / "environment")
    environment.install(wheel)
    package, adapters = environment.files_of_smoke_run()
    assert environment.path in package.parents
    assert adapters == package.parent / "adapters" / "__init__.py"


def test_an_editable_install_works_on_the_sources(tmp_path):
    sources = copy_of_sources(tmp_path / "kary-replay")
    environment = Environment(tmp_path / "environment")
    environment.install("--editable", sources)
    assert environment.files_of_smoke_run() == [
        sources / "kary_replay" / "__init__.py",
        sources / "adapters" / "__init__.py",
    ]


@pytest.mark.skipif(os.environ.get("KARY_REPLAY_DEBUG") != "1", reason="of a debug build")
def test_a_debug_build_checks_bounds():
    buffer = ReplayBuffer(4, {"reward": ((), np.float32)})
    buffer.add(reward=1.0)
    columns, keys, _ = buffer._gather.read(np.array([0]))
    with pytest.raises(IndexError, match="Out of bounds"):
        buffer._gather.again(columns, keys, np.array([0]), np.array([1]))
