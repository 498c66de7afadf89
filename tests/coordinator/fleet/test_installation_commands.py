"""The shell text of the steps on this machine's own shell: what is quoted, what is kept, what is removed."""

from __future__ import annotations

import asyncio
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from coordinator.fleet import commands
from coordinator.fleet.host import Completed
from coordinator.fleet.installation import Installation
from coordinator.fleet.service import remove_all
from edge.contracts.errors import ConfigError
from tests.coordinator.fleet.local_host import LocalHost
from tests.coordinator.fleet.small_wheels import bundled_pip, small_wheel
from tests.coordinator.fleet.ssh_server import listing

PI = Installation(device="pi-07", federation="demo", broker_url="mqtts://broker.local", data="images")
PYTHON = commands.use_python(str(Path(sys.executable).resolve()))


@pytest.fixture
def host(tmp_path: Path) -> LocalHost:
    """A host with an installation's folder."""
    made = LocalHost(tmp_path / "home")
    assert ran(made, commands.make_folder(PI)).stdout == "changed\n"
    return made


def ran(host: LocalHost, text: str) -> Completed:
    return asyncio.run(host.run(text))


def installed(host: LocalHost) -> Path:
    return host.home / PI.folder


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"device": "pi 07"}, "device: 'pi 07' is not usable"),
        ({"device": "$(reboot)", "federation": "a;b"}, "federation: 'a;b' is not usable"),
        ({"folder": "../other"}, "folder: '../other' is not usable"),
        ({"folder": "a folder"}, "folder: 'a folder' is not usable"),
        ({"folder": "-rf"}, "folder: '-rf' is not usable"),
        ({"broker_url": "mqtt://broker.local"}, "must be given as mqtts://"),
        ({"broker_url": "mqtts://me:secret@broker.local"}, "must be given as mqtts://"),
        ({"data": ""}, "data: '' is not a path"),
        ({"data": "images\nrm -rf"}, "is not a path or package.module:function"),
        ({"data": "~/.apportion/pi-07/data"}, "is inside .apportion/pi-07"),
        ({"runtime": "onnxruntime_training"}, "runtime: 'onnxruntime_training' is not one of onnxruntime, executorch"),
        ({"budget_mb": -1.0}, "budget-mb: -1.0 is not between 0"),
        ({"extra_flags": ("--store=/tmp",)}, "flags: --store is set by the installation itself"),
        ({"extra_flags": ("--max-temperature-c", "7\n0")}, "cannot be given"),
    ],
)
def test_what_cannot_go_into_a_shell_line_is_refused(fields: dict[str, object], problem: str) -> None:
    values = {"device": "pi-07", "federation": "demo", "broker_url": "mqtts://broker.local", "data": "images"}
    with pytest.raises(ConfigError) as raised:
        Installation(**{**values, **fields})  # type: ignore[arg-type]
    assert problem in str(raised.value)


def test_secrets_in_a_broker_url_are_not_repeated() -> None:
    with pytest.raises(ConfigError) as raised:
        Installation(device="a", federation="b", broker_url="mqtts://me:secret@broker.local", data="c")
    assert "secret" not in str(raised.value)


def test_hostile_words_reach_the_agent_as_they_are(host: LocalHost) -> None:
    data, flag = "~/it's $(touch stolen) `touch stolen`", "22:00-06:00; touch stolen"
    hostile = Installation(
        device="pi-07",
        federation="demo",
        broker_url="mqtts://broker.local:8883",
        data=data,
        budget_mb=160.0,
        threads=2,
        extra_flags=("--train-between", flag),
    )
    (installed(host) / "environment/bin").mkdir(parents=True)
    python = installed(host) / "environment/bin/python"
    python.write_text("#!/bin/sh\nprintf '%s\\n' \"$@\"\n")
    python.chmod(0o755)
    assert ran(host, commands.write_text(PI, "start-agent", commands.start_agent_script(hostile))).status == 0
    words = ran(host, 'sh "$HOME/.apportion/pi-07/start-agent"').stdout.splitlines()
    pairs = dict(pairwise(words))
    assert words[:3] == ["-m", "edge", "agent"]
    assert pairs["--data"] == f"{host.home}/{data.removeprefix('~/')}"
    assert pairs["--train-between"] == flag
    assert (pairs["--budget-mb"], pairs["--threads"]) == ("160", "2")
    assert (pairs["--trust"], pairs["--key"]) == ("identity/signing.pub", "identity/device.key")
    assert not list(host.home.rglob("stolen"))


def test_data_from_a_function_is_no_path() -> None:
    function = Installation(device="a", federation="b", broker_url="mqtts://c", data="my.images:load")
    assert "--data my.images:load" in commands.start_agent_script(function)


