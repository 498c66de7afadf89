"""Code that somebody else's artifact, run directory or ledger names is not run unless that is asked for."""

from __future__ import annotations

import json
import os
from pathlib import Path

import msgspec
import pytest

from coordinator.cli.own_code import is_own
from coordinator.config.run_config import canonical_toml
from coordinator.ledger.ledger import Ledger
from coordinator.run_file.loading import load_config_text
from tests.cli.conftest import Command
from tests.federation.small_run import config_text

HOSTILE = "subprocess:getoutput"


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run whose model is a function of the standard library, begun by nobody."""
    folder = tmp_path / "run"
    folder.mkdir(mode=0o700)
    config = load_config_text(config_text(rounds=1))
    model = msgspec.structs.replace(config.model, build=HOSTILE, options={"cmd": f"touch {tmp_path}/ran"})
    text = canonical_toml(msgspec.structs.replace(config, model=model))
    (folder / "config.toml").write_text(text)
    Ledger.create(folder / "ledger.sqlite", federation=config.federation.name, config=text, seed=1).close()
    return folder


def test_reading_a_run_file_runs_no_code(tmp_path: Path) -> None:
    text = config_text(rounds=1)
    build = f'build = "{HOSTILE}"\ninput = [4]\nclasses = 2\noptions = {{ cmd = "touch {tmp_path}/ran" }}\n'
    start, end = text.index("[model]"), text.index("[method]")
    config = load_config_text(f"{text[:start]}[model]\n{build}{text[end:]}")
    assert config.model.build == HOSTILE
    assert not (tmp_path / "ran").exists()


def test_resume_runs_no_code_of_a_directory_that_others_can_write_to(
    run_dir: Path, command: Command, tmp_path: Path
) -> None:
    (run_dir / "ledger.sqlite").chmod(0o666)
    outcome = command("resume", run_dir, "--json")
    assert outcome.status == 2
    assert f"names code to run, {HOSTILE}" in outcome.error["message"]
    assert "--allow-code" in outcome.error["message"]
    assert not (tmp_path / "ran").exists()


def test_directory_is_ones_own_where_nobody_else_can_write(run_dir: Path) -> None:
    for name in ("config.toml", "ledger.sqlite"):
        (run_dir / name).chmod(0o600)
    assert is_own(run_dir)
    (run_dir / "config.toml").chmod(0o622)
    assert not is_own(run_dir)
    if os.geteuid() == 0:
        (run_dir / "config.toml").chmod(0o600)
        os.chown(run_dir / "ledger.sqlite", 1000, 1000)
        assert not is_own(run_dir)


@pytest.mark.slow
def test_verify_runs_no_code_of_a_manifest(command: Command, tmp_path: Path) -> None:
    folder = tmp_path / "artifact"
    assert command("export", "--model", "mlp", "--batch", 4, "--out", folder).status == 0
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["build"] |= {"model": HOSTILE, "options": {"cmd": f"touch {tmp_path}/ran"}}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    outcome = command("verify", folder, "--json")
    assert outcome.status == 2
    assert f"names code to run, {HOSTILE}" in outcome.error["message"]
    assert not (tmp_path / "ran").exists()
    assert command("verify", folder, "--allow-code", "--json").status != 0  # text is no module
    assert (tmp_path / "ran").exists()
