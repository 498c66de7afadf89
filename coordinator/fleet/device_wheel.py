"""A wheel of this project's device side alone, from the packages installed here: no coordinator, no exporter.

The same files give the same bytes, so that its digest says whether a device has to be given another.
"""

from __future__ import annotations

import base64
import hashlib
import io
import os
import stat
import zipfile
from collections.abc import Mapping
from importlib import metadata, resources
from pathlib import Path

from edge.contracts.release import PYTHONS, RELEASE
from edge.runtimes import INSTALLABLE

DISTRIBUTION = "apportion"
PACKAGES = ("edge", "profiles")
EXTRAS = (*INSTALLABLE, "identity", "images")
PROGRAM = ".trainer"
"""Suffix of what a device starts as a process."""
_SUFFIXES = frozenset({".py", ".toml", ".typed", ".cpp", ".h"})
_REQUIRED = ">={}.{},<{}.{}".format(*PYTHONS[0], PYTHONS[-1][0], PYTHONS[-1][1] + 1)
_DATE = (1980, 1, 1, 0, 0, 0)


def requirements(extra: str = "") -> list[str]:
    """What the device side, or one of its extras, requires: ``["msgspec>=0.18", ...]``."""
    found = []
    for line in metadata.requires(DISTRIBUTION) or []:
        requirement, _, marker = line.partition(";")
        wanted = marker.strip() == (f'extra == "{extra}"' if extra else "")
        if wanted:
            found.append(requirement.strip())
    return found


def write_device_wheel(folder: Path, extra_files: Mapping[str, bytes] | None = None) -> Path:
    """The wheel in ``folder``.

    Args:
        extra_files: path in the environment (``lib/...``) -> contents, installed with it.
    """
    version = RELEASE
    files: dict[str, bytes] = {}
    for package in PACKAGES:
        root = Path(str(resources.files(package)))
        for path in sorted(root.rglob("*")):
            is_of_browsers = path.is_relative_to(root / "web")  # the web agent and what builds it
            if path.suffix in _SUFFIXES and path.is_file() and not is_of_browsers:
                files[f"{package}/{path.relative_to(root).as_posix()}"] = path.read_bytes()
    for place, data in (extra_files or {}).items():
        files[f"{DISTRIBUTION}-{version}.data/data/{place}"] = data
    info = f"{DISTRIBUTION}-{version}.dist-info"
    files[f"{info}/METADATA"] = _metadata(version)
    files[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\nGenerator: apportion\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    files[f"{info}/entry_points.txt"] = b"[console_scripts]\napportion = edge.__main__:main\n"
    return write_wheel(folder / f"{DISTRIBUTION}-{version}-py3-none-any.whl", files)


def write_wheel(path: Path, files: Mapping[str, bytes]) -> Path:
    """A wheel of ``files``, which lack its RECORD alone; the same files give the same bytes."""
    (info,) = {name.partition("/")[0] for name in files if name.partition("/")[0].endswith(".dist-info")}
    record = "".join(f"{name},sha256={_digest(data)},{len(data)}\n" for name, data in sorted(files.items()))
    whole = {**files, f"{info}/RECORD": f"{record}{info}/RECORD,,\n".encode()}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in sorted(whole.items()):
            entry = zipfile.ZipInfo(name, _DATE)
            mode = stat.S_IFREG | (0o755 if name.endswith(PROGRAM) else 0o644)
            entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, mode << 16
            archive.writestr(entry, data)
    if not path.exists() or path.read_bytes() != buffer.getvalue():  # others may be copying it right now
        unfinished = path.with_name(f".{path.name}.{os.getpid()}")
        unfinished.write_bytes(buffer.getvalue())
        os.replace(unfinished, path)
    return path


def _metadata(version: str) -> bytes:
    lines = ["Metadata-Version: 2.1", f"Name: {DISTRIBUTION}", f"Version: {version}", f"Requires-Python: {_REQUIRED}"]
    lines += [f"Requires-Dist: {requirement}" for requirement in requirements()]
    for extra in EXTRAS:
        # What an exporter imports of a runtime stays away from devices.
        lines.append(f"Provides-Extra: {extra}")
        named = [r for r in requirements(extra) if not r.startswith("torch")]
        lines += [f'Requires-Dist: {requirement}; extra == "{extra}"' for requirement in named]
    return ("\n".join(lines) + "\n").encode()


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
