"""What an environment holds of ExecuTorch, found from its files: the wheel, the session library, the trainer.

Nothing is imported and nothing compiled, and so a supervisor can look into the environment that its trainers run in.
:mod:`.build` makes what is missing, under the same names.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from edge.runtimes.base import InstalledTrainer

PACKAGE = "executorch"
SOURCES = Path(__file__).parent / "native"
"""The kernels, and the session that calls them."""
TRAINER_SOURCES = SOURCES / "trainer"
PORTABLE = ".portable.so"
_DEFAULT_FLAGS = "-march=native"


def native_flags() -> list[str]:
    """What the compiler is told of the processor."""
    return os.environ.get("APPORTION_NATIVE_FLAGS", _DEFAULT_FLAGS).split()


def library_folder(prefix: Path) -> Path:
    """Where the environment at ``prefix`` keeps what was compiled for it."""
    return prefix / "lib" / "apportion"


def library_name(wheel: Path) -> str:
    """File name of the library for this machine and the wheel in the folder ``wheel``.

    Another wheel in the same folder, as after ``pip install --upgrade``, has another library: what was compiled against
    the headers of one need not load in the other, or is wrong there without a word.
    """
    return f"libapportion_executorch-{_digest(SOURCES, str(wheel), *_installed(wheel), *native_flags())}.so"


def portable_name(release: str) -> str:
    """As :meth:`edge.runtimes.base.NativeBuild.portable_name`: of these sources too."""
    return f"libapportion_executorch-{_digest(SOURCES, release, _digest(TRAINER_SOURCES))}{PORTABLE}"


def trainer_of(library: Path) -> Path:
    """The trainer without Python beside ``library``, which may not be there."""
    return library.with_name(f"{library.stem}-{_digest(TRAINER_SOURCES)}.trainer")


def installed_trainer(python: str) -> InstalledTrainer | None:
    """The trainer without Python of the environment that the interpreter ``python`` is of; None where there is none.

    An interpreter outside a virtual environment, two releases side by side, a library that is still to be compiled: all
    that is left to the Python trainer, which knows its own environment.
    """
    prefix = Path(os.path.abspath(python)).parent.parent
    found = [path for packages in prefix.glob("lib/python3*/site-packages") for path in _releases(packages)]
    if len(found) != 1:
        return None
    wheel, release = found[0].parent / PACKAGE, found[0].stem.partition("-")[2]
    for name in (portable_name(release), library_name(wheel)):
        library = library_folder(prefix) / name
        if library.is_file():
            program = trainer_of(library)
            return InstalledTrainer(str(program), release) if program.is_file() else None
    return None


def _installed(wheel: Path) -> tuple[str, ...]:
    """Which wheel is in the folder ``wheel``: its release, and the digest of its installer's list of files, if any."""
    found = []
    for described in _releases(wheel.parent):
        found.append(described.name)
        record = described / "RECORD"
        if record.is_file():
            with record.open("rb") as file:
                found.append(hashlib.file_digest(file, "sha256").hexdigest())
    return tuple(found)


def _releases(packages: Path) -> list[Path]:
    """What installers left of the wheel in ``packages``: one folder, of each release if they are several."""
    return sorted(path for path in packages.glob(f"{PACKAGE}-*.dist-info") if path.is_dir())


def _digest(sources: Path, *parts: str) -> str:
    digest, separator = hashlib.sha256(), b""
    texts = (path.read_bytes() for path in sorted([*sources.glob("*.cpp"), *sources.glob("*.h")]))
    for text in (*(part.encode() for part in parts), *texts):
        digest.update(separator)
        digest.update(text)
        separator = b"\0"
    return digest.hexdigest()[:16]
