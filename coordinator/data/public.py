"""Public data sets that ``apportion data get`` fetches: where each file is, its digest, and what is made of them.

Nothing of them comes with this project, and what their authors ask is said each time. A new one is one line of
:data:`PUBLIC`. Archives are read member by member, by name; nothing is unpickled.
"""

from __future__ import annotations

import gzip
import re
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from coordinator.data import cifar10
from coordinator.data.download import download
from edge.contracts.errors import ConfigError, DataError

if TYPE_CHECKING:
    import numpy as np

FETCHED = "downloads"
"""Sub-folder of the files as they came."""


@dataclass(frozen=True)
class PublicFile:
    """One file: its address, and the size and SHA-256 that make sure of it."""

    url: str
    size: int
    sha256: str

    @property
    def name(self) -> str:
        """As it is kept."""
        return self.url.rpartition("/")[2]


@dataclass(frozen=True)
class PublicData:
    """A data set.

    Attributes:
        licence: what its authors ask, with the page that says so.
        write: what makes files that sources and devices read: (name -> fetched file, folder) -> files written.
        use: what to do with them then; ``{folder}`` is the folder.
    """

    files: tuple[PublicFile, ...]
    licence: str
    write: Callable[[Mapping[str, Path], Path], list[Path]]
    use: str


def public_data(name: str) -> PublicData:
    """The data set ``name``.

    Raises:
        ConfigError: an unknown name; lists the known ones.
    """
    if name not in PUBLIC:
        raise ConfigError([f"NAME: '{name}' is not known; known: {', '.join(sorted(PUBLIC))}"])
    return PUBLIC[name]


def get(data: PublicData, folder: Path, progress: Callable[[str, int, int], None] = lambda *_: None) -> list[Path]:
    """Fetch what ``folder`` has not, and write what is read of it; the files written.

    Args:
        progress: called with (name of a file, bytes that are here, its size).

    Raises:
        DataError, StoreUnreachable: as :func:`coordinator.data.download.download`; also a file of another form.
    """
    fetched = {}
    for file in data.files:

        def told(done: int, size: int, name: str = file.name) -> None:
            progress(name, done, size)

        place = folder / FETCHED / file.name
        fetched[file.name] = download(file.url, place, size=file.size, sha256=file.sha256, progress=told)
    return data.write(fetched, folder)


def _cifar10(fetched: Mapping[str, Path], folder: Path) -> list[Path]:
    """``cifar10.npz`` of the archive's binary batches, 3073 bytes an example: label, then [3, 32, 32]."""
    import numpy as np

    batches: dict[str, list[np.ndarray]] = {"train": [], "test": []}
    (archive,) = fetched.values()
    with tarfile.open(archive) as tar:
        for split, names in (("train", [f"data_batch_{i}.bin" for i in range(1, 6)]), ("test", ["test_batch.bin"])):
            for name in names:
                rows = np.frombuffer(_member(tar, f"cifar-10-batches-bin/{name}", archive), np.uint8)
                batches[split].append(rows.reshape(-1, 3073))
    arrays: dict[str, np.ndarray] = {}
    for split, parts in batches.items():
        rows = np.concatenate(parts)
        arrays |= {f"x_{split}": rows[:, 1:].reshape(-1, 3, 32, 32), f"y_{split}": rows[:, 0].astype(np.int64)}
    return [_write(folder / cifar10.PLAIN_FILE, arrays)]


def _mnist(fetched: Mapping[str, Path], folder: Path) -> list[Path]:
    """``train`` and ``test`` with images [1, 28, 28] and labels, of the four idx files."""
    import numpy as np

    written = []
    for split, prefix in (("train", "train"), ("test", "t10k")):
        pixels = gzip.decompress(fetched[f"{prefix}-images-idx3-ubyte.gz"].read_bytes())
        labels = gzip.decompress(fetched[f"{prefix}-labels-idx1-ubyte.gz"].read_bytes())
        x = np.frombuffer(pixels, np.uint8, offset=16).reshape(-1, 1, 28, 28)
        y = np.frombuffer(labels, np.uint8, offset=8).astype(np.int64)
        written.append(_write(folder / split / "data.npz", {"x": x, "y": y}))
    return written


_REVIEW = re.compile(r"aclImdb/(train|test)/(neg|pos)/(\d+_\d+\.txt)")


def _imdb(fetched: Mapping[str, Path], folder: Path) -> list[Path]:
    """``train`` and ``test`` with a folder of texts per class; the folders written."""
    (archive,) = fetched.values()
    places = [folder / split / kind for split in ("train", "test") for kind in ("neg", "pos")]
    for place in places:
        place.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive) as tar:
        for member in tar:
            if (match := _REVIEW.fullmatch(member.name)) and (file := tar.extractfile(member)) is not None:
                (folder / match[1] / match[2] / match[3]).write_bytes(file.read())
    return places


def _member(tar: tarfile.TarFile, name: str, archive: Path) -> bytes:
    try:
        file = tar.extractfile(name)
    except KeyError:
        file = None
    if file is None:
        raise DataError(f"{archive} has no {name}; it is another archive than is meant")
    return file.read()


def _write(path: Path, arrays: Mapping[str, np.ndarray]) -> Path:
    import numpy as np

    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".part")
    with temporary.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]
    temporary.replace(path)
    return path


_MNIST = "https://storage.googleapis.com/cvdf-datasets/mnist/"
PUBLIC: dict[str, PublicData] = {
    "cifar10": PublicData(
        files=(
            PublicFile(
                "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
                170_052_171,
                "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
            ),
        ),
        licence="no licence is stated; cite Krizhevsky 2009 (https://www.cs.toronto.edu/~kriz/cifar.html)",
        write=_cifar10,
        use="export APPORTION_DATA={folder}",
    ),
    "mnist": PublicData(
        files=(
            PublicFile(
                f"{_MNIST}train-images-idx3-ubyte.gz",
                9_912_422,
                "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            ),
            PublicFile(
                f"{_MNIST}train-labels-idx1-ubyte.gz",
                28_881,
                "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            ),
            PublicFile(
                f"{_MNIST}t10k-images-idx3-ubyte.gz",
                1_648_877,
                "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            ),
            PublicFile(
                f"{_MNIST}t10k-labels-idx1-ubyte.gz",
                4_542,
                "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
            ),
        ),
        licence="CC BY-SA 3.0, Yann LeCun and Corinna Cortes; no writers are named in these files",
        write=_mnist,
        use='[data] source = "folder", path = "{folder}"',
    ),
    "imdb": PublicData(
        files=(
            PublicFile(
                "https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz",
                84_125_825,
                "c40f74a18d3b61f90feba1e17730e0d38e8b97c05fde7008942e91923d1658fe",
            ),
        ),
        licence="no licence is stated; cite Maas et al. 2011 (https://ai.stanford.edu/~amaas/data/sentiment/)",
        write=_imdb,
        use='[data] source = "folder", path = "{folder}"',
    ),
}
"""Name -> data set. Sizes and digests are those that several public projects hold the same files to."""
