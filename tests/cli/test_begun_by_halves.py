"""A process that was killed while it began a run: ``run``, ``resume`` and ``fsck`` go on from whatever it left."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from coordinator.cli import assembly
from coordinator.cli.open_run import RunOptions
from coordinator.cli.run_directory import holds_run, ledger_of, lock_run, make_run_dir
from coordinator.config.run_config import RunConfig
from coordinator.run_file.loading import load_config_text
from tests.cli.conftest import Command
from tests.federation.small_run import config_text

ROOT = Path(__file__).parents[2]

KILLED = """
import os, signal, sys
from pathlib import Path
from coordinator.cli import assembly
from coordinator.cli.open_run import RunOptions
from coordinator.ledger import database, ledger
from coordinator.run_file.loading import load_config

def killed(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)

def then_killed(migrate):
    def run(*args, **kwargs):
        migrate(*args, **kwargs)
        killed()
    return run

def committed(*_, **__):
    pass  # what an earlier release did: tables in one transaction, the row in the next

config, folder, where = load_config(Path(sys.argv[1])), Path(sys.argv[2]), sys.argv[3]
if where == "before-ledger":
    ledger.Ledger.create = killed
elif where == "between":
    database.migrate = then_killed(database.migrate)
elif where == "between-committed":
    ledger._begin = committed
    ledger.Ledger.create = then_killed(ledger.Ledger.create)
elif where == "after-row":
    assembly._run = killed
assembly.start_run(config, folder, RunOptions())
"""


@pytest.fixture
def text(ledger_place: Path | str) -> str:
    """The run file, with the ledger in a file and on a server in turn."""
    plain = config_text(rounds=1)
    return plain if isinstance(ledger_place, Path) else f'{plain}\n[store]\nledger = "{ledger_place}"\n'


def kill_while_beginning(text: str, tmp_path: Path, where: str) -> Path:
    """The directory of a run whose process was killed at ``where``."""
    (tmp_path / "run.toml").write_text(text)
    command = [sys.executable, "-c", KILLED, str(tmp_path / "run.toml"), str(tmp_path / "run"), where]
    ended = subprocess.run(command, cwd=ROOT, timeout=60, check=False)
    assert ended.returncode == -signal.SIGKILL
    return tmp_path / "run"


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Directories in which a run went on to its rounds, which are left out."""
    reached: list[Path] = []

    def rounds(config: RunConfig, run_dir: Path, options: RunOptions) -> dict[str, object]:
        reached.append(run_dir)
        row = {"accuracy": 0.0, "rounds": 0, "devices": 0, "levels": 0, "wall_s": 0.0, "device_table": []}
        return {**row, "run_dir": str(run_dir)}

    monkeypatch.setattr(assembly, "_run", rounds)
    return reached


@pytest.mark.slow
@pytest.mark.parametrize("where", ["before-ledger", "between", "between-committed"])
@pytest.mark.parametrize("verb", ["run", "resume"])
def test_run_killed_before_its_first_row_is_begun(
    verb: str, where: str, text: str, tmp_path: Path, command: Command, begun: list[Path]
) -> None:
    run_dir = kill_while_beginning(text, tmp_path, where)
    assert not holds_run(run_dir)
    looked = command("fsck", run_dir, "--json")
    assert (looked.status, looked.line["state"], looked.line["findings"]) == (0, "not-begun", [])
    again = ("run", tmp_path / "run.toml", "--run-dir", run_dir) if verb == "run" else ("resume", run_dir)
    assert command(*again, "--quiet", "--json").status == 0
    assert begun == [run_dir]
    with ledger_of(run_dir) as ledger:
        assert ledger.federation().state == "new"
        assert load_config_text(ledger.federation().config).federation.name == "small"
    assert command("fsck", run_dir, "--json").line["state"] == "new"


@pytest.mark.slow
def test_run_killed_after_its_first_row_is_resumed_and_not_begun_again(
    text: str, tmp_path: Path, command: Command, begun: list[Path]
) -> None:
    run_dir = kill_while_beginning(text, tmp_path, "after-row")
    with ledger_of(run_dir) as ledger:
        nonce = ledger.nonce
    refused = command("run", tmp_path / "run.toml", "--run-dir", run_dir, "--quiet", "--json")
    assert refused.status == 2
    assert "holds a run already" in refused.error["message"]
    assert command("resume", run_dir, "--quiet", "--json").status == 0
    assert begun == [run_dir]
    with ledger_of(run_dir) as ledger:
        assert ledger.nonce == nonce


def test_second_process_that_begins_in_the_same_folder_changes_nothing(tmp_path: Path, begun: list[Path]) -> None:
    first, second = load_config_text(config_text(rounds=1)), load_config_text(config_text(rounds=2))
    make_run_dir(tmp_path / "run")
    with lock_run(tmp_path / "run"):
        assembly.write_atomically(tmp_path / "run" / "config.toml", assembly.canonical_toml(first).encode())
        with pytest.raises(assembly.LedgerError, match="another coordinator runs here"):
            assembly.start_run(second, tmp_path / "run", RunOptions())
    assert "rounds = 1" in (tmp_path / "run" / "config.toml").read_text()
