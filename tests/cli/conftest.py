"""The command in this process, and artifacts and runs that several tests look at."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from edge.__main__ import main

OWN = ("--input", "8", "--classes", "3", "--batch", "4")
"""What goes with a model of ``own_models``."""


@dataclass(frozen=True)
class Outcome:
    """How one call of the command ended."""

    status: int
    out: str
    err: str

    @property
    def line(self) -> dict[str, Any]:
        """The one line of ``--json``; nothing else may be on stdout."""
        (line,) = self.out.splitlines()
        return dict(json.loads(line))

    @property
    def error(self) -> dict[str, str]:
        """The error of a failure; its message is also what people read, and never a traceback."""
        line = self.line
        assert line["ok"] is False
        assert set(line["error"]) == {"code", "message", "hint"}
        assert "Traceback" not in self.err
        return dict(line["error"])


Command = Callable[..., Outcome]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs ``apportion ARGUMENTS`` in this process."""

    def run(*arguments: str | Path) -> Outcome:
        capsys.readouterr()
        status = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Outcome(status, captured.out, captured.err)

    return run


@pytest.fixture(scope="session")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An exported artifact of ``own_models:small``; copy it before changing it."""
    folder = tmp_path_factory.mktemp("artifact") / "small"
    assert main(["export", "--model", "tests.cli.own_models:small", *OWN, "--out", str(folder)]) == 0
    return folder