def test_texts_are_written_once(host: LocalHost) -> None:
    write = commands.write_text(PI, "identity/ca.pem", "a certificate\n$HOME `id`\n")
    assert [ran(host, write).stdout, ran(host, write).stdout] == ["changed\n", ""]
    path = installed(host) / "identity/ca.pem"
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("a certificate\n$HOME `id`\n", 0o600)


def test_wheels_that_are_damaged_or_no_longer_wanted_are_removed(host: LocalHost, tmp_path: Path) -> None:
    wheels = dict(small_wheel(tmp_path, name, b"x = 1") for name in ("one", "two", "three"))
    folder = installed(host) / "wheels"
    for name in wheels:
        (folder / name).write_bytes((tmp_path / name).read_bytes())
    assert ran(host, commands.check_wheels(PI, wheels)).stdout == ""
    (folder / "one-1.0-py3-none-any.whl").write_bytes(b"half")
    (folder / "old-0.9-py3-none-any.whl").write_bytes(b"old")
    assert ran(host, commands.check_wheels(PI, wheels)).stdout == "missing one-1.0-py3-none-any.whl\n"
    assert sorted(path.name for path in folder.glob("*.whl")) == sorted(set(wheels) - {"one-1.0-py3-none-any.whl"})


@pytest.mark.slow
def test_a_failed_installation_leaves_the_environment_in_use(host: LocalHost, tmp_path: Path) -> None:
    pip = bundled_pip()
    folder = installed(host) / "wheels"
    (folder / pip.name).write_bytes(pip.read_bytes())
    good, _ = small_wheel(folder, "good", b"x = 1")
    first = commands.make_environment(PI, (pip.name, good), "a" * 64)
    assert ran(host, PYTHON + first).stdout == "changed\n"
    assert ran(host, PYTHON + first).stdout == ""
    used = (installed(host) / "environment").readlink()
    (folder / "bad-1.0-py3-none-any.whl").write_bytes(b"no wheel")
    failed = ran(host, PYTHON + commands.make_environment(PI, (pip.name, good, "bad-1.0-py3-none-any.whl"), "b" * 64))
    assert failed.status == 1
    assert "bad-1.0-py3-none-any.whl" in failed.stderr
    assert (installed(host) / "environment").readlink() == used
    assert [path.name for path in (installed(host) / "environments").iterdir()] == [used.name]
    shown = ran(host, ".apportion/pi-07/environment/bin/python -c 'import good; print(good.x)'")
    assert shown.stdout == "1\n"
    assert ran(host, commands.measure_folder(PI)).stdout.strip().isdecimal()

    small_wheel(folder, "good", b"x = 2")
    assert ran(host, PYTHON + commands.make_environment(PI, (pip.name, good), "c" * 64)).stdout == "changed\n"
    assert ran(host, ".apportion/pi-07/environment/bin/python -c 'import good; print(good.x)'").stdout == "2\n"
    assert ran(host, commands.drop_old_environments(PI)).status == 0
    assert len(list((installed(host) / "environments").iterdir())) == 1


def test_a_printed_script_finds_its_python(tmp_path: Path) -> None:
    host = LocalHost(tmp_path / "home", python=Path(sys.executable).resolve())
    host.add_program("python3.12", "exit 1")
    assert ran(host, commands.find_python() + 'echo "$python"').stdout == "python3\n"
    without = LocalHost(tmp_path / "other")
    done = ran(without, commands.find_python() + 'echo "$python"')
    assert (done.status, done.stdout) == (1, "")
    assert "Python 3.11 to 3.14 with venv" in done.stderr


def test_folders_that_are_not_ours_are_never_removed(tmp_path: Path) -> None:
    host = LocalHost(tmp_path / "home")
    (host.home / PI.folder).mkdir(parents=True)
    (host.home / PI.folder / "notes").write_text("mine")
    before = listing(host.home)
    assert ran(host, commands.make_folder(PI)).status == 1
    assert ran(host, remove_all(PI)).stdout == ""
    (host.home / PI.folder / "installation").write_text("pi-08\n")
    assert "belongs to another device" in ran(host, commands.make_folder(PI)).stderr
    assert ran(host, remove_all(PI)).stdout == ""
    (host.home / PI.folder / "installation").unlink()
    assert listing(host.home) == before


def test_only_folders_that_were_made_go_with_the_installation(tmp_path: Path) -> None:
    host = LocalHost(tmp_path / "home")
    (host.home / ".apportion").mkdir()
    before = listing(host.home)
    assert ran(host, commands.make_folder(PI)).stdout == "changed\n"
    assert ran(host, remove_all(PI)).stdout == "removed folder\n"
    assert listing(host.home) == before
    deep = Installation(device="pi-07", federation="d", broker_url="mqtts://b", data="images", folder="disk/a/b")
    assert ran(host, commands.make_folder(deep)).stdout == "changed\n"
    assert ran(host, remove_all(deep)).stdout == "removed folder\n"
    assert listing(host.home) == before
