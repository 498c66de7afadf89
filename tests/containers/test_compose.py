"""The Compose file: its services' own commands make a run, in namespaces where the names of the services are this host.

There is no PostgreSQL in it: the run file is taken without its ledger's address. Files have other places, and the same
names.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from coordinator.brokers.mosquitto import find_mosquitto
from coordinator.config.run_config import RunConfig
from coordinator.run_file.loading import load_config_text
from edge.commands.agent import agent_command
from tests.containers.builder import FILES
from tests.coordinator.fleet.private_namespace import PrivateProcess, Unavailable

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
PATIENCE_S = 600.0
"""What takes longer hangs."""
SERVICES: dict[str, Any] = yaml.safe_load((FILES / "compose.yaml").read_text())["services"]


def run_file(folder: Path) -> RunConfig:
    """The services' run file, with its held-out data in ``folder``."""
    return load_config_text((FILES / "run.toml").read_text().replace("/srv/data", str(folder)))


def test_services_and_the_run_file_agree_on_names_and_ports(tmp_path: Path) -> None:
    (tmp_path / "test").mkdir()
    config = run_file(tmp_path)
    assert config.broker.url == "mqtts://mosquitto:8883"
    assert f"--broker={config.broker.url}" in SERVICES["agent"]["command"]
    assert f"--federation={config.federation.name}" in SERVICES["agent"]["command"]
    assert config.broker.bulk == "https://coordinator:8443"
    assert config.store.ledger == "postgresql://apportion@postgres/apportion"
    assert SERVICES["postgres"]["environment"]["POSTGRES_USER"] == "apportion"
    assert (SERVICES["mosquitto"]["ports"], SERVICES["coordinator"]["ports"]) == (["8883:8883"], ["8443:8443"])


def test_options_of_the_agents_are_the_command_s(capsys: pytest.CaptureFixture[str]) -> None:
    assert agent_command(["--help"]) == 0
    known = set(re.findall(r"--[a-z-]+", capsys.readouterr().out))
    balena = (EXAMPLES / "balena/docker-compose.yml").read_text()
    (line,) = re.findall(r"exec apportion agent .*?--alive-file", balena, re.DOTALL)
    for text in (line, " ".join(SERVICES["agent"]["command"])):
        used = set(re.findall(r"--[a-z-]+", text))
        assert {"--broker", "--federation", "--device", "--trust", "--alive-file"} <= used
        assert used <= known


def test_only_the_coordinator_sees_the_authority_s_keys() -> None:
    mounted = {
        name: {volume.partition(":")[0] for volume in service.get("volumes", ())} for name, service in SERVICES.items()
    }
    assert [name for name, volumes in mounted.items() if "identity" in volumes] == ["prepare", "coordinator"]
    assert mounted["agent"] == {"device", "data"}
    assert mounted["mosquitto"] == {"broker"}


@pytest.mark.slow
@pytest.mark.broker
@pytest.mark.runtime
@pytest.mark.skipif(find_mosquitto() is None, reason="mosquitto is not installed here (Debian: mosquitto)")
def test_commands_of_the_services_make_a_run(tmp_path: Path) -> None:
    site, setup, programs = tmp_path / "srv", tmp_path / "setup", tmp_path / "bin"
    for folder in (*(site / name for name in ("identity", "broker", "device", "data", "runs")), setup, programs):
        folder.mkdir(parents=True)
    (programs / "apportion").write_text(f'#!/bin/sh\nexec {sys.executable} -m edge "$@"\n')
    (programs / "apportion").chmod(0o755)
    shutil.copy(FILES / "prepare.sh", setup)
    text = (FILES / "run.toml").read_text().partition("\n[store]")[0]
    for old, new in (("rounds = 10", "rounds = 1"), ("levels = [1, 8, 32]", "levels = [32]")):  # quick
        assert old in text
        text = text.replace(old, new)
    (setup / "run.toml").write_text(text)
    (tmp_path / "hosts").write_text("127.0.0.1 localhost mosquitto coordinator\n")

    def command(service: str) -> str:
        words = [*SERVICES[service].get("entrypoint", []), *SERVICES[service]["command"]]
        moved = [word.replace("/tmp/", f"{tmp_path}/").replace("/setup/", f"{setup}/") for word in words]
        if service == "agent":
            moved = ["apportion", *(word.replace("=/data/", "=/srv/data/") for word in moved)]
        return shlex.join(moved)

    # As root it would change to a user that these namespaces do not have.
    as_user = "unshare --user --map-user=1000 --map-group=1000"
    mosquitto = f"{as_user} {command('mosquitto').replace('mosquitto', str(find_mosquitto()), 1)}"
    script = f"""
set -e
export PATH={programs}:$PATH PYTHONPATH={ROOT} XDG_STATE_HOME=/srv/runs/.state
ip link set lo up
sh {setup}/prepare.sh
{mosquitto} &
sleep 0.5
{command("agent")} &
{command("coordinator")}
{command("coordinator")}
test -e {tmp_path}/alive
"""
    (tmp_path / "script").write_text(script)
    if shutil.which("ip") is None:
        pytest.skip("ip is not installed here (Debian: iproute2)")
    mounts = f"mount --bind '{site}' /srv\nmount --bind '{tmp_path}/hosts' /etc/hosts"
    isolated = ["unshare", "--user", "--map-root-user", "--net", "sh", str(tmp_path / "script")]
    try:
        process = PrivateProcess(mounts, isolated, tmp_path / "log")
    except Unavailable as reason:
        pytest.skip(str(reason))
    try:
        status = process.wait(PATIENCE_S)
    finally:
        process.stop()
    log = (tmp_path / "log").read_text()
    assert status == 0, log[-3000:]
    assert log.count("accuracy ") >= 2  # told again by the second start
    summary = json.loads((site / "runs/first/summary.json").read_text())
    assert (summary["rounds"], summary["devices"]) == (1, 1)
    assert oct((site / "identity/ca.key").stat().st_mode & 0o777) == "0o600"
    assert os.access(site / "device/device.pem", os.R_OK)
