"""Provisioning as one shell script, for a machine that nobody can log in to from here: to read, then to run there.

Its steps are the texts that provisioning runs over SSH (:mod:`coordinator.fleet.commands`,
:mod:`coordinator.fleet.service`), each a function of the script. Beside it lie the wheels; nothing is downloaded on the
machine. It may be run again and goes on where it stopped; ``--remove`` undoes it.
"""

from __future__ import annotations

import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path

from coordinator.fleet import commands
from coordinator.fleet.facts import MACHINES, SPARE_BYTES, FoundPython, HostFacts
from coordinator.fleet.installation import Installation, home_path
from coordinator.fleet.service import SESSION, install_service, remove_all, show_log, start_service, stop_service
from coordinator.fleet.wheelhouse import Wheelhouse
from coordinator.identity.folder import PUBLIC, IdentityFolder, write_file
from edge.contracts.errors import ConfigError
from edge.contracts.release import PYTHONS

NAME = "install.sh"
PRIVATE_PROGRAM = 0o700

_SECRET = "#\n# It holds a claim token: whoever has this file can enrol as this device, once.\n"


def facts_of(machine: str, python: str, glibc: str) -> HostFacts:
    """The facts of a machine that is not at hand, from ``aarch64``, ``3.11`` and ``2.36``.

    Raises:
        ConfigError: no wheels are there for such a one.
    """
    problems = []
    if machine not in MACHINES:
        problems.append(f"--machine: {machine!r} is not one of {', '.join(MACHINES)}")
    version, libc = _version(python), _version(glibc)
    if version not in PYTHONS:
        known = ", ".join(f"{major}.{minor}" for major, minor in PYTHONS)
        problems.append(f"--python: {python!r} is not one of {known}")
    if libc is None or libc[0] != 2:
        problems.append(f"--glibc: {glibc!r} is not a version such as 2.36")
    if problems or version is None or libc is None:
        raise ConfigError(problems, hint="on the machine: uname -m; python3 --version; getconf GNU_LIBC_VERSION")
    found = FoundPython(path="python3", version=(*version, 0), bits=64, is_whole=True, libc=f"glibc {glibc}")
    return HostFacts(
        machine=machine,
        bits=64,
        libc="glibc",
        libc_version=libc,
        python=found,
        pythons=(found,),
        free_bytes=2**62,
        init="none",
        programs=frozenset(),
        is_termux=False,
        is_root=False,
        home="",
        has_folder=False,
        owner="",
        installed="",
    )


