"""The agent as a service: kept running without systemd, as a unit with it, started with the host, taken away whole."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.fleet import commands, service
from coordinator.fleet.host import Completed
from coordinator.fleet.installation import Installation
from coordinator.fleet.service import (
    install_service,
    remove_all,
    run_agent_script,
    show_log,
    start_service,
    stop_service,
    unit_text,
)
from tests.coordinator.fleet.local_host import LocalHost
from tests.coordinator.fleet.ssh_server import listing

PI = Installation(device="pi-07", federation="demo", broker_url="mqtts://broker.local", data="images")
FOLDER = ".apportion/pi-07"

AGENT = """\
#!/bin/sh
echo "agent $$ started"
trap 'echo ended in order; exit 0' TERM
while :; do sleep 0.1; done
"""

SYSTEMCTL = """\
echo "$@" >> "$HOME/../calls"
case "$*" in
  *is-active*) [ -e "$HOME/../active" ] ;;
  *is-enabled*) [ -e "$HOME/.config/systemd/user/default.target.wants/apportion-pi-07.service" ] ;;
  *enable*) ln -sf ../apportion-pi-07.service "$HOME/.config/systemd/user/default.target.wants/" ;;
  *stop*) rm -f "$HOME/../active" ;;
  *start*) touch "$HOME/../active" ;;
  *show*) echo 2 ;;
esac"""

CRONTAB = """\
cd "$HOME/.."
if [ "$1" = -l ]; then cat crontab; else cat > crontab.new; mv crontab.new crontab; fi
"""


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalHost]:
    """A host with an installation whose agent is a short script; it is gone after the test."""
    monkeypatch.setattr(service, "START_S", 0.5)
    made = LocalHost(tmp_path / "home")
    ran(made, commands.make_folder(PI))
    (made.home / FOLDER / "environment/bin").mkdir(parents=True)
    give_agent(made, AGENT)
    yield made
    ran(made, remove_all(PI))


def give_agent(host: LocalHost, text: str) -> None:
    python = host.home / FOLDER / "environment/bin/python"
    python.write_text(text)
    python.chmod(0o755)


def ran(host: LocalHost, text: str) -> Completed:
    return asyncio.run(host.run(text))


def lines(host: LocalHost, text: str) -> list[str]:
    done = ran(host, text)
    assert done.status == 0, done.stderr
    return [line for line in done.stdout.splitlines() if not line.startswith("note ")]


def logged(host: LocalHost, text: str) -> bool:
    """Whether the log says so within 5 s."""
    end = time.monotonic() + 5
    while time.monotonic() < end:
        if text in ran(host, show_log(PI, 20)).stdout:
            return True
        time.sleep(0.05)
    return False


@pytest.mark.slow
def test_an_agent_without_systemd_starts_once_and_ends_in_order(host: LocalHost) -> None:
    assert lines(host, install_service(PI, "script")) == ["changed", "changed"]
    assert lines(host, install_service(PI, "script")) == []
    start = start_service(PI, "script", restart=False)
    assert lines(host, start) == ["changed", "alive"]
    first = (host.home / FOLDER / "agent.pid").read_text()
    assert lines(host, start) == ["alive"]
    assert (host.home / FOLDER / "agent.pid").read_text() == first
    assert lines(host, start_service(PI, "script", restart=True)) == ["changed", "alive"]
    assert (host.home / FOLDER / "agent.pid").read_text() != first
    assert logged(host, "ended in order")
    assert lines(host, stop_service(PI)) == []
    assert lines(host, stop_service(PI)) == []
    assert not (host.home / FOLDER / "agent.pid").exists()


@pytest.mark.slow
def test_an_agent_that_is_killed_is_started_again(host: LocalHost) -> None:
    ran(host, install_service(PI, "script"))
    script = host.home / FOLDER / "run-agent"
    script.write_text(script.read_text().replace("sleep 10", "sleep 0.2"))
    assert lines(host, start_service(PI, "script", restart=False)) == ["changed", "alive"]
    assert logged(host, "started")
    first = ran(host, show_log(PI, 1)).stdout.split()[1]
    subprocess.run(["kill", "-9", first], check=True)
    end = time.monotonic() + 5
    while (last := ran(host, show_log(PI, 1)).stdout.split()[1:2]) == [first] and time.monotonic() < end:
        time.sleep(0.05)
    assert last not in ([], [first])


def test_a_number_that_another_program_has_is_not_taken_for_the_agent(host: LocalHost) -> None:
    """As after a restart of the host: the file is there, and its number is a program's that is not ours."""
    ran(host, install_service(PI, "script"))
    with subprocess.Popen(["sleep", "30"]) as other:
        (host.home / FOLDER / "agent.pid").write_text(f"{other.pid}\n")
        assert ran(host, f"sh {FOLDER}/run-agent status").status == 1
        assert lines(host, stop_service(PI)) == []
        assert other.poll() is None
        other.kill()


