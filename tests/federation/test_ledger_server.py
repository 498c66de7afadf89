"""A run whose ledger is in PostgreSQL: killed and resumed, it ends with the bits of a run with a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordinator.cli.assembly import resume_run, start_run
from coordinator.cli.open_run import RunOptions
from coordinator.cli.run_directory import holds_run, ledger_of
from coordinator.run_file.loading import load_config_text
from edge.contracts.errors import LedgerError
from tests.federation.small_run import config_text, crash
from tests.postgres_server import PostgresServer

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.runtime]

ROUNDS = 2


def final_bytes(run_dir: Path) -> bytes:
    return (run_dir / "checkpoints" / "final.safetensors").read_bytes()


def test_run_with_its_ledger_on_a_server_survives_kills(postgres_server: PostgresServer, tmp_path: Path) -> None:
    plain = config_text(rounds=ROUNDS)
    text = f'{plain}\n[store]\nledger = "{postgres_server.new_database()}"\n'
    run_dir, quiet = tmp_path / "server", RunOptions(quiet=True)
    assert not holds_run(run_dir)
    crash(run_dir, "collecting", 1, text=text)
    assert holds_run(run_dir)
    with pytest.raises(LedgerError, match="holds a run already"):
        start_run(load_config_text(text), run_dir, quiet)
    with pytest.raises(LedgerError, match="there is a run here already"):
        start_run(load_config_text(text), tmp_path / "of-the-same-name", quiet)
    crash(run_dir, "aggregated-1", 1)
    summary = resume_run(run_dir, quiet)
    assert summary["rounds"] == ROUNDS
    assert not (run_dir / "ledger.sqlite").exists()
    with ledger_of(run_dir) as ledger:
        assert ledger.federation().state == "finished"
        assert [(r.round, r.attempt, r.state, len(r.participants)) for r in ledger.rounds.all()] == [
            (0, 0, "committed", 3),
            (1, 0, "committed", 3),
        ]
        assert ledger.audit.findings() == []
    start_run(load_config_text(plain), tmp_path / "file", quiet)
    assert final_bytes(run_dir) == final_bytes(tmp_path / "file")
