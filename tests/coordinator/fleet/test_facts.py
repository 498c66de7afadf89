"""Hosts that cannot become devices: each is told by its values and the next step, and is left as it was."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from coordinator.fleet.facts import PYTHON_NAMES, SPARE_BYTES, HostFacts, probe_host, require_fit
from coordinator.fleet.host import CommandFailed, HostUnfit
from coordinator.fleet.installation import Installation
from tests.coordinator.fleet.local_host import LocalHost
from tests.coordinator.fleet.ssh_server import listing

INSTALLATION = Installation(device="pi-07", federation="demo", broker_url="mqtts://broker.local", data="images")
ELF_32, ELF_64 = "echo ' 7f 45 4c 46 01'", "echo ' 7f 45 4c 46 02'"


def told(version: str = "3.11.2", *, bits: int = 64, whole: int = 1, libc: str = "glibc 2.36") -> str:
    """A program that says what a Python says of itself when it is asked."""
    name = f"python{version.rpartition('.')[0]}"
    return f"echo '{version};{bits};{whole};{libc};/usr/bin/{name}'"


@dataclass(frozen=True)
class Unfit:
    """A host, by programs in place of its own, and words of the message and the hint."""

    programs: dict[str, str]
    message: str
    hint: str
    needed_bytes: int = 0
    folders: dict[str, str] = field(default_factory=dict)


PI = {"uname": "echo aarch64", "od": ELF_64, "python3": told()}
NO_OTHER = dict.fromkeys(PYTHON_NAMES.split()[1:], "exit 127")
UNFIT = {
    "a 32-bit system": Unfit(
        {"uname": "echo armv7l", "od": ELF_32, "python3": told(bits=32)}, "32-bit (programs of 32 bits", "64-bit system"
    ),
    "a 32-bit system on a 64-bit kernel": Unfit(
        {**PI, "od": ELF_32, "python3": told(bits=32)},
        "programs of 32 bits, kernel aarch64",
        "Raspberry Pi OS (64-bit)",
    ),
    "another processor": Unfit({**PI, "uname": "echo riscv64"}, "its processor is riscv64", "64-bit ARM or x86"),
    "an old glibc": Unfit({**PI, "python3": told(libc="glibc 2.24")}, "glibc 2.24; the wheels need 2.28", "upgrade"),
    "musl": Unfit({**PI, "python3": told(libc="musl")}, "its C library is musl (Alpine", "Debian"),
    "android": Unfit({**PI, "python3": told(libc="bionic")}, "its C library is bionic (Android", "proot-distro"),
    "no python": Unfit(
        {**PI, "python3": "exit 127", "getconf": "echo glibc 2.36"}, "it has no Python; 3.11 to 3.14", "apt"
    ),
    "an old python": Unfit({**PI, "python3": told("3.9.2")}, "found 3.9.2 at /usr/bin/python3.9; 3.11 to 3.14", "3.14"),
    "a new python": Unfit(
        {**PI, "python3": told("3.15.0"), **NO_OTHER},
        "newer than this release knows: found 3.15.0 at /usr/bin/python3.15; 3.11 to 3.14 is needed",
        "uv python install 3.14",
    ),
    "a python without venv": Unfit({**PI, "python3": told(whole=0)}, "lacks venv or ssl", "python3-venv"),
    "little space": Unfit(
        {**PI, "df": "echo head; echo /dev/root 99999 9999 102400 99% /"},
        "100 MB are free at .apportion/pi-07, 464 MB are needed",
        "free some space",
        needed_bytes=400 * 2**20,
    ),
    "no checksums": Unfit({**PI, "sha256sum": ""}, "it has no sha256sum", "coreutils"),
    "a folder of something else": Unfit(PI, "is there and is no installation", "--folder", folders={"notes": "mine"}),
    "a folder of another device": Unfit(
        PI, "belongs to the device 'pi-08'", "--folder", folders={"installation": "pi-08\n"}
    ),
}


@pytest.mark.parametrize("case", UNFIT)
def test_unfit_hosts_are_told_and_left_alone(tmp_path: Path, case: str) -> None:
    unfit, host = UNFIT[case], LocalHost(tmp_path / "home")
    for name, text in unfit.programs.items():
        host.add_program(name, text)
        if not text:
            (host.programs / name).unlink()
    for name, text in unfit.folders.items():
        (host.home / INSTALLATION.folder).mkdir(parents=True, exist_ok=True)
        (host.home / INSTALLATION.folder / name).write_text(text)
    before = listing(host.home)
    facts = asyncio.run(probe_host(host, INSTALLATION.folder))
    with pytest.raises(HostUnfit) as raised:
        require_fit(facts, INSTALLATION, unfit.needed_bytes)
    assert unfit.message in str(raised.value)
    assert unfit.hint in raised.value.hint
    assert (listing(host.home), host.calls) == (before, 1)


def test_a_pi_fits(tmp_path: Path) -> None:
    host = LocalHost(tmp_path / "home")
    for name, text in PI.items():
        host.add_program(name, text)
    facts = asyncio.run(probe_host(host, INSTALLATION.folder))
    require_fit(facts, INSTALLATION, 2**20)
    assert (facts.machine, facts.bits, facts.libc, facts.libc_version) == ("aarch64", 64, "glibc", (2, 36))
    assert (facts.init, facts.has_folder, facts.installed, facts.is_termux) == ("none", False, "", False)
    assert facts.home == str(host.home)
    assert facts.programs >= {"sha256sum"}


@pytest.mark.parametrize(
    "version", ["3.11.2", "3.13.5", "3.14.0"]
)  # Raspberry Pi OS bookworm's, trixie's, and the newest
def test_systems_of_these_pythons_are_taken_as_they_come(tmp_path: Path, version: str) -> None:
    host = LocalHost(tmp_path / "home")
    for name, text in {**PI, **NO_OTHER, "python3": told(version, libc="glibc 2.41")}.items():
        host.add_program(name, text)
    facts = asyncio.run(probe_host(host, INSTALLATION.folder))
    require_fit(facts, INSTALLATION, 2**20)
    assert facts.python is not None
    assert ".".join(map(str, facts.python.version)) == version


def test_the_first_usable_python_is_taken(tmp_path: Path) -> None:
    host = LocalHost(tmp_path / "home")
    for name, text in {**PI, "python3": told("3.15.1"), **NO_OTHER, "python3.12": told("3.12.3")}.items():
        host.add_program(name, text)
    facts = asyncio.run(probe_host(host))
    assert facts.python is not None
    assert (facts.python.version, facts.python.path) == ((3, 12, 3), "/usr/bin/python3.12")
    assert len(facts.pythons) == 2


def test_this_machine_is_seen_as_it_is(tmp_path: Path) -> None:
    facts: HostFacts = asyncio.run(probe_host(LocalHost(tmp_path / "home", python=Path(sys.executable).resolve())))
    assert facts.python is not None
    assert facts.python.version == sys.version_info[:3]
    assert facts.free_bytes > SPARE_BYTES


def test_what_answers_no_shell_lines_is_told(tmp_path: Path) -> None:
    host = LocalHost(tmp_path / "home")
    host.shell = "/bin/false"
    with pytest.raises(CommandFailed, match="no POSIX shell answers there"):
        asyncio.run(probe_host(host))
