"""Image files: that they are readable. They are decoded when a model's input says to what size."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from edge.contracts.errors import ConfigError, DataError

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".pgm", ".ppm"})


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


def pillow() -> Any:
    """Pillow's ``Image`` module.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        return importlib.import_module("PIL.Image")
    except ImportError as error:
        raise ConfigError(["--data: image folders need Pillow"], hint="pip install 'apportion[images]'") from error
