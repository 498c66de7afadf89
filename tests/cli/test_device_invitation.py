"""What ``run`` prints to start a device with: a command that a shell reads as it stands, without a password in it."""

from __future__ import annotations

import io
import shlex
from pathlib import Path

import msgspec
import pytest

from coordinator.brokers.opening import BrokerAddress
from coordinator.cli.device_invitation import device_invitation
from coordinator.config.run_config import BrokerConfig, RunConfig
from coordinator.reporting.progress import Progress
from coordinator.run_file.loading import load_config_text
from edge.commands.agent_arguments import agent_parser
from edge.transport.shown_password import PASSWORD_VARIABLE
from tests.federation.small_run import config_text

OWN = BrokerAddress(kind="amqtt", url="mqtt://127.0.0.1:1883", user="a b", password="s3cret")


def config(*runtimes: str, **broker: str) -> RunConfig:
    read = load_config_text(config_text(local=0, size=1, runtimes=runtimes or ("onnxruntime",)))
    return msgspec.structs.replace(read, broker=BrokerConfig(**broker)) if broker else read


def test_command_of_a_broker_of_ours_is_one_that_an_agent_takes(tmp_path: Path) -> None:
    told, command = device_invitation(config(), "demo", OWN, tmp_path)
    assert told == "to start a device on this machine:"
    variable, *words = shlex.split(command)
    assert variable == f"{PASSWORD_VARIABLE}=$(cat {tmp_path}/password)"
    chosen = agent_parser().parse_args(words[2:])
    assert (words[:2], chosen.federation, chosen.device) == (["apportion", "agent"], "demo", "device-1")
    assert chosen.broker == "mqtt://a%20b@127.0.0.1:1883"
    assert "s3cret" not in command
    assert (tmp_path / "password").read_text() == "s3cret"
    assert (tmp_path / "password").stat().st_mode & 0o777 == 0o600


def test_authority_and_runtime_are_named_where_they_are_needed(tmp_path: Path) -> None:
    address = BrokerAddress(kind="mosquitto", url="mqtts://127.0.0.1:1", user="u", password="p", ca_file=Path("ca.pem"))
    _, command = device_invitation(config("executorch"), "demo", address, tmp_path)
    assert command.endswith("--ca ca.pem --runtime executorch")
    _, both = device_invitation(config("executorch", "onnxruntime"), "demo", OWN, tmp_path)
    assert "--runtime" not in both


def test_broker_elsewhere_leaves_user_and_password_to_the_device(tmp_path: Path) -> None:
    address = BrokerAddress(kind="external", url="mqtt://broker.lan", user="coordinator", password="s3cret")
    told, command = device_invitation(config(password_env="APPORTION_P"), "demo", address, tmp_path)
    assert told == "to start a device, anywhere that reaches the broker:"
    assert command.startswith(f"{PASSWORD_VARIABLE}=... apportion agent --broker mqtt://broker.lan --federation demo ")
    assert list(tmp_path.iterdir()) == []


def test_hosts_are_enrolled_where_devices_have_certificates(tmp_path: Path) -> None:
    address = BrokerAddress(kind="external", url="mqtts://hub.lan:8883", identity=Path("identity"))
    _, command = device_invitation(config(identity="identity", url="mqtts://hub.lan:8883"), "demo", address, tmp_path)
    expected = "apportion device add USER@HOST --data DATA --federation demo --broker mqtts://hub.lan:8883"
    assert command == f"{expected} --identity identity"
    (only,) = device_invitation(config(), "demo", BrokerAddress(kind="mosquitto", url="", identity=Path("i")), tmp_path)
    assert "from this machine alone" in only


def test_runs_of_browsers_alone_name_no_agent(tmp_path: Path) -> None:
    replace, read = msgspec.structs.replace, config()
    browsers = replace(read, runtime=replace(read.runtime, names=("onnxruntime_web",)))
    assert device_invitation(browsers, "demo", OWN, tmp_path) == []


@pytest.mark.parametrize("lines", [[], ["how:", "apportion agent " + 200 * "x"]])
def test_command_stands_on_a_line_of_its_own(lines: list[str]) -> None:
    stream = io.StringIO()
    Progress(stream=stream).invite(lines)
    assert stream.getvalue().splitlines()[1:] == lines[1:]