@dataclass(frozen=True)
class InstallScript:
    """What the script installs, and for which machines.

    Attributes:
        link: a claim link that the script enrols with; empty: it shows what to do with its request instead.
    """

    installation: Installation
    facts: HostFacts
    wheels: Wheelhouse
    identity: Path
    link: str = ""

    def write(self, folder: Path) -> Path:
        """The script, in ``folder``, with all that it needs; what was there of an earlier one is replaced."""
        files = IdentityFolder(self.identity)
        (folder / "wheels").mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)
        for old in (folder / "wheels").glob("*.whl"):
            if old.name not in self.wheels.digests:
                old.unlink()
        for name in self.wheels.digests:
            shutil.copyfile(self.wheels.folder / name, folder / "wheels" / name)
        for path in (files.ca, files.signing_public):
            write_file(folder / path.name, path.read_bytes(), PUBLIC)
        write_file(folder / NAME, self.text().encode(), PRIVATE_PROGRAM)
        return folder / NAME

    def text(self) -> str:
        """The script."""
        parts = [self._head(), _FRAME.replace("@WANTS@", str(WANTS_CERTIFICATE))]
        for name, why, text in self._steps():
            opening = "" if text.startswith("set -eu") else "set -eu\n"
            parts.append(f"# {why}\n{name}() (\n{opening}{text.rstrip()}\n)\n")
        parts.append(self._course())
        return "\n".join(parts)

    def _head(self) -> str:
        made, facts = self.installation, self.facts
        size, installed = self.wheels.packed_bytes / 2**20, self.wheels.unpacked_bytes / 2**20
        python, glibc = _dotted(facts.python.version[:2] if facts.python else ()), _dotted(facts.libc_version)
        return f"""\
#!/bin/sh
# Makes this machine the device '{made.device}' of the federation '{made.federation}'.
#
#   sh {NAME}            install, or go on where it stopped
#   sh {NAME} --remove   stop the agent and remove all of it again; your data stays
#
# For {facts.machine}, Python {python}, glibc {glibc} or newer. It needs no root and downloads nothing:
# {size:.0f} MB of packages are in wheels/ beside it. They take {installed:.0f} MB in {_shown(made.folder)}, where this
# device's key is made and stays, and from where its agent runs as a service of this user. Nothing else
# is changed.
{_SECRET if self.link else ""}
set -eu
umask 077
here=$(cd "$(dirname "$0")" && pwd)
device={shlex.quote(made.device)}
folder={home_path(made.folder)}
"""

    def _steps(self) -> list[tuple[str, str, str]]:
        """Name, comment and text of each function, in the order in which they are run."""
        made, wheels = self.installation, self.wheels
        files = IdentityFolder(self.identity)
        python = self.facts.python.version[:2] if self.facts.python else (0, 0)
        environment = commands.make_environment(made, tuple(wheels.digests), wheels.release)
        keep, unit = "script", "systemd"
        return [
            ("fit", "Is it the machine that the packages are for, and is there space? Changes nothing.", self._fit()),
            ("make_folder", "The folder, and a record of what was made, for --remove.", commands.make_folder(made)),
            ("copy_wheels", "The packages, each checked by its SHA-256.", self._copy_wheels()),
            (
                "make_environment",
                "A Python environment of its own, taken into use when it is whole.",
                commands.find_python([python]) + environment,
            ),
            (
                "make_request",
                "The device's key, which never leaves it, and a request for its certificate.",
                commands.make_request(made),
            ),
            ("enrol", "Its certificate.", self._enrol()),
            (
                "trust",
                "The root that certifies the broker, and the key that signs orders.",
                commands.write_text(made, "identity/ca.pem", files.ca.read_text())
                + commands.write_text(made, "identity/signing.pub", files.signing_public.read_text()),
            ),
            ("stop_agent", "Before it is started with what has changed.", stop_service(made)),
            ("install_unit", "With systemd: a unit of this user.", install_service(made, unit)),
            ("start_unit", "Its start.", start_service(made, unit, restart=False)),
            ("install_keeper", "Without: a script that starts the agent again.", install_service(made, keep)),
            ("start_keeper", "Its start.", start_service(made, keep, restart=False)),
            ("log", "The end of the agent's log.", show_log(made, 8)),
            ("clear", "Environments of earlier releases.", commands.drop_old_environments(made)),
            ("remove", "With --remove.", remove_all(made)),
        ]

    def _fit(self) -> str:
        facts = self.facts
        needed = (self.wheels.needed_bytes + SPARE_BYTES) // 1024
        major, minor = facts.libc_version
        return f"""\
sorry() {{ echo "$1" >&2; exit 1; }}
machine=$(uname -m)
if [ "$machine" != {facts.machine} ]; then
  sorry "this machine is $machine, the packages are for {facts.machine}: have the script made with --machine $machine"
fi
if [ "$(getconf LONG_BIT 2>/dev/null || echo 64)" != 64 ]; then
  sorry "the system here is 32-bit: write a 64-bit one to the card"
fi
libc=$(getconf GNU_LIBC_VERSION 2>/dev/null || echo "not glibc")
case "$libc" in
  "glibc {major}."*) ;;
  *) sorry "the C library here is $libc: the packages are for glibc (Debian, Raspberry Pi OS)" ;;
esac
if [ "${{libc#glibc {major}.}}" -lt {minor} ]; then
  sorry "the C library here is $libc: have the script made with --glibc ${{libc#glibc }}"
fi
place=$folder
while [ ! -d "$place" ]; do place=$(dirname "$place"); done
free=$(df -Pk "$place" | awk 'NR > 1 {{print $(NF - 2)}}')
if [ ! -e "$folder/environment" ] && [ "$free" -lt {needed} ]; then
  sorry "$((free / 1024)) MB are free at $place, {needed // 1024} MB are needed"
fi
echo fits
"""

    def _copy_wheels(self) -> str:
        check = commands.check_wheels(self.installation, self.wheels.digests)
        return f"""\
if [ "$(cat "$folder/environment/release" 2>/dev/null || true)" = {self.wheels.release} ]; then exit 0; fi
cp "$here"/wheels/*.whl "$folder/wheels/"
echo {commands.CHANGED}
missing=$( (
{check.rstrip()}
) )
if [ -n "$missing" ]; then echo "not whole beside this script: $missing" >&2; exit 1; fi
"""

    def _enrol(self) -> str:
        check = shlex.quote(_CHECK_CERTIFICATE)
        taken = f"""\
cd "$folder"
is_ours() {{ environment/bin/python -c {check} "$1" identity/device.key 2>/dev/null; }}
if [ -f identity/device.pem ] && is_ours identity/device.pem; then exit 0; fi
if [ -f "$here/$device.pem" ]; then
  is_ours "$here/$device.pem" || {{ echo "$here/$device.pem is not for this device's key" >&2; exit 1; }}
  cp "$here/$device.pem" identity/device.pem
  echo {commands.CHANGED}
  exit 0
fi
"""
        if self.link:
            # printf is the shell's own: the link is in no process's arguments.
            words = f"printf '%s\\n' {shlex.quote(self.link)} | environment/bin/python -m edge enrol - --out identity"
            return taken + f"{words} >/dev/null\necho {commands.CHANGED}\n"
        return taken + f"exit {WANTS_CERTIFICATE}\n"

    def _course(self) -> str:
        text = _COURSE.replace("@SESSION@", SESSION.rstrip()).replace("@FOLDER@", _shown(self.installation.folder))
        return text.replace("@IDENTITY@", shlex.quote(str(self.identity)))


