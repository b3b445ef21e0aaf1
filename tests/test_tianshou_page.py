"""Every Python example of docs/tianshou.md runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("tianshou")

PAGE = Path(__file__).parent.parent / "docs" / "tianshou.md"
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize("example", EXAMPLES, ids=range(len(EXAMPLES)))
def test_example_runs(example: str) -> None:
    if "highlevel.experiment" in example:
        pytest.importorskip("rliable", reason="the builders need tianshou[eval]")
    exec(compile(example, str(PAGE), "exec"), {"__name__": "example"})
