"""Data that ``apportion data make`` writes, from what scikit-learn brings; nothing is fetched.

``digits``, ``breast-cancer`` and ``wine`` are real and dealt to devices, a folder each. ``cifar10``, ``mnist-writers``
and ``movie-reviews`` are stand-ins: the file that the source of this name reads, in its shapes and classes, so that
every example runs. Scores on a stand-in say nothing about the real data.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from coordinator.data import cifar10, mnist_writers, movie_reviews
from coordinator.data.partition import partition
from edge.contracts.errors import ConfigError
from edge.contracts.streams import permutation, stream_seed

if TYPE_CHECKING:
    import numpy as np

DEALT = ("breast-cancer", "digits", "wine")
"""Real data, dealt to devices."""

WRITERS = 193
"""Of the stand-in for MNIST by writer, as many as the packed MNIST has: the examples deal by them."""

FOLDS = 10
_TEST_SHARE = 5
"""One in so many is held out."""


@dataclass(frozen=True)
class Made:
    """What was written.

    Attributes:
        files: in the order they were written.
        train, test: examples.
    """

    files: tuple[Path, ...]
    train: int
    test: int
    is_stand_in: bool


def make(
    name: str,
    folder: Path,
    *,
    devices: int = 4,
    examples: int = 5000,
    kind: str = "iid",
    alpha: float = 0.5,
    seed: int = 0,
) -> Made:
    """Write the data ``name`` into ``folder``.

    Args:
        devices, kind, alpha: of real data: how it is dealt, as :func:`coordinator.data.partition.partition`.
        examples: of a stand-in.

    Raises:
        ConfigError: an unknown name, or more devices than there are examples for.
    """
    if name in DEALT:
        return _dealt(name, folder, devices, kind, alpha, seed)
    if name not in STAND_INS:
        known = ", ".join([*DEALT, *sorted(STAND_INS)])
        raise ConfigError([f"NAME: '{name}' cannot be made; known: {known}"])
    file, build = STAND_INS[name]
    arrays = build(examples, seed)
    folder.mkdir(parents=True, exist_ok=True)
    test = examples // _TEST_SHARE
    return Made((_write(folder / file, arrays),), examples - test, test, is_stand_in=True)


def _dealt(name: str, folder: Path, devices: int, kind: str, alpha: float, seed: int) -> Made:
    import numpy as np
    from sklearn import datasets

    opened = getattr(datasets, f"load_{name.replace('-', '_')}")()
    x, y = opened.data.astype(np.float32), opened.target.astype(np.int64)
    order = permutation(stream_seed(seed, "holdout"), len(y))
    held = len(y) // _TEST_SHARE
    test, train = order[:held], order[held:]
    files = []
    for number, share in enumerate(partition(kind, y[train], devices, seed=seed, alpha=alpha)):
        place = folder / f"device-{number}"
        place.mkdir(parents=True, exist_ok=True)
        files.append(_write(place / "data.npz", {"x": x[train[share]], "y": y[train[share]]}))
    (folder / "test").mkdir(parents=True, exist_ok=True)
    files.append(_write(folder / "test" / "data.npz", {"x": x[test], "y": y[test]}))
    return Made(tuple(files), len(train), held, is_stand_in=False)


def _images(examples: int, seed: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Digits [N, 8, 8] in 0..1 and labels, drawn again and again; no held-out digit is among those to train on."""
    import numpy as np
    from sklearn.datasets import load_digits

    digits = load_digits()
    order = permutation(stream_seed(seed, "holdout"), len(digits.target))
    test = examples // _TEST_SHARE
    found = {}
    for split, count, own in (("train", examples - test, order[360:]), ("test", test, order[:360])):
        chosen = np.resize(own, count)
        found[split] = ((digits.images[chosen] / 16).astype(np.float32), digits.target[chosen].astype(np.int64))
    return found


def _cifar10(examples: int, seed: int) -> dict[str, np.ndarray]:
    """Digits of 32x32 in a colour of their own each."""
    import numpy as np

    arrays: dict[str, np.ndarray] = {}
    for split, (images, labels) in _images(examples, seed).items():
        generator = np.random.Generator(np.random.PCG64(stream_seed(seed, f"colours-{split}")))
        colours = generator.uniform(64, 255, (len(labels), 3, 1, 1)).astype(np.float32)
        whole = images.repeat(4, 1).repeat(4, 2)[:, None] * colours
        arrays |= {f"x_{split}": whole.astype(np.uint8), f"y_{split}": labels}
    return arrays


def _mnist_writers(examples: int, seed: int) -> dict[str, np.ndarray]:
    """Digits of 28x28, dealt to writers one after the other."""
    import numpy as np

    arrays: dict[str, np.ndarray] = {}
    for split, (images, labels) in _images(examples, seed).items():
        whole = np.pad(images.repeat(3, 1).repeat(3, 2), ((0, 0), (2, 2), (2, 2))) * 255
        arrays |= {f"x_{split}": whole.astype(np.uint8), f"y_{split}": labels}
    arrays["writer_train"] = np.arange(len(arrays["y_train"]), dtype=np.int64) % WRITERS
    return arrays


def _movie_reviews(examples: int, seed: int) -> dict[str, np.ndarray]:
    """Made-up words; one in four says whether the review is good."""
    import numpy as np

    generator = np.random.Generator(np.random.PCG64(stream_seed(seed, "reviews")))
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = np.asarray([a + b + c for a in letters for b in "aeiou" for c in letters])
    plain, told = words[:1000], (words[1000:1150], words[1150:1300])
    y = np.arange(examples) % 2
    texts = []
    for label in y:
        mixed = np.where(generator.random(120) < 0.25, generator.choice(told[label], 120), generator.choice(plain, 120))
        texts.append(" ".join(mixed).encode())
    return {
        "text": np.frombuffer(b"".join(texts), np.uint8),
        "offset": np.cumsum([0, *map(len, texts)]).astype(np.int64),
        "y": y.astype(np.int64),
        "fold": (np.arange(examples) // 2 % FOLDS).astype(np.int64),
    }


def _write(path: Path, arrays: dict[str, np.ndarray]) -> Path:
    import numpy as np

    temporary = path.with_suffix(".part")
    with temporary.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]
    temporary.replace(path)
    return path


STAND_INS: dict[str, tuple[str, Callable[[int, int], dict[str, np.ndarray]]]] = {
    "cifar10": (cifar10.PLAIN_FILE, _cifar10),
    "mnist-writers": (mnist_writers.FILE, _mnist_writers),
    "movie-reviews": (movie_reviews.FILE, _movie_reviews),
}
"""Source -> the file it reads, and what makes its arrays."""
