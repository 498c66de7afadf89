"""Image files: that they are readable. They are decoded when a model's input says to what size."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from edge.contracts.errors import ConfigError, DataError

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".pgm", ".ppm"})

IMAGES, MASKS = "images", "masks"
"""Sub-folders of images with a class for each pixel."""


def check_images(paths: Sequence[Path]) -> None:
    """Check that every file is an image.

    Raises:
        DataError: one is not; it is named.
        ConfigError: Pillow is not installed.
    """
    image_module = pillow()
    for path in paths:
        try:
            with image_module.open(path) as image:
                image.verify()
        except Exception as error:  # Pillow's decoders raise nearly anything on damaged files
            raise DataError(f"{path}: is not a readable image ({error}); replace the file") from error


def read_masks(folder: Path) -> tuple[list[Path], np.ndarray]:
    """The images of ``folder/images``, sorted, and the masks [N, height, width] int64 of ``folder/masks``.

    A mask has its image's name, with any ending, and a class number at each pixel, 255 for none (-100).

    Raises:
        DataError: an image without a mask, one that cannot be read, or masks of two sizes; they are named.
        ConfigError: Pillow is not installed.
    """
    found = {path.stem: path for path in (folder / MASKS).iterdir() if path.suffix.lower() in SUFFIXES}
    paths = sorted(path for path in (folder / IMAGES).iterdir() if path.suffix.lower() in SUFFIXES)
    missing = [path.name for path in paths if path.stem not in found]
    if missing or not paths:
        raise DataError(f"{folder}: no file in {MASKS} for {missing[:5] or 'any image'}; give each image its mask")
    check_images(paths)
    image_module, masks = pillow(), list[np.ndarray]()
    for path in paths:
        mask = found[path.stem]
        try:
            with image_module.open(mask) as image:
                pixels = np.asarray(image if image.mode in ("P", "L", "1") else image.convert("L"))
        except Exception as error:  # as above
            raise DataError(f"{mask}: is not a readable image ({error}); replace the file") from error
        if masks and pixels.shape != masks[0].shape:
            raise DataError(
                f"{mask}: {pixels.shape} pixels, {found[paths[0].stem]} has {masks[0].shape}; give one size"
            )
        masks.append(pixels)
    numbers = np.stack(masks).astype(np.int64)
    numbers[numbers == 255] = -100
    return paths, numbers


def pillow() -> Any:
    """Pillow's ``Image`` module.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        return importlib.import_module("PIL.Image")
    except ImportError as error:
        raise ConfigError(["--data: image folders need Pillow"], hint="pip install 'apportion[images]'") from error
