"""The Python of README.md, docs/api.md and docs/tasks.md works as it is written."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

import apportion

ROOT = Path(__file__).parents[2]
MOST_LINES = 15


def first_example(page: str) -> str:
    found = re.search(
        r"^```python\n(import apportion\n.*?)^```", (ROOT / page).read_text(encoding="utf-8"), re.M | re.S
    )
    assert found, f"{page} has no example that begins with import apportion"
    return found[1]


def test_example_is_short_and_the_same_on_both_pages() -> None:
    assert len(first_example("README.md").splitlines()) <= MOST_LINES
    assert first_example("README.md") == first_example("docs/api.md")


@pytest.mark.slow
def test_example_of_the_readme_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    torch.manual_seed(3)
    exec(compile(first_example("README.md"), "README.md", "exec"), names)
    history = names["history"]
    assert history.accuracy > 0.8
    assert all(torch.equal(value, names["net"].state_dict()[name]) for name, value in history.state_dict().items())


@pytest.mark.slow
def test_task_of_the_page_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(3)
    exec(compile(first_example("docs/tasks.md"), "docs/tasks.md", "exec"), {})
    assert "pinball" in capsys.readouterr().out


def test_documented_names_are_public() -> None:
    text = (ROOT / "docs" / "api.md").read_text(encoding="utf-8") + (ROOT / "README.md").read_text(encoding="utf-8")
    named = set(re.findall(r"\bapportion\.([A-Za-z_]\w*)\(", text))
    assert named
    assert named <= set(apportion.NAMES)
