"""The script for machines that nobody can log in to: what it says, that it runs in an empty home, and is undone."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from coordinator.fleet import commands, service
from coordinator.fleet.facts import HostFacts
from coordinator.fleet.install_script import InstallScript, facts_of
from coordinator.fleet.installation import Installation
from coordinator.fleet.wheelhouse import Wheelhouse, WheelsUnavailable, build_wheelhouse
from coordinator.identity.authority import Authority
from edge.contracts.errors import ConfigError
from tests.coordinator.fleet.ssh_server import listing

PI = Installation(
    device="pi-07",
    federation="demo",
    broker_url="mqtts://127.0.0.1:1",
    data="~/my images",
    # Without a broker its agent ends at once and is started again: as good a start as any for a script.
    extra_flags=("--connect-timeout-s", "0.5", "--train-between", "22:00-06:00"),
)
LEFT_OUT = ("onnxruntime", "numpy", "protobuf")
"""Without a runtime the packages are installed in a second; the agent misses it when it has found its broker."""

WITHOUT_SYSTEMD = {
    "systemctl": "exit 1",
    "crontab": 'cd "$HOME/.."; touch crontab; if [ "$1" = -l ]; then cat crontab; else cat > new; mv new crontab; fi',
}


@pytest.fixture
def identity(tmp_path: Path) -> Path:
    Authority.create(tmp_path / "identity").close()
    return tmp_path / "identity"


def no_wheels(folder: Path) -> Wheelhouse:
    """A wheelhouse of two files that hold nothing."""
    folder.mkdir()
    digests = {}
    for name in ("pip-1-py3-none-any.whl", "apportion-1-py3-none-any.whl"):
        (folder / name).write_bytes(name.encode())
        digests[name] = hashlib.sha256(name.encode()).hexdigest()
    return Wheelhouse(folder, digests, "e" * 64, 40, 400)


def script(folder: Path, identity: Path, *, link: str = "", facts: HostFacts | None = None) -> InstallScript:
    wheels = no_wheels(folder / "wheelhouse")
    return InstallScript(PI, facts or facts_of("aarch64", "3.11", "2.36"), wheels, identity, link)


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_script_is_shell_whatever_the_shell(tmp_path: Path, identity: Path, shell: str) -> None:
    path = script(tmp_path, identity).write(tmp_path / "out")
    assert subprocess.run([shell, "-n", str(path)], check=False).returncode == 0
    assert path.stat().st_mode & 0o777 == 0o700


def test_script_can_be_read_and_needs_neither_root_nor_a_network(tmp_path: Path, identity: Path) -> None:
    text = script(tmp_path, identity).text()
    head = text.partition("set -eu")[0]
    assert head.startswith("#!/bin/sh\n# Makes this machine the device 'pi-07' of the federation 'demo'.\n")
    for words in ("--remove", "aarch64, Python 3.11, glibc 2.36 or newer", "~/.apportion/pi-07"):
        assert words in head
    functions = re.findall(r"^# (.+)\n(\w+)\(\) ?[({]$", text, re.MULTILINE)
    assert len(functions) == 15, functions  # each says what it is for
    code = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    assert re.findall(r"^\s*(?:sudo|curl|wget|eval|base64)\b", code, re.MULTILINE) == []
    # Its steps are those of provisioning over SSH, to the letter.
    for step in (
        commands.make_folder(PI),
        commands.make_request(PI),
        service.install_service(PI, "systemd"),
        service.install_service(PI, "script"),
        service.remove_all(PI),
    ):
        assert step.rstrip() in text


def test_folder_has_all_that_is_needed_and_nothing_of_an_earlier_release(tmp_path: Path, identity: Path) -> None:
    made = script(tmp_path, identity)
    (tmp_path / "out" / "wheels").mkdir(parents=True)
    (tmp_path / "out" / "wheels" / "old-1-py3-none-any.whl").write_bytes(b"old")
    made.write(tmp_path / "out")
    assert sorted(str(p.relative_to(tmp_path / "out")) for p in (tmp_path / "out").rglob("*") if p.is_file()) == [
        "ca.pem",
        "install.sh",
        "signing.pub",
        "wheels/apportion-1-py3-none-any.whl",
        "wheels/pip-1-py3-none-any.whl",
    ]
    assert (tmp_path / "out" / "ca.pem").read_bytes() == (identity / "ca.pem").read_bytes()
    secrets = [(identity / name).read_text().splitlines()[1] for name in ("ca.key", "signing.key")]
    assert not any(secret in (tmp_path / "out" / "install.sh").read_text() for secret in secrets)


def test_claim_link_is_in_the_script_and_told_of(tmp_path: Path, identity: Path) -> None:
    link = "https://coord.local:8443/join#d=pi-07&t=0123456789abcdef." + "x" * 43 + "&p=" + "y" * 43
    text = script(tmp_path, identity, link=link).text()
    assert f"printf '%s\\n' '{link}' | environment/bin/python -m edge enrol - --out identity" in text
    assert "It holds a claim token" in text.partition("set -eu")[0]
    (tmp_path / "without").mkdir()
    assert "claim token" not in script(tmp_path / "without", identity).text()


@pytest.mark.parametrize(
    ("machine", "python", "glibc", "words"),
    [
        ("armv7l", "3.11", "2.36", "--machine: 'armv7l' is not one of aarch64, x86_64"),
        ("aarch64", "3.9", "2.36", "--python: '3.9' is not one of 3.11, 3.12, 3.13, 3.14"),
        ("aarch64", "three", "2.36", "--python: 'three'"),
        ("aarch64", "3.11", "musl", "--glibc: 'musl' is not a version such as 2.36"),
    ],
)
def test_machine_that_nothing_is_built_for_is_refused(machine: str, python: str, glibc: str, words: str) -> None:
    with pytest.raises(ConfigError) as error:
        facts_of(machine, python, glibc)
    assert words in str(error.value)
    assert "uname -m" in error.value.hint


class Home:
    """An empty home folder in which the script is run."""

    def __init__(self, folder: Path, install: Path) -> None:
        self.home, self.install = folder / "home", install
        self.home.mkdir()

    def run(self, *arguments: str, status: int = 0, **programs: str) -> str:
        """What it prints, on both; ``programs`` are found first."""
        first = self.home.with_name("programs")
        first.mkdir(exist_ok=True)
        for old in first.iterdir():
            old.unlink()
        for name, text in programs.items():
            (first / name).write_text(f"#!/bin/sh\n{text}\n")
            (first / name).chmod(0o755)
        path = os.pathsep.join([str(first), f"{sys.base_prefix}/bin", "/usr/bin", "/bin"])
        done = subprocess.run(
            ["sh", str(self.install), *arguments],
            env={"HOME": str(self.home), "PATH": path, "XDG_RUNTIME_DIR": str(first)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout + done.stderr


def here(glibc: str = "2.28") -> HostFacts:
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    return facts_of(os.uname().machine, version, glibc)


def test_wrong_machine_is_told_and_left_as_it_was(tmp_path: Path, identity: Path) -> None:
    home = Home(tmp_path, script(tmp_path, identity, facts=here()).write(tmp_path / "out"))
    bad = {
        "this machine is armv7l, the packages are for": {"uname": "echo armv7l"},
        "the system here is 32-bit": {"getconf": "echo 32"},
        "the C library here is glibc 2.27: have the script made with --glibc 2.27": {
            "getconf": 'if [ "$1" = LONG_BIT ]; then echo 64; else echo glibc 2.27; fi'
        },
        "the C library here is not glibc": {"getconf": 'if [ "$1" = LONG_BIT ]; then echo 64; else exit 1; fi'},
        "1 MB are free": {"df": "echo Filesystem; echo none 1 1 2000 1% /"},
    }
    for words, programs in bad.items():
        assert words in home.run(status=1, **programs)
        assert listing(home.home) == {}
    assert "usage: sh" in home.run("--what", status=2)


def test_packages_that_are_not_whole_are_not_installed(tmp_path: Path, identity: Path) -> None:
    install = script(tmp_path, identity, facts=here()).write(tmp_path / "out")
    (tmp_path / "out" / "wheels" / "pip-1-py3-none-any.whl").write_bytes(b"damaged")
    told = Home(tmp_path, install).run(status=1)
    assert "not whole beside this script: missing pip-1-py3-none-any.whl" in told


@pytest.fixture
def few_wheels(tmp_path: Path) -> Wheelhouse:
    """What the supervisor needs, for this machine; skips where no index can be reached."""
    try:
        whole = build_wheelhouse(tmp_path / "cache", here("2.36"), "onnxruntime")
    except WheelsUnavailable as reason:
        pytest.skip(f"no wheels can be fetched: {reason}")
    left = {name: digest for name, digest in whole.digests.items() if not name.startswith(LEFT_OUT)}
    return replace(whole, digests=left, release="f" * 64)


@pytest.fixture
def home(tmp_path: Path, identity: Path, few_wheels: Wheelhouse) -> Iterator[Home]:
    install = InstallScript(PI, here("2.36"), few_wheels, identity).write(tmp_path / "out")
    home = Home(tmp_path, install)
    try:
        yield home
    finally:
        home.run("--remove", **WITHOUT_SYSTEMD)


@pytest.mark.slow
def test_script_makes_a_device_in_an_empty_home_and_undoes_it(home: Home, identity: Path, tmp_path: Path) -> None:
    (home.home / "my images").mkdir()
    before = listing(home.home)
    told = home.run(status=10, **WITHOUT_SYSTEMD)
    assert f"apportion ca sign pi-07.csr --device pi-07 --dir {identity}" in told
    folder = home.home / ".apportion/pi-07"
    assert (folder / "identity/device.key").stat().st_mode & 0o777 == 0o600
    request = (home.install.parent / "pi-07.csr").read_bytes()
    with Authority(identity) as authority:
        issued = authority.sign_device(request, "pi-07")
    (home.install.parent / "pi-07.pem").write_bytes((identity / "ca.pem").read_bytes())
    assert "pi-07.pem is not for this device's key" in home.run(status=1, **WITHOUT_SYSTEMD)
    (home.install.parent / "pi-07.pem").write_bytes(issued.path.read_bytes())
    told = home.run(**WITHOUT_SYSTEMD)
    assert re.search(r"^certificate +done", told, re.MULTILINE)
    assert re.search(r"^environment +as it was", told, re.MULTILINE)
    assert "it finds no broker yet, and is started again until it does" in told
    assert "'pi-07' runs. At the coordinator: apportion device probe pi-07" in told
    assert subprocess.run(["sh", str(folder / "run-agent"), "status"], env={"HOME": str(home.home)}).returncode == 0
    assert "--train-between 22:00-06:00" in (folder / "start-agent").read_text()
    assert "run-agent start # apportion-pi-07;" in (tmp_path / "crontab").read_text()
    again = home.run(**WITHOUT_SYSTEMD)
    assert re.findall(r"^(\w+) +done", again, re.MULTILINE) == []
    assert "removed folder" in home.run("--remove", **WITHOUT_SYSTEMD)
    assert listing(home.home) == before
    assert (tmp_path / "crontab").read_text() == ""
