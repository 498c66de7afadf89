"""``apportion watch`` serves the run that it is given, and says where and with which token."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from tests.cli.conftest import Command
from tests.coordinator.history.small_ledger import small_ledger


@pytest.mark.slow
def test_address_and_token_are_printed_and_the_page_answers(tmp_path: Path) -> None:
    small_ledger(tmp_path / "ledger.sqlite").close()
    words = [sys.executable, "-m", "edge", "watch", str(tmp_path)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        told = [process.stdout.readline() for _ in range(3)]
        address, token = told[0].split()[1], told[1].split()[1]
        assert told[2].strip().endswith(f"{address}/#token={token}")
        with urllib.request.urlopen(f"{address}/api/state", timeout=10) as answer:
            assert json.load(answer)["run"]["name"] == "small"
        asked = urllib.request.Request(
            f"{address}/api/requests/pause", method="POST", headers={"Authorization": f"Bearer {token}"}
        )
        with urllib.request.urlopen(asked, timeout=10) as answer:
            assert json.load(answer)["asked"] == "pause"
        opened = subprocess.run(
            [sys.executable, "-m", "edge", "watch", address, "--json"],
            capture_output=True,
            text=True,
            env={"BROWSER": "true", "PATH": "/usr/bin:/bin"},
        )
        assert json.loads(opened.stdout)["run"] == "small"
        process.terminate()
        assert process.wait(15) == 143


def test_directory_without_a_run_is_refused(tmp_path: Path, command: Command) -> None:
    outcome = command("watch", str(tmp_path), "--json")
    assert outcome.status == 2
    assert "holds no run" in outcome.error["message"]


def test_address_where_nothing_answers_is_refused(command: Command) -> None:
    outcome = command("watch", "http://127.0.0.1:9", "--json")
    assert outcome.status == 2
    assert "no dashboard answers at http://127.0.0.1:9" in outcome.error["message"]


@pytest.mark.slow
def test_address_of_the_network_comes_with_a_warning(tmp_path: Path) -> None:
    small_ledger(tmp_path / "ledger.sqlite").close()
    words = ["watch", str(tmp_path), "--listen", "0.0.0.0", "--read-only", "--duration-s", "0.1", "--json"]
    done = subprocess.run([sys.executable, "-m", "edge", *words], capture_output=True, text=True)
    assert done.returncode == 0
    assert re.search(r"warning: everyone who reaches http://0\.0\.0\.0:\d+ can read this run", done.stderr)
    assert "read-only: no token" in done.stderr
