"""Named, seeded changes of training images: ``flip``, and ``crop4`` or ``crop`` with other pixels on every side."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

_CROP = re.compile(r"crop([1-9][0-9]?)")
KNOWN = "flip, and crop1 to crop99 with the pixels that are padded on every side"


class Augmentation(NamedTuple):
    """Whether images are mirrored at random; ``padding`` pixels on every side before a window is cut, 0: none is."""

    flips: bool
    padding: int


def augmentation(names: Iterable[str]) -> Augmentation:
    """What ``names`` stand for.

    Raises:
        ValueError: a name that is not known, or two sizes of crops.
    """
    given = sorted(set(names))
    crops = [match for name in given if (match := _CROP.fullmatch(name))]
    unknown = sorted({*given} - {"flip"} - {match[0] for match in crops})
    if unknown:
        raise ValueError(f"augmentation {unknown} is unknown, known are {KNOWN}")
    if len(crops) > 1:
        raise ValueError(f"augmentation {given} has {len(crops)} crops; name one")
    return Augmentation("flip" in given, int(crops[0][1]) if crops else 0)
