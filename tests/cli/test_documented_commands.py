"""Commands in README.md and docs/ that are marked ``<!-- run -->`` work as they are written."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 120
MARK = "<!-- run -->"
_FENCE = re.compile(r"\s*```(bash|console)\n(.*?)^```", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A marked block: where it is, and what a shell is to run."""

    where: str
    script: str


def pages() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: Path, text: str) -> Iterator[Block]:
    """The marked blocks of ``text``; of a console block the lines after ``$``, without what was answered."""
    for mark in re.finditer(rf"^{MARK}$", text, re.MULTILINE):
        where = f"{page.relative_to(ROOT)}:{text.count(chr(10), 0, mark.start()) + 1}"
        fence = _FENCE.match(text, mark.end())
        if fence is None:
            raise ValueError(f"{where}: {MARK} stands before no ```bash or ```console block")
        kind, body = fence.groups()
        if kind == "console":
            body = "\n".join(line[2:] for line in body.splitlines() if line.startswith(("$ ", "> ")))
        yield Block(where, body)


BLOCKS = [block for page in pages() if page.is_file() for block in blocks(page, page.read_text(encoding="utf-8"))]


def test_some_commands_are_marked() -> None:
    assert any(block.where.startswith("README.md") for block in BLOCKS), f"no block of README.md is marked {MARK}"
    assert all("apportion" in block.script for block in BLOCKS)


def test_console_blocks_run_what_follows_the_prompt() -> None:
    text = f"{MARK}\n```console\n$ apportion costs \\\n>   --json\n{{}}\n$ ls\n```\n"
    assert [b.script for b in blocks(ROOT / "README.md", text)] == ["apportion costs \\\n  --json\nls"]


def test_mark_without_a_block_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"README.md:3: <!-- run --> stands before no"):
        list(blocks(ROOT / "README.md", f"# A\n\n{MARK}\nwords\n```bash\nls\n```\n"))


@pytest.mark.slow
@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.where)
def test_documented_commands_work(block: Block, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    environment["APPORTION_ROOT_PASSPHRASE"] = "asked for at a terminal"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", block.script],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, f"{block.where}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
