"""What a host is, found in one command that changes nothing there, and whether a device can be made of it."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from coordinator.fleet.host import CommandFailed, Host, HostUnfit
from coordinator.fleet.installation import Installation, home_path
from edge.contracts.release import PYTHON_RANGE, PYTHONS

MACHINES = ("aarch64", "x86_64")
OLDEST_GLIBC = (2, 28)
"""Of the wheels: a runtime's are built for 2.28, NumPy's for 2.27 (releases of 2026-11)."""

SPARE_BYTES = 64 * 2**20
"""Left free for the agent's store and log, beside what is installed."""

SEARCHED = 'PATH="$PATH:$HOME/.local/bin"'
PYTHON_NAMES = " ".join(("python3", *(f"python{major}.{minor}" for major, minor in reversed(PYTHONS))))
"""Commands that are looked for, in this order: the system's own, then the newest."""

_USABLE = "|".join(f"{major}.{minor}.*';64;1;'*" for major, minor in PYTHONS)

_TELL_PYTHON = """\
import os, struct, sys, sysconfig
try:
    import ssl, venv
    whole = 1
except ImportError:
    whole = 0
abi = sysconfig.get_config_var("SOABI") or ""
try:
    libc = os.confstr("CS_GNU_LIBC_VERSION") or ""
except (ValueError, OSError):
    libc = ""
if "musl" in abi:
    libc = "musl"
elif hasattr(sys, "getandroidapilevel"):
    libc = "bionic"
version = "%d.%d.%d" % sys.version_info[:3]
sys.stdout.write("%s;%d;%d;%s;%s" % (version, struct.calcsize("P") * 8, whole, libc, sys.executable))
"""

_PROBE = f"""\
{SEARCHED}
say() {{ printf '%s=%s\\n' "$1" "$2"; }}
say machine "$(uname -m)"
say elf "$(od -An -tx1 -N5 /bin/sh 2>/dev/null | tr -d ' \\n')"
say libc "$(getconf GNU_LIBC_VERSION 2>/dev/null)"
for loader in /lib/ld-musl-*; do [ -e "$loader" ] && say musl "$loader"; done
[ -e /system/bin/linker64 ] && say android yes
[ -n "${{TERMUX_VERSION:-}}" ] && say termux "$TERMUX_VERSION"
case "${{PREFIX:-}}" in */com.termux/*) say termux "$PREFIX" ;; esac
for name in {PYTHON_NAMES}; do
  found=$(command -v "$name" 2>/dev/null) || continue
  told=$("$found" -S -c {shlex.quote(_TELL_PYTHON)} 2>/dev/null) || continue
  say python "$told"
  case "$told" in {_USABLE}) break ;; esac
done
say home "$HOME"
say uid "$(id -u)"
place=FOLDER
say standing "$([ -e "$place" ] && echo yes)"
say owner "$(sed -n 1p "$place/installation" 2>/dev/null)"
say installed "$(cat "$place/environment/release" 2>/dev/null)"
while [ ! -d "$place" ]; do place=$(dirname "$place"); done
say free_kib "$(df -Pk "$place" 2>/dev/null | awk 'NR > 1 {{print $(NF - 2)}}')"
if [ -z "${{XDG_RUNTIME_DIR:-}}" ] && [ -d "/run/user/$(id -u)" ]; then export XDG_RUNTIME_DIR="/run/user/$(id -u)"; fi
systemctl --user show-environment >/dev/null 2>&1 && say init systemd
for name in crontab setsid nohup sha256sum; do command -v "$name" >/dev/null 2>&1 && say program "$name"; done
say done yes
"""


@dataclass(frozen=True, kw_only=True)
class FoundPython:
    """An interpreter on the host.

    Attributes:
        is_whole: ``venv`` and ``ssl`` are there.
        libc: ``glibc 2.36``, ``musl``, ``bionic``; empty when it does not say.
    """

    path: str
    version: tuple[int, int, int]
    bits: int
    is_whole: bool
    libc: str

    @property
    def is_usable(self) -> bool:
        """Whether the agent can run with it."""
        return self.version[:2] in PYTHONS and self.bits == 64 and self.is_whole

    def __str__(self) -> str:
        """Version and path, for messages."""
        return f"{'.'.join(map(str, self.version))} at {self.path}"


