"""Every Python example of docs/sb3.md runs as it stands, and so do the example scripts."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("stable_baselines3")

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "sb3.md"
PAGE_EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
SCRIPTS = {"sb3_one_import.py": 520, "sb3_frame_stack.py": 520}  # and how many steps to try


def run(*command: str | Path, cwd: Path) -> str:
    one_thread = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "error", *command],
        cwd=cwd,
        env=one_thread,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("example", PAGE_EXAMPLES, ids=range(len(PAGE_EXAMPLES)))
def test_example_of_the_page_runs(example: str, tmp_path: Path) -> None:
    script = tmp_path / "example.py"
    script.write_text(example, encoding="utf-8")
    run(script, cwd=tmp_path)


@pytest.mark.parametrize("script", SCRIPTS)
def test_script_runs(script: str, tmp_path: Path) -> None:
    printed = run(ROOT / "examples" / script, str(SCRIPTS[script]), cwd=tmp_path)
    assert f"after {SCRIPTS[script]} steps" in printed
