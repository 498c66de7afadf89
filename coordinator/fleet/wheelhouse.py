"""The packages of a device as wheels for its processor, C library and Python, fetched here: a host needs no index.

``pip`` fetches them from wherever its configuration here says, of the releases that are installed here, so that both
sides run the same; of a package whose release here is not built for the host's Python, the newest that is. Our own
wheel is made here (:mod:`coordinator.fleet.device_wheel`).
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from coordinator.fleet.device_wheel import PROGRAM, requirements, write_device_wheel
from coordinator.fleet.facts import HostFacts
from coordinator.fleet.host import HostUnfit
from coordinator.fleet.native_wheels import PLACE as LIBRARY_PLACE
from coordinator.fleet.native_wheels import compiler_for, native_build, portable_library, slim_wheel
from edge.contracts.errors import ApportionError, ConfigError
from edge.runtimes import traits_of
from edge.runtimes.base import NativeBuild

OLDEST_GLIBC = 17
"""Minor version of the oldest glibc 2.x that wheels are tagged for."""

FETCH_S = 900.0
SESSION = "session"
_STAMP = "wheelhouse.json"
_NAME = re.compile(r"[A-Za-z0-9._-]+")
_OTHERS = "(it has other releases)"


class WheelsUnavailable(ApportionError):
    """The wheels cannot be fetched here: no index can be reached, or it has none for the host."""

    code = "wheels-unavailable"
    exit_code = 3


@dataclass(frozen=True)
class Wheelhouse:
    """A folder of wheels.

    Attributes:
        digests: file name -> SHA-256 of the file; pip's own wheel is among them.
        release: digest of them all, by which a host tells what it has.
        packed_bytes: of the files.
        unpacked_bytes: of what they install.
    """

    folder: Path
    digests: Mapping[str, str]
    release: str
    packed_bytes: int
    unpacked_bytes: int

    @property
    def needed_bytes(self) -> int:
        """What a host needs free to install it."""
        return self.packed_bytes + round(1.1 * self.unpacked_bytes)


def build_wheelhouse(
    folder: Path, facts: HostFacts, runtime: str, *, extras: Sequence[str] = ("images",)
) -> Wheelhouse:
    """The wheels for a host, below ``folder``; those of the same releases are fetched once.

    Args:
        facts: of a host that fits (:func:`coordinator.fleet.facts.require_fit`).
        extras: further extras of the device side; ``images`` is Pillow, 6 MB, which only folders of images need.

    Raises:
        WheelsUnavailable: pip is not here, or finds nothing.
        ConfigError: an unknown extra.
        HostUnfit: nothing is built for such a host.
        CompilerMissing: the runtime has a library that nothing here compiles for the host's processor.
    """
    if unknown := sorted(set(extras) - {"images"}):
        raise ConfigError([f"extras: {', '.join(unknown)} is not known to devices; there is images"])
    if facts.python is None:
        raise HostUnfit("it has no Python that can be used")
    python, minor = "{}.{}".format(*facts.python.version), facts.libc_version[1]
    required = _requirements(runtime, extras)
    wanted = _releases(required)
    stamped = dict(wanted)
    build, compiled = native_build(runtime), traits_of(runtime).distribution
    if build is not None:
        compiler_for(build, facts.machine)  # before anything is fetched for nothing
        stamped[SESSION] = build.portable_name(wanted[compiled].rpartition("=")[2])
    place = folder / "-".join((facts.machine, f"glibc2.{minor}", f"python{python}", runtime, *sorted(extras)))
    stamp = place / _STAMP
    platforms = [f"manylinux_2_{m}_{facts.machine}" for m in range(OLDEST_GLIBC, minor + 1)]
    platforms.append(f"manylinux2014_{facts.machine}")
    folder.mkdir(parents=True, exist_ok=True)
    with _alone(folder / f".{place.name}.lock"):
        fetched = _fetched(stamp, stamped)
        if not fetched:
            with _replaced(place) as unfinished:
                plain = {
                    asked: asked if name == compiled else required.get(name, asked)
                    for name, asked in wanted.items()
                    if build is None or name != compiled
                }
                _download_near(unfinished, plain, python, platforms)
                if build is not None:
                    _fetch_compiled(build, unfinished, wanted[compiled], python, platforms, facts)
                fetched = {path.name: _digest(path) for path in sorted(unfinished.glob("*.whl"))}
                (unfinished / _STAMP).write_text(json.dumps({"wanted": stamped, "digests": fetched}, indent=1))
        libraries = sorted([*place.glob("*.portable.so"), *place.glob(f"*.portable-*{PROGRAM}")])
        own = write_device_wheel(place, {f"{LIBRARY_PLACE}/{path.name}": path.read_bytes() for path in libraries})
    digests = {**fetched, own.name: _digest(own)}
    lines = "".join(f"{digest} {name}\n" for name, digest in sorted(digests.items()))
    return Wheelhouse(
        folder=place,
        digests=digests,
        release=hashlib.sha256(lines.encode()).hexdigest(),
        packed_bytes=sum((place / name).stat().st_size for name in digests),
        unpacked_bytes=sum(_unpacked(place / name) for name in digests if not name.startswith("pip-")),
    )


def _requirements(runtime: str, extras: Sequence[str]) -> dict[str, str]:
    """Name -> what this project requires of it on a device."""
    asked = [r for extra in ("", "identity", runtime, *extras) for r in requirements(extra)]
    named = {name[0]: requirement for requirement in asked if (name := _NAME.match(requirement))}
    # What exporters import of a runtime stays away from devices.
    return {name: requirement for name, requirement in named.items() if name != "torch"}


def _releases(required: Mapping[str, str]) -> dict[str, str]:
    """Name -> what pip is asked for: exactly what is installed here, or what this project requires."""
    wanted = {"pip": "pip"}
    for name, requirement in required.items():
        try:
            wanted[name] = f"{name}=={metadata.version(name).partition('+')[0]}"
        except metadata.PackageNotFoundError:
            wanted[name] = requirement
    return dict(sorted(wanted.items()))


def _fetched(stamp: Path, wanted: dict[str, str]) -> dict[str, str]:
    """File name -> digest of what an earlier call fetched, if it is that and still whole; else nothing."""
    try:
        kept = json.loads(stamp.read_text())
        digests: dict[str, str] = kept["digests"]
        if kept["wanted"] == wanted and all(_digest(stamp.parent / n) == d for n, d in digests.items()):
            return digests
    except (OSError, ValueError, KeyError):
        pass
    return {}


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """Several machines of one kind are provisioned together: one fetches, the others wait for it."""
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def _replaced(place: Path) -> Iterator[Path]:
    """A folder to fill that then is ``place``, which appears whole or stays as it was."""
    unfinished = Path(tempfile.mkdtemp(prefix=".wheels.", dir=place.parent))
    try:
        yield unfinished
        shutil.rmtree(place, ignore_errors=True)
        os.rename(unfinished, place)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _fetch_compiled(
    build: NativeBuild, place: Path, requirement: str, python: str, platforms: Sequence[str], facts: HostFacts
) -> None:
    """What a device needs of the wheel, and the session library compiled against it."""
    with tempfile.TemporaryDirectory(dir=place) as folder:
        _download(Path(folder), [requirement], python, platforms, flags=("--no-deps",))
        (whole,) = Path(folder).glob("*.whl")
        portable_library(build, whole, facts, place)
        slim_wheel(build, whole, place)


def _download_near(place: Path, wanted: Mapping[str, str], python: str, platforms: Sequence[str]) -> None:
    """Fetch what is asked for, or what will do instead where that release is not built for the host's Python.

    Args:
        wanted: what is asked for -> what will do instead; the same where nothing else will.

    Raises:
        WheelsUnavailable: as :func:`_download`.
    """
    asked = list(wanted)
    while True:
        try:
            return _download(place, asked, python, platforms)
        except WheelsUnavailable as error:
            missed = next((one for one in asked if f"requirement {one} {_OTHERS}" in str(error)), "")
            if wanted.get(missed, missed) == missed:
                raise
            asked[asked.index(missed)] = wanted[missed]


def _download(
    place: Path,
    wanted: Sequence[str],
    python: str,
    platforms: Sequence[str],
    flags: Sequence[str] = (),
) -> None:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input", *flags]
    command += ["--only-binary=:all:", "--implementation", "cp", "--python-version", python, "--dest", str(place)]
    for platform in platforms:
        command += ["--platform", platform]
    command += wanted
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_S)
    except subprocess.TimeoutExpired as error:
        raise WheelsUnavailable(
            f"pip did not fetch the device's wheels within {FETCH_S:.0f} s", hint="see the network, and try again"
        ) from error
    if done.returncode == 0:
        return
    lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR:")] or done.stderr.splitlines()
    reason = " ".join(line.removeprefix("ERROR:").strip() for line in lines[:2])
    # Every release there is of a package, one of which was asked for, is no help.
    reason = re.sub(r"\(from versions: (?!none)[^)]*\)", _OTHERS, reason)[-500:]
    if "No module named pip" in done.stderr:
        raise WheelsUnavailable(
            "pip, which fetches a device's wheels, is not installed here", hint=f"{sys.executable} -m ensurepip"
        )
    if "NewConnectionError" in done.stderr or "Max retries" in done.stderr or "from versions: none" in reason:
        raise WheelsUnavailable(
            f"no wheels for Python {python} on {platforms[-1]}: {reason}",
            hint="this machine, not the host, needs the package index once: see the network and `pip config list`",
        )
    raise WheelsUnavailable(
        f"no wheels for Python {python} on {platforms[-1]}: {reason}",
        hint="the host's system may be too old for that release, or the index used here lacks it: pip config list",
    )


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _unpacked(path: Path) -> int:
    with zipfile.ZipFile(path) as archive:
        return sum(entry.file_size for entry in archive.infolist())