@dataclass(frozen=True, kw_only=True)
class HostFacts:
    """A host as it was found.

    Attributes:
        machine: ``uname -m``; of the kernel.
        bits: of the programs, which the kernel need not share.
        libc: ``glibc``, ``musl``, ``bionic``, or empty.
        libc_version: of glibc, else (0, 0).
        python: the one to use, None when there is none that can be.
        pythons: those that were looked at; the search ends with one that can be used.
        free_bytes: where the folder is or will be.
        init: ``systemd`` when this user's services are run by one, else ``none``.
        programs: those of crontab, setsid, nohup and sha256sum that are there.
        home: absolute.
        has_folder: whether the installation's folder is there.
        owner: id of the device it belongs to; empty when it is no installation.
        installed: digest of the release in use; empty when there is none.
    """

    machine: str
    bits: int
    libc: str
    libc_version: tuple[int, int]
    python: FoundPython | None
    pythons: tuple[FoundPython, ...]
    free_bytes: int
    init: str
    programs: frozenset[str]
    is_termux: bool
    is_root: bool
    home: str
    has_folder: bool
    owner: str
    installed: str


async def probe_host(host: Host, folder: str = "") -> HostFacts:
    """The facts, in one round trip.

    Args:
        folder: of the installation; empty: there is none to look for.

    Raises:
        HostLost: the connection ended.
        CommandFailed: what came back is not from a POSIX shell.
    """
    done = await host.run(_PROBE.replace("FOLDER", home_path(folder) if folder else '"$HOME"'))
    values: dict[str, list[str]] = {}
    for line in done.stdout.splitlines():
        key, _, value = line.partition("=")
        values.setdefault(key, []).append(value.strip())
    if "done" not in values:
        last = (done.stderr or done.stdout).strip()[-300:]
        raise CommandFailed(
            f"{host.name}: no POSIX shell answers there (exit status {done.status}): {last or 'it says nothing'}",
            hint=f"try: ssh {host.name} uname -m",
        )
    first = {key: found[0] for key, found in values.items()}
    pythons = tuple(python for line in values.get("python", []) if (python := _python(line)))
    best = next((python for python in pythons if python.is_usable), None)
    libc, version = _libc(first, best or (pythons[0] if pythons else None))
    return HostFacts(
        machine=first.get("machine", ""),
        bits=best.bits if best else {"7f454c4601": 32, "7f454c4602": 64}.get(first.get("elf", ""), 64),
        libc=libc,
        libc_version=version,
        python=best,
        pythons=pythons,
        free_bytes=_number(first.get("free_kib", "")) * 1024,
        init=first.get("init", "none"),
        programs=frozenset(values.get("program", [])),
        is_termux="termux" in first,
        is_root=first.get("uid") == "0",
        home=first.get("home", ""),
        has_folder=bool(folder) and first.get("standing") == "yes",
        owner=first.get("owner", "") if folder else "",
        installed=first.get("installed", "") if folder else "",
    )


