"""Text by a deployed language model, on a device, symbol by symbol. Needs NumPy and a runtime, no torch."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from edge.contracts.errors import ArtifactCorrupt, ConfigError, DeviceRefused
from edge.contracts.language import LANGUAGE_NAME, LanguageManifest
from edge.contracts.streams import stream_seed, uniform
from edge.runtimes import RUNTIMES, traits_of

if TYPE_CHECKING:
    import numpy as np

    from edge.language.tokenizer import Tokenizer

_PIECE = 16
"""Symbols of a prompt that the model takes at once: their logits are as many tables of the vocabulary."""


class WriterSession(Protocol):
    """A loaded model; runtimes that can have one in their ``generation`` module, given by ``load``."""

    def logits(self, symbols: np.ndarray) -> np.ndarray:
        """float32 [S, vocabulary] of the next ``symbols`` [S], after those before; raises DeviceRefused."""

    def forget(self) -> None:
        """Begin a new text."""


@dataclass(frozen=True)
class Choice:
    """How the next symbol is chosen.

    Attributes:
        temperature: 0 takes the most probable; else logits are divided by it and one is drawn.
        top_p: symbols that may be drawn: the most probable that together reach this share.
        seed: of the draws; the same gives the same text.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        problems = []
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            problems.append(f"--temperature: {self.temperature} is no number from 0")
        if not 0 < self.top_p <= 1:
            problems.append(f"--top-p: {self.top_p} is outside of 0 to 1")
        if self.seed < 0:
            problems.append(f"--seed: {self.seed} is below 0")
        if problems:
            raise ConfigError(problems)

    def pick(self, logits: np.ndarray, number: int) -> int:
        """The ``number``-th symbol of a text, from ``logits`` [vocabulary]."""
        import numpy as np

        if not self.temperature:
            return int(logits.argmax())
        scores = logits.astype(np.float64) / self.temperature
        shares = np.exp(scores - scores.max())
        shares /= shares.sum()
        order = np.argsort(-shares, kind="stable")
        sums = np.cumsum(shares[order])
        kept = 1 + int(np.searchsorted(sums, min(self.top_p, sums[-1]), side="left"))
        drawn = uniform(stream_seed(self.seed, "generate", number), 1)[0] * sums[kept - 1]
        return int(order[min(int(np.searchsorted(sums[:kept], drawn, side="right")), kept - 1)])


class Writer:
    """The language model in a folder that ``apportion deploy`` wrote.

    Args:
        threads: of the runtime.

    Attributes:
        manifest: what it is, and what was measured of it.

    Raises:
        ConfigError: there is no model, or its runtime is not installed.
        ArtifactCorrupt: a file is not the one that was deployed.
        DeviceRefused: the runtime cannot load it.
    """

    def __init__(self, folder: str | Path, *, threads: int = 1) -> None:
        self.folder = Path(folder)
        self.manifest = read_language_folder(self.folder)
        self._session = _session(self.manifest, self.folder, threads)

    @property
    def tokenizer(self) -> Tokenizer:
        """What makes symbols of text.

        Raises:
            ConfigError: the model was deployed without, or the package is not installed.
        """
        from edge.language.tokenizer import Tokenizer

        if self.manifest.tokenizer is None:
            raise ConfigError(
                [f"{self.folder}: has no tokenizer, it takes symbols alone"],
                hint="give --tokens, or deploy it with --tokenizer tokenizer.json",
            )
        return Tokenizer(self.folder / self.manifest.tokenizer.name)

    def logits(self, symbols: Sequence[int] | np.ndarray) -> np.ndarray:
        """float32 [T, vocabulary] of a text of ``symbols`` [T]."""
        import numpy as np

        self._session.forget()
        row = self._checked(symbols, 0)
        return np.concatenate([self._session.logits(row[i : i + _PIECE]) for i in range(0, len(row), _PIECE)])

    def write(self, symbols: Sequence[int], *, count: int, choice: Choice) -> Iterator[int]:
        """Up to ``count`` symbols that follow ``symbols``; the one that ends a text ends it and is not given.

        Raises:
            ConfigError: no symbols to begin with, ones that the model does not have, or more than its context holds.
        """
        row = self._checked(symbols, count)
        self._session.forget()
        for start in range(0, len(row), _PIECE):
            logits = self._session.logits(row[start : start + _PIECE])[-1]
        for number in range(count):
            symbol = choice.pick(logits, number)
            if symbol == self.manifest.end:
                return
            yield symbol
            if number + 1 < count:
                row[:1] = symbol
                logits = self._session.logits(row[:1])[-1]

    def _checked(self, symbols: Sequence[int] | np.ndarray, count: int) -> np.ndarray:
        import numpy as np

        row = np.array(symbols, np.int64)
        vocabulary, context = self.manifest.vocabulary, self.manifest.context
        if not len(row):
            raise ConfigError(["--prompt: no symbols in it; give some text to begin with"])
        if row.min() < 0 or row.max() >= vocabulary:
            raise ConfigError([f"--tokens: {row.min()} to {row.max()}; the model has symbols 0 to {vocabulary - 1}"])
        if count < 0 or len(row) + count > context:
            raise ConfigError(
                [f"--count: {count} after {len(row)} symbols; the model holds {context} together, choose fewer"]
            )
        return row


def read_language_folder(folder: Path) -> LanguageManifest:
    """The manifest in ``folder``, its files' digests checked; raises as :class:`Writer`."""
    try:
        manifest = LanguageManifest.from_bytes((folder / LANGUAGE_NAME).read_bytes())
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ConfigError(
            [f"{folder}: no language model there, it has no {LANGUAGE_NAME}"],
            hint="give a folder that apportion deploy wrote of a language model",
        ) from error
    for expected in manifest.files:
        try:
            with (folder / expected.name).open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise ArtifactCorrupt(f"model {folder}: {error}; copy the folder again") from error
        if digest != expected.sha256:
            raise ArtifactCorrupt(
                f"model {folder}: {expected.name} has digest {digest[:12]}, its manifest says {expected.sha256[:12]}; "
                "copy the folder again"
            )
    return manifest


def _session(manifest: LanguageManifest, folder: Path, threads: int) -> WriterSession:
    if manifest.runtime not in RUNTIMES:
        raise DeviceRefused(f"the model is for the runtime '{manifest.runtime}', which this release does not have")
    try:
        module = import_module(f"{RUNTIMES[manifest.runtime]}.generation")
    except ImportError as error:
        raise ConfigError(
            [f"the model's runtime '{manifest.runtime}' is not installed ({error})"],
            hint=traits_of(manifest.runtime).install,
        ) from error
    path, version = folder / manifest.graph.name, manifest.minimum_runtime_version
    session: WriterSession = module.load(path, version, threads=threads, weights=manifest.weights.name)
    return session
