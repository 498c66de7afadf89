"""The shell blocks of the pages: each is run by a test, or says why not.

Marks stand in a comment right above a block, which no reader sees:

- ``<!-- run -->``: it is run. All such blocks of a page run one after the other in one scratch folder, which has a copy
  of ``examples/``; each has a shell of its own. Of a ``console`` block the lines after ``$`` are run, and what is shown
  below them has to come, up to its numbers.
- ``<!-- run, first: COMMANDS -->``: the same, after commands that the page does not show.
- ``<!-- run, in a new folder -->``: the same, in a scratch folder of its own, which the blocks below it share.
- ``<!-- not run: WHY -->``: it is not. Tests named there (``tests/cli/test_fsck.py``) have to exist.
- ``<!-- file: NAME -->``: a block of any language, written to that file before the blocks below it run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from docs.book.pages import ROOT

_FENCE = re.compile(r"^(?P<indent> *)```(?P<kind>[^\n`]*)\n(?P<body>.*?)^(?P=indent)```\s*$", re.DOTALL | re.MULTILINE)
_MARK = re.compile(r"<!-- (run|not run|file)\b((?:(?!-->).)*)-->\s*\Z", re.DOTALL)
_SHELLS = ("bash", "sh", "shell", "console")
_WORDS = r"(?:apportion|make|pip|sudo|docker|helm|npm|npx|psql|adb|ssh|python3?|\.venv/bin/\w+|mosquitto) "
_COMMAND = re.compile(rf"^\s*(?:\$ )?{_WORDS}", re.MULTILINE)
_INDENTED = re.compile(rf"^ {{4}}(?:\$ .*|{_WORDS}.*)$", re.MULTILINE)
_TEST = re.compile(r"tests/[\w/]+\.py(?:::\w+)?")
_LEAST_REASON = 12
NEW_FOLDER = "in a new folder"
"""Said after ``run``."""


@dataclass(frozen=True)
class Block:
    """A marked block.

    Attributes:
        where: its page and line.
        mark: ``run``, ``not run``, ``file``, or empty.
        about: what the mark says besides: commands to run first, a reason, a file's name.
        body: its text, without the page's indentation.
    """

    where: str
    mark: str
    about: str
    kind: str
    body: str

    @property
    def is_shell(self) -> bool:
        """Whether a reader types it into a shell."""
        return self.kind in _SHELLS or (not self.kind and bool(_COMMAND.search(self.body)))

    @property
    def script(self) -> str:
        """What a shell is to run; of a ``console`` block the lines after the prompt."""
        if self.kind != "console":
            return self.body
        return "\n".join(line[2:] for line in self.body.splitlines() if line.startswith(("$ ", "> ")))

    @property
    def shown(self) -> list[str]:
        """The lines of output that a ``console`` block shows."""
        if self.kind != "console":
            return []
        lines = (line for line in self.body.splitlines() if not line.startswith(("$ ", "> ")))
        return [line for line in lines if line.strip() and line.strip() != "..."]


def pages() -> list[Path]:
    """The pages with commands."""
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(where: str, text: str) -> Iterator[Block]:
    """Every fenced block of ``text``, marked or not."""
    for fence in _FENCE.finditer(text):
        mark = _MARK.search(text, 0, fence.start())
        line = text.count("\n", 0, fence.start()) + 1
        indent = len(fence["indent"])
        body = "".join(part[indent:] if indent else part for part in fence["body"].splitlines(keepends=True))
        name, about = (mark[1], mark[2].strip().lstrip(",:").strip()) if mark else ("", "")
        yield Block(f"{where}:{line}", name, about, fence["kind"].split(" ")[0], body)


def blocks_of(page: Path) -> list[Block]:
    """Every fenced block of ``page``."""
    return list(blocks(str(page.relative_to(ROOT)), page.read_text(encoding="utf-8")))


def commands_first(block: Block) -> str:
    """Commands that go before a block that is run."""
    _, is_there, commands = block.about.partition("first:")
    return commands.strip() if is_there else ""


def problems(where: str, text: str) -> list[str]:
    """What the marks of a page lack."""
    found = []
    for block in blocks(where, text):
        if block.is_shell and block.mark not in ("run", "not run"):
            found.append(
                f"{block.where}: is neither run nor says why not; put <!-- run --> or <!-- not run: ... --> above"
            )
        elif block.mark in ("run", "not run") and not block.is_shell:
            found.append(f"{block.where}: is marked '{block.mark}' and is no shell block; name its language, bash")
        if block.mark == "not run" and len(_TEST.sub("", block.about)) < _LEAST_REASON:
            found.append(f"{block.where}: does not say why it is not run")
        if block.mark == "not run":
            found += [f"{block.where}: {problem}" for name in _TEST.findall(block.about) if (problem := _missing(name))]
        if block.mark == "run" and block.about not in ("", NEW_FOLDER) and not commands_first(block):
            found.append(f"{block.where}: '{block.about}' after run; 'first: COMMANDS' expected")
        if block.mark == "file" and not re.fullmatch(r"[\w./-]+", block.about):
            found.append(f"{block.where}: '{block.about}' is no name of a file")
    plain = _FENCE.sub(lambda fence: "\n" * fence[0].count("\n"), text)
    for command in _INDENTED.finditer(plain):
        line = plain.count("\n", 0, command.start()) + 1
        found.append(f"{where}:{line}: a command that is only indented; put it into a block with its language")
    return found


def _missing(name: str) -> str:
    path, _, function = name.partition("::")
    if not (ROOT / path).is_file():
        return f"{path} is not there"
    if function and not re.search(
        rf"^(async )?def {function}\b", (ROOT / path).read_text(encoding="utf-8"), re.MULTILINE
    ):
        return f"{path} has no {function}"
    return ""


def shape(line: str) -> str:
    """``line`` without what differs from one time to the next: numbers, digests, spaces."""
    line = re.sub(r"\b[0-9a-f]{12,}\b", "#", line)
    return " ".join(re.sub(r"[-+]?\d[\d.,:TZ+e-]*", "#", line).split())
