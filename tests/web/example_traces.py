"""Finds traces of examples among bytes that left a device: in any of the forms that someone could have sent them in."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

WINDOW = 16
"""Bytes. Whoever sends 31 of a kind in a row has sent a whole window of those that are looked for."""
LEAST_DISTINCT = 6
"""Windows of fewer different bytes, such as zeros, are found anywhere."""


@dataclass
class Traces:
    """Windows of bytes that give an example away, with the name of what they are of."""

    windows: dict[bytes, str] = field(default_factory=dict)
    words: set[bytes] = field(default_factory=set)

    def add(self, data: bytes, what: str) -> None:
        """``data`` as it is and in base64, plain and URL-safe, in each of its three alignments."""
        self._add(data, what)
        for skipped in range(3):
            text = base64.b64encode(data[skipped:])
            self._add(text, f"{what}, base64")
            self._add(text.translate(bytes.maketrans(b"+/", b"-_")), f"{what}, base64")

    def add_word(self, word: str) -> None:
        """A name that nobody else would say."""
        self.words.add(word.encode())

    def add_examples(self, x: np.ndarray, *, scale: float, mean: float, std: float) -> None:
        """Every example of ``x`` [N, ...]: its numbers in several dtypes and as text, raw and as a model takes them."""
        forms: Mapping[str, np.ndarray] = {
            "raw": x,
            "scaled": x.astype(np.float32) * np.float32(scale),
            "normalised": (x.astype(np.float32) * np.float32(scale) - np.float32(mean)) / np.float32(std),
        }
        for form, values in forms.items():
            dtypes = (
                ("uint8", "int32", "float16", "float32", "float64")
                if form == "raw"
                else ("float16", "float32", "float64")
            )
            for number, row in enumerate(values.reshape(len(values), -1)):
                for dtype in dtypes:
                    self.add(row.astype(dtype).tobytes(), f"example {number}, {form} {dtype}")
                self._add(json.dumps(row.tolist(), separators=(",", ":")).encode(), f"example {number}, {form} as text")

    def add_labels(self, y: np.ndarray) -> None:
        """The labels in their order."""
        for dtype in ("uint8", "int32", "float32", "int64"):
            # A label of eight bytes has one that tells: windows are of as many labels in any dtype.
            self._add(y.astype(dtype).tobytes(), f"labels as {dtype}", width=WINDOW * np.dtype(dtype).itemsize)
        self._add(json.dumps(y.tolist(), separators=(",", ":")).encode(), "labels as text", width=2 * WINDOW)

    def found_in(self, sent: Iterable[bytes]) -> list[str]:
        """What of it is among ``sent``, in the order of finding."""
        widths = sorted({len(window) for window in self.windows})
        found: dict[str, None] = {}
        for data in sent:
            for width in widths:
                for at in range(len(data) - width + 1):
                    what = self.windows.get(data[at : at + width])
                    if what is not None:
                        found[what] = None
            found |= {word.decode(): None for word in self.words if word in data}
        return list(found)

    def _add(self, data: bytes, what: str, width: int = WINDOW) -> None:
        for at in range(0, len(data) - width + 1, width):
            window = data[at : at + width]
            if len(set(window)) >= LEAST_DISTINCT:
                self.windows.setdefault(window, what)


def traces_of_archive(path: Path, *, scale: float, mean: float, std: float) -> Traces:
    """Of an npz file with ``x`` and ``y``: its own bytes, its examples, its labels and its name."""
    traces = Traces()
    with np.load(path, allow_pickle=False) as archive:
        x, y = archive["x"], archive["y"]
    traces.add(path.read_bytes(), "the file")
    traces.add_examples(x, scale=scale, mean=mean, std=std)
    traces.add_labels(y)
    traces.add_word(path.stem)
    return traces


def traces_of_pictures(
    files: Iterable[Path], *, shape: tuple[int, int], scale: float, mean: float, std: float
) -> Traces:
    """Of picture files: their own bytes, their pixels at full size and at ``shape``, and their names."""
    from PIL import Image

    traces = Traces()
    for path in files:
        traces.add(path.read_bytes(), f"picture {path.name}")
        traces.add_word(path.stem)
        with Image.open(io.BytesIO(path.read_bytes())) as image:
            grey = image.convert("L")
            for pixels in (grey, grey.resize(shape[::-1])):
                traces.add_examples(np.asarray(pixels)[None], scale=scale, mean=mean, std=std)
            traces.add(image.convert("RGBA").tobytes(), f"picture {path.name}, as a canvas has it")
    return traces
