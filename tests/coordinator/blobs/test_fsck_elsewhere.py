"""``apportion fsck`` where the ledger is in a database: the run directory's config.toml says which."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from coordinator.config.canonical import canonical_toml
from coordinator.run_file.loading import load_config_text
from edge.__main__ import main
from tests.coordinator.stored_run import StoredRun
from tests.federation.small_run import config_text


def test_ledger_in_a_database_is_found_by_the_run_directory(
    tmp_path: Path, ledger_place: Path | str, capsys: pytest.CaptureFixture[str]
) -> None:
    if isinstance(ledger_place, Path):
        pytest.skip("the ledger in a file is tested in tests/cli/test_fsck.py")
    run = StoredRun(tmp_path / "run", ledger_place)
    text = config_text() + f'\n[store]\nledger = "{ledger_place}"\n'
    (run.folder / "config.toml").write_text(canonical_toml(load_config_text(text)))
    digest = run.damage("update pi-1 1")
    capsys.readouterr()
    assert main(["fsck", str(run.folder), "--deep", "--json"]) == 1
    (finding,) = json.loads(capsys.readouterr().out)["findings"]
    assert finding["subject"] == digest
    assert main(["fsck", str(run.folder), "--deep", "--repair"]) == 0
    assert run.ledger.rounds.open() is None
    run.ledger.close()
