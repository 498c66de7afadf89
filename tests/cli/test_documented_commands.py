"""Commands in README.md and docs/ work as they are written, or say why no test runs them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from docs.book import shell_blocks
from docs.book.pages import ROOT
from docs.book.shell_blocks import Block, blocks, problems, shape

TIMEOUT_S = 600
"""For a machine that does other work, too; none takes half a minute by itself."""
_ALL = {str(page.relative_to(ROOT)): shell_blocks.blocks_of(page) for page in shell_blocks.pages()}
PAGES = {page: found for page, found in _ALL.items() if any(block.mark == "run" for block in found)}


def test_every_shell_block_is_run_or_says_why_not() -> None:
    found = [
        problem
        for page in shell_blocks.pages()
        for problem in problems(str(page.relative_to(ROOT)), page.read_text(encoding="utf-8"))
    ]
    assert found == []


def test_commands_are_marked_at_all() -> None:
    run = [block for found in PAGES.values() for block in found if block.mark == "run"]
    assert len(run) >= 30
    assert any("apportion" in block.script for block in run if block.where.startswith("README.md"))


def test_console_blocks_run_what_follows_the_prompt_and_expect_the_rest() -> None:
    text = "<!-- run -->\n```console\n$ apportion costs \\\n>   --json\n12 bytes\n...\n$ ls\n```\n"
    (block,) = blocks("a.md", text)
    assert (block.script, block.shown) == ("apportion costs \\\n  --json\nls", ["12 bytes"])
    assert shape("12 bytes in  3.5 s") == shape("7 bytes in 10.25 s")
    assert shape("12 bytes") != shape("12 words")


def test_what_is_run_first_is_not_shown() -> None:
    (block,) = blocks("a.md", "<!-- run, first:\nmkdir a\ncd a\n-->\n```bash\nls a\n```\n")
    assert shell_blocks.commands_first(block) == "mkdir a\ncd a"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("<!-- run -->\n```bash\nls\n```\n", ""),
        ("<!-- run -->\n\n```bash\nls\n```\n", ""),
        ("<!-- file: a.py -->\n```python\n1\n```\n", ""),
        ("```python\n1\n```\n", ""),
        ("```text\napportion run\n```\n", ""),
        ("<!-- not run: needs a board; tests/cli/test_fsck.py does it -->\n```bash\nls\n```\n", ""),
        ("```bash\nls\n```\n", "a.md:1: is neither run nor says why not"),
        ("words\n\n```\napportion run run.toml\n```\n", "a.md:3: is neither run nor says why not"),
        ("<!-- run -->\nwords\n```bash\nls\n```\n", "is neither run nor says why not"),
        ("<!-- run -->\n```python\n1\n```\n", "is no shell block"),
        ("<!-- not run: no -->\n```bash\nls\n```\n", "does not say why"),
        ("<!-- not run: needs a board; tests/no.py -->\n```bash\nls\n```\n", "tests/no.py is not there"),
        ("<!-- not run: needs a board; tests/cli/test_fsck.py::test_no -->\n```bash\nls\n```\n", "has no test_no"),
        ("<!-- run, later: ls -->\n```bash\nls\n```\n", "'first: COMMANDS' expected"),
        ("words:\n\n    $ ls\n", "a.md:3: a command that is only indented"),
    ],
)
def test_marks_that_do_not_do_are_named(text: str, problem: str) -> None:
    found = problems("a.md", text)
    assert (found == []) if not problem else (len(found) == 1 and problem in found[0]), found


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_documented_commands_work(page: str, tmp_path: Path) -> None:
    folder = _scratch(tmp_path / "0")
    for number, block in enumerate(PAGES[page], start=1):
        if block.about == shell_blocks.NEW_FOLDER:
            folder = _scratch(tmp_path / str(number))
        if block.mark == "file":
            (folder / block.about).parent.mkdir(parents=True, exist_ok=True)
            (folder / block.about).write_text(block.body, encoding="utf-8")
        elif block.mark == "run":
            _check(block, folder)


def _scratch(folder: Path) -> Path:
    shutil.copytree(ROOT / "examples", folder / "examples")
    return folder


def _check(block: Block, folder: Path) -> None:
    if first := shell_blocks.commands_first(block):
        _output(block, first, folder)
    came = {shape(line) for line in _output(block, block.script, folder).splitlines()}
    for line in block.shown:
        assert shape(line) in came, f"{block.where} shows '{line}'; what came has no such line:\n" + "\n".join(
            sorted(came)
        )


def _output(block: Block, script: str, folder: Path) -> str:
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    environment |= {"APPORTION_ROOT_PASSPHRASE": "asked for at a terminal", "HOME": str(folder), "COLUMNS": "120"}
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, f"{block.where}\n{script}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    return done.stdout + done.stderr