def test_an_agent_that_ends_at_once_is_told_by_its_status(host: LocalHost) -> None:
    ran(host, install_service(PI, "script"))
    give_agent(host, "#!/bin/sh\necho no such flag\nexit 2\n")
    assert lines(host, start_service(PI, "script", restart=False)) == ["changed", "ended 2"]
    assert ran(host, show_log(PI, 1)).stdout == "no such flag\n"


def test_where_there_is_cron_it_starts_the_agent_and_keeps_its_other_lines(host: LocalHost, tmp_path: Path) -> None:
    host.add_program("crontab", CRONTAB)
    others = "0 3 * * * backup\n@reboot /bin/sh other/run-agent start # apportion-pi-070;\n"
    (tmp_path / "crontab").write_text(others)
    assert lines(host, install_service(PI, "script")) == ["changed"] * 3
    assert lines(host, install_service(PI, "script")) == []
    line = f"@reboot /bin/sh {host.home}/{FOLDER}/run-agent start # apportion-pi-07;\n"
    assert (tmp_path / "crontab").read_text() == others + line
    assert lines(host, remove_all(PI)) == ["removed crontab line", "removed service", "removed folder"]
    assert (tmp_path / "crontab").read_text() == others


def test_without_cron_the_owner_is_told_what_to_do_after_a_restart(host: LocalHost) -> None:
    assert f"note no systemd and no cron here: after a restart of the host run: sh {host.home}/{FOLDER}/run-agent" in (
        ran(host, install_service(PI, "script")).stdout
    )


def test_the_log_of_months_stays_small(host: LocalHost) -> None:
    ran(host, install_service(PI, "script"))
    script = host.home / FOLDER / "run-agent"
    script.write_text(run_agent_script(PI).replace("sleep 60", "sleep 0.1").replace("1000000", "1000"))
    give_agent(host, "#!/bin/sh\nwhile :; do echo a line of the log; sleep 0.005; done\n")
    assert "alive" in lines(host, start_service(PI, "script", restart=False))
    assert (host.home / FOLDER / "agent.log").stat().st_size < 4000
    assert 1000 < (host.home / FOLDER / "agent.log.1").stat().st_size < 5000
    lines(host, stop_service(PI))


def test_with_systemd_it_is_a_unit_that_goes_without_a_trace(host: LocalHost, tmp_path: Path) -> None:
    """systemctl and loginctl keep their state in files here: what they are asked is what is checked."""
    host.add_program("systemctl", SYSTEMCTL)
    host.add_program("loginctl", 'echo "$@" >> "$HOME/../calls"')
    before = set(listing(host.home))
    assert lines(host, install_service(PI, "systemd")) == ["changed"] * 3
    assert lines(host, install_service(PI, "systemd")) == []
    unit = host.home / ".config/systemd/user/apportion-pi-07.service"
    assert unit.read_text() == unit_text(PI)
    assert "ExecStart=/bin/sh %h/.apportion/pi-07/start-agent\nRestart=always\n" in unit.read_text()
    assert lines(host, start_service(PI, "systemd", restart=True)) == ["changed", "alive"]
    assert lines(host, start_service(PI, "systemd", restart=False)) == ["alive"]
    assert lines(host, remove_all(PI)) == ["removed service", "removed folder"]
    calls = (tmp_path / "calls").read_text()
    for call in ("--user --quiet enable apportion-pi-07.service", "enable-linger", "--user start apportion-pi-07"):
        assert calls.count(call) >= 1
    assert calls.endswith("disable-linger\n")
    assert set(listing(host.home)) == {name for name in before if not name.startswith(".apportion")}


def test_systemd_itself_accepts_the_unit(tmp_path: Path) -> None:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("no systemd-analyze here")
    unit = tmp_path / "apportion-pi-07.service"
    unit.write_text(unit_text(PI))
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path)}
    command = [program, "--user", "verify", str(unit)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if "Failed to initialize manager" in done.stderr:
        pytest.skip(f"systemd-analyze cannot work here: {done.stderr.strip()}")
    assert "apportion-pi-07" not in done.stderr
    unit.write_text(unit_text(PI).replace("Restart=always", "Restart=whenever"))
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert "whenever" in done.stderr
