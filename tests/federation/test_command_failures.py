"""What the command says and how it exits when the broker or the configuration is not as it should be."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from coordinator.brokers.opening import BrokerProcess
from coordinator.ledger.ledger import Ledger
from tests.federation.small_run import config_text

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


def apportion(*arguments: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "edge", *arguments],
        cwd=ROOT,
        env={**os.environ, **(environment or {})},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def failure(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """The error of the one JSON line on stdout."""
    (line,) = done.stdout.splitlines()
    result = json.loads(line)
    assert (result["schema"], result["ok"]) == ("apportion.run/1", False)
    return dict(result["error"])


def unused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def write_config(folder: Path, broker: str) -> Path:
    path = folder / "run.toml"
    path.write_text(config_text(broker=broker, local=0))
    return path


def test_unreachable_broker_exits_3_with_its_address(tmp_path: Path) -> None:
    port = unused_port()
    config = write_config(tmp_path, f'url = "mqtt://127.0.0.1:{port}"')
    done = apportion("run", str(config), "--run-dir", str(tmp_path / "run"), "--json")
    assert done.returncode == 3, done.stderr
    error = failure(done)
    assert error["code"] == "broker-unreachable"
    assert f"mqtt://127.0.0.1:{port} cannot be reached within 10 s" in error["message"]
    assert error["message"] in done.stderr
    assert "Traceback" not in done.stderr
    # Nothing was planned: the run can be resumed once the broker is there.
    assert (tmp_path / "run" / "ledger.sqlite").is_file()


@pytest.mark.broker
def test_wrong_password_exits_3_with_the_user(mosquitto_broker: BrokerProcess, tmp_path: Path) -> None:
    address = mosquitto_broker.address
    config = write_config(
        tmp_path, f'url = "{address.url}"\nuser = "{address.user}"\npassword-env = "APPORTION_SMALL_RUN_PASSWORD"'
    )
    done = apportion(
        "run",
        str(config),
        "--run-dir",
        str(tmp_path / "run"),
        "--json",
        environment={"APPORTION_SMALL_RUN_PASSWORD": "not the password"},
    )
    assert done.returncode == 3, done.stderr
    error = failure(done)
    assert error["code"] == "access-denied"
    assert f"{address.url} refused user '{address.user}'" in error["message"]
    assert "check name and password" in error["message"]
    assert "not the password" not in done.stdout + done.stderr


@pytest.mark.broker
def test_wrong_password_of_an_agent_exits_3(mosquitto_broker: BrokerProcess, tmp_path: Path) -> None:
    done = apportion(
        *("agent", "--broker", mosquitto_broker.address.url, "--federation", "small", "--device", "pi-1"),
        *("--data", str(tmp_path), "--store", str(tmp_path / "store")),
        environment={"APPORTION_BROKER_PASSWORD": "wrong"},
    )
    assert done.returncode == 3
    assert "refused user 'pi-1'" in done.stderr


def test_missing_password_variable_exits_2_with_its_path(tmp_path: Path) -> None:
    config = write_config(tmp_path, 'url = "mqtt://127.0.0.1"\nuser = "a"\npassword-env = "APPORTION_NO_SUCH_VARIABLE"')
    done = apportion("run", str(config), "--run-dir", str(tmp_path / "run"), "--json")
    assert done.returncode == 2
    assert "$.broker.password-env: the environment has no APPORTION_NO_SUCH_VARIABLE" in failure(done)["message"]


def test_configuration_with_four_mistakes_reports_all_four_and_exits_2(tmp_path: Path) -> None:
    text = config_text()
    for right, wrong in (
        ("rounds = 3", 'rounds = "three"'),
        ('build = "mlp"', 'build = "mlpp"'),
        ("lr = 0.05", "lr = -1"),
        ("batch = 16", "bacth = 16"),
    ):
        assert right in text
        text = text.replace(right, wrong)
    config = tmp_path / "run.toml"
    config.write_text(text)
    done = apportion("run", str(config), "--run-dir", str(tmp_path / "run"), "--json")
    assert done.returncode == 2, done.stderr
    error = failure(done)
    assert error["code"] == "bad-config"
    problems = [line.strip() for line in error["message"].splitlines()[1:]]
    assert error["message"].startswith("4 problems in the configuration")
    assert sorted(problem.split(":")[0] for problem in problems) == [
        "$.federation.rounds",
        "$.model.build",
        "$.training.bacth",
        "$.training.lr",
    ]
    assert "mlp" in next(p for p in problems if "model.build" in p)
    assert all(problem in done.stderr for problem in problems)
    assert not (tmp_path / "run").exists()


def test_resume_of_a_folder_without_a_run_names_it(tmp_path: Path) -> None:
    done = apportion("resume", str(tmp_path), "--json")
    assert done.returncode == 2
    assert f"{tmp_path} holds no run" in done.stderr


def test_run_into_a_folder_with_a_run_names_resume(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    Ledger.create(run_dir / "ledger.sqlite", federation="small", config="", seed=0).close()
    config = write_config(tmp_path, 'url = "mqtt://127.0.0.1"')
    done = apportion("run", str(config), "--run-dir", str(run_dir), "--json")
    assert done.returncode == 2
    assert f"apportion resume {run_dir}" in failure(done)["message"]
