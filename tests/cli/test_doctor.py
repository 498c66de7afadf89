"""``doctor`` foretells how a run would end: its exit status, its problems, its remedies."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from coordinator.broker import BrokerProcess
from tests.cli.conftest import OWN, Command
from tests.federation.small_run import config_text

ROOT = Path(__file__).parents[2]


def findings(line: dict[str, Any], state: str) -> dict[str, str]:
    """Name -> detail of the findings in ``state``."""
    return {f["name"]: f["detail"] for f in line["findings"] if f["state"] == state}


@pytest.mark.broker
def test_doctor_finds_nothing_wrong_with_the_demo(command: Command) -> None:
    outcome = command("doctor", ROOT / "examples" / "digits.toml", "--json")
    assert outcome.status == 0, outcome.err
    good = findings(outcome.line, "ok")
    assert outcome.line["failed"] == []
    assert good["data"] == "1198 examples, 599 held out"
    assert good["method"].startswith("full, rank 1/8")
    assert good["broker"] == "amqtt lets us in"
    assert {"python", "torch", "onnxruntime"} <= good.keys()
    assert all(not f["fix"] for f in outcome.line["findings"] if f["state"] == "ok")


def test_doctor_shows_every_mistake_of_a_run_file_and_exits_2(command: Command, tmp_path: Path) -> None:
    config = tmp_path / "run.toml"
    config.write_text(config_text().replace("rounds = 3", "rounds = 0").replace('"mlp"', '"mlpp"'))
    outcome = command("doctor", config, "--json")
    assert outcome.status == 2
    assert outcome.line["failed"] == [str(config)] * 2
    assert "$.federation.rounds: 0 is outside" in outcome.error["message"]
    assert "$.model.build: 'mlpp' is not known" in outcome.error["message"]


@pytest.mark.broker
def test_doctor_data_that_is_not_there_is_exit_1(command: Command, tmp_path: Path) -> None:
    config = tmp_path / "run.toml"
    data = f'source = "mnist-writers"\npath = "{tmp_path}"'
    config.write_text(config_text().replace('source = "digits"', data))
    outcome = command("doctor", config, "--json")
    assert outcome.status == 1
    assert outcome.line["failed"] == ["data"]
    assert "mnist.npz: no such file" in outcome.error["message"]


@pytest.mark.broker
def test_doctor_wrong_password_is_exit_3(
    amqtt_broker: BrokerProcess, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = amqtt_broker.address
    config = tmp_path / "run.toml"
    broker = f'url = "{address.url}"\nuser = "{address.user}"\npassword-env = "DOCTORS_PASSWORD"'
    config.write_text(config_text(broker=broker, local=0))
    monkeypatch.setenv("DOCTORS_PASSWORD", "wrong")
    outcome = command("doctor", config, "--json")
    assert outcome.status == 3
    assert f"refused user '{address.user}'" in outcome.error["message"]
    monkeypatch.setenv("DOCTORS_PASSWORD", address.password)
    outcome = command("doctor", config, "--json")
    assert outcome.status == 0, outcome.err
    assert findings(outcome.line, "ok")["broker"] == f"{address.url} lets us in"


def test_doctor_trains_a_model_or_names_its_layer(command: Command) -> None:
    outcome = command("doctor", "tests.cli.own_models:small", *OWN[:4])
    assert outcome.status == 0
    assert "ok    tests.cli.own_models:small: trains on onnxruntime" in outcome.out
    outcome = command("doctor", "tests.cli.own_models:with_dropout", *OWN[:4])
    assert outcome.status == 2
    assert "FAIL  tests.cli.own_models:with_dropout: layer '1': Dropout" in outcome.out
    assert "-> use p=0" in outcome.out


def test_doctor_fix_with_nothing_missing_installs_nothing(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[object] = []
    monkeypatch.setattr(subprocess, "run", lambda *args, **kwargs: started.append(args))
    outcome = command("doctor", "--fix", "--json")
    assert outcome.status == 0
    assert started == []