WANTS_CERTIFICATE = 10
"""Exit status of the enrolment, and of the script, when the authority has to sign the request first."""

_CHECK_CERTIFICATE = """\
import sys
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509 import load_pem_x509_certificate
certificate, key = (open(path, "rb").read() for path in sys.argv[1:])
sys.exit(load_pem_x509_certificate(certificate).public_key() != load_pem_private_key(key, None).public_key())
"""

_FRAME = """\
# Runs one step: its name, then 'done' or 'as it was' and the seconds, then what its owner should know.
changed='' status=0 told=''
step() {
  printf '%-14s' "$1"
  begun=$(date +%s)
  set +e
  told=$("$2")
  status=$?
  set -e
  case "$status" in
    0) ;;
    @WANTS@) echo 'wanted'; return ;;
    *) echo 'stopped'; exit "$status" ;;
  esac
  case "$told" in
    fits) result='fits' ;;
    *changed*) changed=1; result='done' ;;
    *) result='as it was' ;;
  esac
  printf '%-10s %4s s\\n' "$result" "$(($(date +%s) - begun))"
  printf '%s\\n' "$told" | sed -n 's/^note /  /p'
}
"""

_COURSE = """\
if [ "${1:-}" = --remove ]; then remove; exit; fi
if [ "$#" -ne 0 ]; then echo "usage: sh $0 [--remove]" >&2; exit 2; fi

step 'this machine' fit
step 'folder' make_folder
step 'packages' copy_wheels
step 'environment' make_environment
step 'key' make_request
step 'certificate' enrol
if [ "$status" -ne 0 ]; then
  cp "$folder/identity/device.csr" "$here/$device.csr" 2>/dev/null || true
  cat <<END

The authority has to certify this device; its request is
  @FOLDER@/identity/device.csr   (and $device.csr beside this script)
With that file, at the coordinator:
  apportion ca sign $device.csr --device $device --dir @IDENTITY@
Put the certificate that this makes, devices/$device.pem of the identity, beside this script, and go on:
  sh $0
END
  exit "$status"
fi
step 'trust' trust
@SESSION@
if systemctl --user show-environment >/dev/null 2>&1; then kind=unit; else kind=keeper; fi
step 'service' install_$kind
if [ -n "$changed" ]; then stop_agent; fi
step 'start' start_$kind
case "$told" in
  *alive*) ;;
  *'ended 3'* | *'ended 4'*) echo '  it finds no broker yet, and is started again until it does' ;;
  *)
    echo 'the agent ended at once; it says:' >&2
    log >&2
    exit 1 ;;
esac
step 'clear' clear
echo "'$device' runs. At the coordinator: apportion device probe $device"
"""


def _version(text: str) -> tuple[int, int] | None:
    parts = text.split(".")
    if len(parts) < 2 or not all(part.isdecimal() for part in parts[:2]):
        return None
    return int(parts[0]), int(parts[1])


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def _shown(folder: str) -> str:
    return folder if folder.startswith("/") else f"~/{folder}"
