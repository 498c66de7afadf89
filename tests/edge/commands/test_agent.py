"""``apportion agent``: exit status and messages of everything that can be wrong before the first message."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from coordinator.brokers.opening import BrokerProcess
from edge.__main__ import main
from edge.contracts.errors import ConfigError
from edge.supervisor.trainer_link import child_environment
from edge.transport.broker_address import parse_broker
from edge.transport.shown_password import PASSWORD_VARIABLE

GOOD = ["--federation", "fed", "--device", "dev-1", "--data", "nowhere"]


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    status = main(["agent", *arguments])
    return status, capsys.readouterr().err


def test_agent_help_ends_with_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["agent", "--help"]) == 0
    out = capsys.readouterr().out
    assert "apportion agent --broker" in out.split("example:")[1]


def test_agent_missing_arguments_is_exit_2(capsys: pytest.CaptureFixture[str]) -> None:
    status, error = run(capsys, "--broker", "mqtt://host")
    assert status == 2
    assert "--federation" in error


def test_agent_every_bad_argument_is_reported_at_once(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    status, error = run(
        capsys,
        *("--broker", "http://host", "--federation", "a/b", "--device", "dev#1", "--data", "x"),
        *("--store", str(tmp_path), "--budget-mb", "-1"),
    )
    assert status == 2
    assert "4 problems" in error
    for words in ("--broker", "a/b", "dev#1", "--budget-mb"):
        assert words in error


def test_agent_unreachable_broker_is_exit_3_with_the_address(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    status, error = run(
        capsys,
        *("--broker", "mqtt://user:secret@127.0.0.1:9", *GOOD, "--store", str(tmp_path), "--connect-timeout-s", "0.1"),
    )
    assert status == 3
    assert "mqtt://127.0.0.1:9" in error
    assert "secret" not in error


def test_agent_store_that_is_a_file_is_exit_2(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    status, error = run(capsys, "--broker", "mqtt://host", *GOOD, "--store", str(tmp_path / "file"))
    assert status == 2
    assert "--store" in error


@pytest.mark.parametrize(
    ("url", "host", "port", "tls"),
    [
        ("mqtt://broker.local", "broker.local", 1883, False),
        ("mqtts://broker.local", "broker.local", 8883, True),
        ("mqtt://[::1]:2000", "::1", 2000, False),
    ],
)
def test_parse_broker_defaults(url: str, host: str, port: int, tls: bool) -> None:
    address = parse_broker(url)
    assert (address.host, address.port, address.tls, address.username) == (host, port, tls, None)


def test_parse_broker_credentials_are_decoded_and_not_shown() -> None:
    address = parse_broker("mqtt://pi-07:p%40ss@host")
    assert (address.username, address.password) == ("pi-07", "p@ss")
    assert str(address) == "mqtt://host:1883"


def test_parse_broker_password_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PASSWORD_VARIABLE, "hidden")
    assert parse_broker("mqtt://host", user="dev-1").username == "dev-1"
    assert parse_broker("mqtt://host", user="dev-1").password == "hidden"


@pytest.mark.parametrize("url", ["host", "mqtt://", "tcp://host", "mqtt://host:99999", "mqtt://host:x"])
def test_parse_broker_bad_url_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="--broker"):
        parse_broker(url)


def test_parse_broker_tls_files_must_exist_and_need_mqtts(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no file"):
        parse_broker("mqtts://host", ca=str(tmp_path / "ca.pem"))
    (tmp_path / "ca.pem").write_text("")
    with pytest.raises(ConfigError, match="mqtts"):
        parse_broker("mqtt://host", ca=str(tmp_path / "ca.pem"))
    with pytest.raises(ConfigError, match="--cert and --key"):
        parse_broker("mqtts://host", certificate=str(tmp_path / "ca.pem"))


@pytest.mark.broker
def test_agent_starts_trainers_with_the_environment_beside_its_own(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, amqtt_broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / ".venv-executorch" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/started\nexit 7\n')
    python.chmod(0o755)
    monkeypatch.setattr(sys, "prefix", str(tmp_path / ".venv"))
    monkeypatch.setenv(PASSWORD_VARIABLE, amqtt_broker.address.password)
    broker = ("--broker", amqtt_broker.address.url, "--user", amqtt_broker.address.user)
    status, error = run(capsys, *broker, *GOOD, "--store", str(tmp_path / "store"), "--runtime", "executorch")
    started = (tmp_path / "started").read_text().split()[:3]
    assert (status, started) == (2, ["-m", "edge.commands.trainer_start", "executorch"])
    assert "a trainer for 'executorch' cannot start here: exit status 7" in error


def test_agent_verb_imports_no_coordinator_and_nothing_heavy() -> None:
    program = (
        "import sys; from edge.__main__ import main; main(['agent', '--help']); "
        "heavy = 'coordinator', 'export', 'torch', 'numpy', 'onnxruntime', 'onnx', 'executorch', 'zstandard';"
        "print([m for m in heavy if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], env=child_environment(), capture_output=True, text=True)
    assert done.stdout.strip().endswith("[]")


def test_parse_broker_takes_the_nodes_of_a_cluster() -> None:
    address = parse_broker("mqtts://me:p%2Css@a.local,b.local:8884,[::1]:8885")
    assert address.places == (("a.local", 8883), ("b.local", 8884), ("::1", 8885))
    assert (address.username, address.password) == ("me", "p,ss")
    assert str(address) == "mqtts://a.local:8883,b.local:8884,[::1]:8885"
    with pytest.raises(ConfigError, match=r"(?s)'mqtts://' is not mqtt://host.*Port"):
        parse_broker("mqtts://a.local,,b.local:x")


def test_clients_spread_over_a_cluster_and_each_tries_every_node() -> None:
    address = parse_broker("mqtts://a,b,c")
    orders = [address.places_for(f"CN=pi-{i}") for i in range(300)]
    assert address.places_for("CN=pi-7") == orders[7]
    assert all(sorted(order) == sorted(address.places) for order in orders)
    assert all(70 < sum(order[0][0] == host for order in orders) < 130 for host in "abc")
