"""CIFAR-10: ``cifar10_jpeg.npz``, the JPEG bytes of its images, decoded when opened; or ``cifar10.npz``, its pixels."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path
from typing import TYPE_CHECKING

from coordinator.data.datasets import Dataset
from coordinator.data.kept_arrays import kept_array
from coordinator.data.npz_folder import open_arrays
from edge.contracts.errors import DataError

if TYPE_CHECKING:
    import numpy as np

FILE = "cifar10_jpeg.npz"
PLAIN_FILE = "cifar10.npz"
"""Arrays ``x_train``, ``y_train``, ``x_test``, ``y_test``; read where the packed file is not there."""

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_SIDE = 32
_SPLITS = ("train", "test")


def decoded(jpeg: np.ndarray, offset: np.ndarray, *, where: str) -> np.ndarray:
    """Images [N, 3, 32, 32] uint8 of concatenated JPEG files.

    Args:
        jpeg: bytes of all files, uint8.
        offset: where each one begins, and the end of the last, int64 [N + 1].

    Raises:
        DataError: bytes that are no image of that size; 60,000 images take 8 s (measured).
    """
    import numpy as np
    from PIL import Image

    data = jpeg.tobytes()
    images = np.empty((len(offset) - 1, 3, _SIDE, _SIDE), np.uint8)
    for i, (begin, end) in enumerate(zip(offset[:-1].tolist(), offset[1:].tolist(), strict=True)):
        try:
            with Image.open(io.BytesIO(data[begin:end])) as image:
                pixels = np.asarray(image.convert("RGB"), np.uint8)
        except Exception as error:  # Pillow's decoders raise nearly anything on damaged files
            raise DataError(f"{where}: image {i} cannot be read ({error}); copy the file again") from error
        if pixels.shape != (_SIDE, _SIDE, 3):
            raise DataError(f"{where}: image {i} is {pixels.shape[1]}x{pixels.shape[0]}, {_SIDE}x{_SIDE} expected")
        images[i] = np.moveaxis(pixels, -1, 0)
    return images


def packed_arrays(path: Path | None) -> dict[str, np.ndarray]:
    """What the packed file holds for both splits.

    Raises:
        DataError: as :func:`coordinator.data.npz_folder.open_arrays`.
    """
    keys = [f"{part}_{split}" for split in _SPLITS for part in ("jpeg", "offset", "y")]
    return open_arrays(path, FILE, tuple(keys))


def load_cifar10(path: Path | None, seed: int, holdout: float) -> Dataset:
    """CIFAR-10: images [3, 32, 32] uint8 of the file in ``path``, its own test set held out.

    Raises:
        DataError: the file is not there, or holds something else.
    """
    import numpy as np

    if path is not None and not (path / FILE).exists() and (path / PLAIN_FILE).exists():
        plain = open_arrays(path, PLAIN_FILE, ("x_train", "y_train", "x_test", "y_test"))
        labels = (plain["y_train"].astype(np.int64), plain["y_test"].astype(np.int64))
        return Dataset(plain["x_train"], labels[0], plain["x_test"], labels[1], CLASSES)
    arrays = packed_arrays(path)
    x = {s: _kept_or_decoded(arrays[f"jpeg_{s}"], arrays[f"offset_{s}"], where=f"{FILE} ({s})") for s in _SPLITS}
    y = {s: arrays[f"y_{s}"].astype(np.int64) for s in _SPLITS}
    return Dataset(x["train"], y["train"], x["test"], y["test"], CLASSES)


def _kept_or_decoded(jpeg: np.ndarray, offset: np.ndarray, *, where: str) -> np.ndarray:
    """As :func:`decoded`, from pixels that an earlier process kept, where there are any of these bytes; read-only then.

    The key is a digest of the files and of the decoder's release, which decides pixels: another one is decoded anew.
    """
    import numpy as np
    import PIL
    from PIL import features

    digest = hashlib.sha256(np.ascontiguousarray(jpeg).data)
    digest.update(np.ascontiguousarray(offset).data)
    digest.update(f"Pillow {PIL.__version__} libjpeg {features.version('jpg')}".encode())
    return kept_array(f"cifar10-{digest.hexdigest()[:32]}", lambda: decoded(jpeg, offset, where=where))
