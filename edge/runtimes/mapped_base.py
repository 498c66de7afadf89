"""The frozen base of a language model on a device: views of its mapped file, whose pages are given back while it runs.

A step reads each matrix of the base two or three times and far apart. What stays resident in between counts as the
trainer's memory though the kernel could drop it at any time; so a quiet thread tells it to, 200 times a second, while a
program runs. A page that is read again comes from the page cache.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from edge.contracts.errors import ArtifactCorrupt
from edge.contracts.tensors import TensorSpec, concrete_shape

if TYPE_CHECKING:
    import numpy as np

RELEASE_S = 0.005
"""Between two releases: 5 MB of GPT-2 small's int8 base at batch 1, on one thread of an idle x86-64 processor."""


def mapped_values(specs: Mapping[str, TensorSpec], tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The base's tensors by name, views of ``tensors``.

    Raises:
        ArtifactCorrupt: one is missing, or has another shape or dtype: the order names another base.
    """
    values = {}
    for name, spec in specs.items():
        if name not in tensors:
            raise ArtifactCorrupt(
                f"the order's base holds no tensor '{name}' that the artifact maps; it is another model's base, or in "
                "another precision: order again with the base that the artifact was made for"
            )
        value = tensors[name]
        if value.shape != concrete_shape(spec) or value.dtype.name != spec.dtype:
            raise ArtifactCorrupt(
                f"base: '{name}' is {value.dtype}{list(value.shape)}, the artifact maps {spec.dtype}"
                f"{list(spec.shape)}; it is another base: order again with the one that the artifact was made for"
            )
        values[name] = value
    return values


class PageRelease:
    """Calls ``release`` every :data:`RELEASE_S` while a program runs; its thread ends with the process."""

    def __init__(self, release: Callable[[], None]) -> None:
        self._release = release
        self._is_running = threading.Event()
        self._is_over = threading.Event()
        self._pause = threading.Event()
        self._thread = threading.Thread(target=self._run, name="page-release", daemon=True)
        self._thread.start()

    @contextmanager
    def running(self) -> Iterator[None]:
        """A program runs inside."""
        self._is_running.set()
        try:
            yield
        finally:
            self._is_running.clear()

    def close(self) -> None:
        """End the thread."""
        self._is_over.set()
        self._is_running.set()
        self._pause.set()
        self._thread.join()

    def _run(self) -> None:
        while True:
            self._is_running.wait()
            if self._is_over.is_set():
                return
            self._pause.wait(RELEASE_S)
            self._release()