def require_fit(facts: HostFacts, installation: Installation, needed_bytes: int) -> None:
    """Check that a device can be made of the host.

    Args:
        needed_bytes: what will be copied and installed; 0 when that is not known yet.

    Raises:
        HostUnfit: what is in the way, and the next step; nothing was changed there.
    """
    # A kernel of 64 bits under a system of 32 is what older Raspberry Pi OS images have.
    if facts.bits == 32 or facts.machine in ("armv6l", "armv7l", "armv8l", "i686", "i386"):
        raise HostUnfit(
            f"the system on it is 32-bit (programs of {facts.bits} bits, kernel {facts.machine}): no training runtime "
            "is built for that",
            hint="write a 64-bit system to its card, such as Raspberry Pi OS (64-bit); a Pi Zero 2 W, 3, 4, 5 runs it",
        )
    if facts.machine not in MACHINES:
        raise HostUnfit(
            f"its processor is {facts.machine or 'not known'}; wheels are there for {' and '.join(MACHINES)}",
            hint="use a 64-bit ARM or x86 machine",
        )
    if facts.libc in ("musl", "bionic"):
        system, instead = {
            "musl": ("Alpine or another system on musl", "use a system on glibc, such as Debian or Raspberry Pi OS"),
            "bionic": (
                "Android itself",
                "install Debian beside it: in Termux, `pkg install proot-distro && proot-distro install debian`, "
                "or use the Linux terminal of Android 15",
            ),
        }[facts.libc]
        raise HostUnfit(f"its C library is {facts.libc} ({system}): the wheels are for glibc", hint=instead)
    if facts.libc_version < OLDEST_GLIBC:
        found, oldest = ".".join(map(str, facts.libc_version)), ".".join(map(str, OLDEST_GLIBC))
        raise HostUnfit(
            f"its C library is glibc {found if any(facts.libc_version) else 'of an unknown version'}; "
            f"the wheels need {oldest} or newer",
            hint="upgrade its system: Debian 10, Ubuntu 18.10, Raspberry Pi OS of 2019 are the first with it",
        )
    if facts.python is None:
        raise HostUnfit(_python_missing(facts.pythons), hint=_python_hint(facts.pythons))
    if "sha256sum" not in facts.programs:
        raise HostUnfit(
            "it has no sha256sum, by which copies are checked", hint="install coreutils, or a busybox with it"
        )
    if facts.has_folder and facts.owner != installation.device:
        whose = f"belongs to the device '{facts.owner}'" if facts.owner else "is there and is no installation of ours"
        raise HostUnfit(
            f"the folder {installation.folder} on it {whose}; nothing was changed",
            hint="give another --folder, or move that one away",
        )
    if facts.free_bytes < needed_bytes + (SPARE_BYTES if needed_bytes else 0):
        raise HostUnfit(
            f"{facts.free_bytes / 2**20:.0f} MB are free at {installation.folder}, "
            f"{(needed_bytes + SPARE_BYTES) / 2**20:.0f} MB are needed",
            hint="free some space there, or give a --folder on another disk",
        )


_NEWEST = "{}.{}".format(*PYTHONS[-1])


def _python_hint(pythons: tuple[FoundPython, ...]) -> str:
    if pythons and all(python.version[:2] > PYTHONS[-1] for python in pythons):
        return (
            f"put {_NEWEST} beside it, which needs no rights: install uv there, then `uv python install {_NEWEST}`; "
            "add the device again, or see whether a later release of apportion knows that Python"
        )
    return (
        "sudo apt install python3 python3-venv (Debian and Raspberry Pi OS: bookworm has 3.11, trixie 3.13; Ubuntu "
        f"24.04 has 3.12); or, on any system that has uv: uv python install {_NEWEST}"
    )


def _python_missing(pythons: tuple[FoundPython, ...]) -> str:
    if not pythons:
        return f"it has no Python; {PYTHON_RANGE} is needed"
    fitting = [python for python in pythons if python.version[:2] in PYTHONS]
    reasons = [f"{p} is 32-bit" if p.bits != 64 else f"{p} lacks venv or ssl" for p in fitting]
    found = "; ".join(reasons or sorted({str(python) for python in pythons}))
    if all(python.version[:2] > PYTHONS[-1] for python in pythons):
        return f"its Python is newer than this release knows: found {found}; {PYTHON_RANGE} is needed"
    return f"it has no usable Python: found {found}; {PYTHON_RANGE} with venv, in 64 bits, is needed"


def _python(line: str) -> FoundPython | None:
    words = line.split(";", 4)
    if len(words) < 5:
        return None
    version, bits, whole, libc, path = words
    major, minor, micro = (*(_number(part) for part in version.split(".")), 0, 0, 0)[:3]
    return FoundPython(path=path, version=(major, minor, micro), bits=_number(bits), is_whole=whole == "1", libc=libc)


def _libc(first: dict[str, str], python: FoundPython | None) -> tuple[str, tuple[int, int]]:
    """What the interpreter is linked with; without one, what the system has."""
    told = python.libc if python and python.libc else first.get("libc", "")
    kind, _, version = told.partition(" ")
    if kind == "glibc":
        major, minor = (*(_number(part) for part in version.split(".")), 0, 0)[:2]
        return "glibc", (major, minor)
    if kind in ("musl", "bionic"):
        return kind, (0, 0)
    if "musl" in first:
        return "musl", (0, 0)
    return ("bionic", (0, 0)) if "android" in first else ("", (0, 0))


def _number(text: str) -> int:
    return int(text) if text.isdecimal() else 0
