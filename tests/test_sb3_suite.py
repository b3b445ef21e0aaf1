"""SB3's own tests, with our classes in the place of theirs.

They come with SB3's source distribution, which is fetched from the package index once, with
`pytest -m upstream`, and kept in the user's cache.  Where it is, the default run has them too.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

pytest.importorskip("stable_baselines3")
pytest.importorskip("sb3_contrib")

VERSION = "2.9.2"
SHA256 = "8af267e9513343f481b3f0680b7740ad79a746873db24f18a9fb2edcbd9a2df7"
ARCHIVE = f"stable_baselines3-{VERSION}.tar.gz"
FETCH = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-build-isolation"]
SECONDS, FETCH_SECONDS = 900, 120

FILES = [
    "buffers",
    "deterministic",
    "dict_env",
    "n_step_replay",
    "run",
    "save_load",
    "vec_normalize",
]
# A model of 2 GB is saved and loaded: minutes, and nothing of it is a buffer.
LARGE = ["tests/test_save_load.py::test_save_load_large_model"]
# What is another with our algorithms, on purpose: their buffer is a prioritized one for every
# horizon and space, n_steps are never ignored, and other classes (HER's is one) are refused.
DIFFERENT = ["tests/test_n_step_replay.py", "tests/test_vec_normalize.py::test_her_normalization"]


def cache() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "kary-replay"


@pytest.fixture(scope="module")
def suite(request: pytest.FixtureRequest) -> Path:
    """The folder of SB3's tests, unpacked."""
    if importlib.metadata.version("stable-baselines3") != VERSION:
        pytest.skip(f"these are the tests of stable-baselines3 {VERSION}")
    archive = cache() / ARCHIVE
    if not archive.exists():
        if "upstream" not in request.config.option.markexpr:
            pytest.skip(f"{ARCHIVE} is not in {cache()}: `pytest -m upstream` fetches it")
        fetch(archive.parent)
    unpacked = archive.parent / f"stable_baselines3-{VERSION}"
    if not unpacked.exists():
        unpack(archive)
    return unpacked


def fetch(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    package = ["--no-binary", ":all:", "--dest", str(directory), f"stable-baselines3=={VERSION}"]
    try:
        subprocess.run(
            [*FETCH, *package], capture_output=True, text=True, check=True, timeout=FETCH_SECONDS
        )
    except subprocess.CalledProcessError as error:
        reason = (error.stderr.strip() or "no reason given").splitlines()[-1]
        pytest.skip(f"{ARCHIVE} could not be fetched from the package index: {reason}")
    except subprocess.TimeoutExpired:
        pytest.skip(f"{ARCHIVE} did not come from the package index in {FETCH_SECONDS} s")


def unpack(archive: Path) -> None:
    """Whole or not at all, and only if it is what was pinned."""
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    assert digest == SHA256, f"{archive} has the SHA-256 {digest}; delete it to fetch it again"
    scratch = archive.parent / f"unpacking-{os.getpid()}"
    with tarfile.open(archive) as tar:
        tar.extractall(scratch, filter="data")
    (scratch / f"stable_baselines3-{VERSION}").rename(
        archive.parent / f"stable_baselines3-{VERSION}"
    )
    scratch.rmdir()


@pytest.mark.upstream
@pytest.mark.parametrize(
    ("swap", "left_out", "least"),
    [("buffers", LARGE, 80), ("algorithms", LARGE + DIFFERENT, 80)],
    ids=["buffers", "algorithms"],
)
def test_sb3s_own_tests_pass(
    suite: Path, tmp_path: Path, swap: str, left_out: list[str], least: int
) -> None:
    """At least so many of our buffers are made in them."""
    command = [sys.executable, "-P", "-m", "pytest", "-p", "sb3_swap", "-p", "no:cacheprovider"]
    command += ["-q", "-rfE", f"--rootdir={suite}", f"--basetemp={tmp_path / 'pytest'}"]
    command += [option for name in left_out for option in ("--deselect", name)]
    command += [str(suite / "tests" / f"test_{name}.py") for name in FILES]
    variables = {"SB3_SWAP": swap, "PYTHONPATH": str(Path(__file__).parent), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command,
        cwd=tmp_path,  # they write where they run
        env=os.environ | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-20_000:]
    made = re.search(r"buffers of ours: (\d+)", done.stdout)
    assert made is not None
    assert int(made[1]) >= least
