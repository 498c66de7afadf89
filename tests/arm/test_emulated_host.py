"""The emulated host is a board to whoever logs in: its processor, files and programs, not this machine's."""

from __future__ import annotations

import json
import subprocess

import pytest

from tests.arm.emulated_host import HOME
from tests.coordinator.fleet.private_namespace import UID
from tests.coordinator.fleet.ssh_server import SshServer
from tests.profiles.boards import PI_4

TELL = """
import json, os, pathlib, platform, sys
print(json.dumps({
    "machine": platform.machine(), "home": os.getcwd(), "user": os.getuid(),
    "cpu": pathlib.Path("/proc/cpuinfo").read_text(), "memory": pathlib.Path("/proc/meminfo").read_text(),
    "board": pathlib.Path("/sys/firmware/devicetree/base/model").read_text(),
    "heat": pathlib.Path("/sys/class/thermal/thermal_zone0/temp").read_text(),
    "packages": [p for p in sys.path if "packages" in p and os.listdir(p)], "python": sys.executable,
}))
"""


def test_session_sees_a_board_and_an_empty_home(pi_4: SshServer) -> None:
    told = json.loads(pi_4.run(f"python3 -c '{TELL}'"))
    assert (told["machine"], told["home"], told["user"]) == ("aarch64", str(HOME), UID)
    assert told["cpu"] == PI_4["/proc/cpuinfo"]
    assert told["memory"] == PI_4["/proc/meminfo"]
    assert told["board"] == PI_4["/proc/device-tree/model"]
    assert told["heat"].strip() == "81305"
    assert told["python"] == "/usr/bin/python3"
    assert told["packages"] == []
    assert pi_4.listing() == {}


def test_programs_start_programs_of_the_same_processor(pi_4: SshServer) -> None:
    assert (
        pi_4.run("python3 -m venv --without-pip e && e/bin/python -c 'import ssl; print(ssl.HAS_TLSv1_3)'") == "True\n"
    )
    assert pi_4.run("sh -c 'uname -m'; od -An -tx1 -j18 -N2 /bin/sh").split() == ["aarch64", "b7", "00"]


def test_disk_is_read_only_but_for_home_and_passing_files(pi_4: SshServer) -> None:
    with pytest.raises(AssertionError, match="Read-only file system"):
        pi_4.run("touch /usr/bin/new")
    pi_4.run("touch /tmp/new ~/new")
    assert list(pi_4.listing()) == ["new"]


def test_drop_ends_emulated_sessions(pi_4: SshServer) -> None:
    with subprocess.Popen(pi_4.command("echo here; exec sleep 60"), stdout=subprocess.PIPE) as waiting:
        assert waiting.stdout is not None
        assert waiting.stdout.readline() == b"here\n"
        assert pi_4.drop() >= 1
        assert waiting.wait(10) == 255
