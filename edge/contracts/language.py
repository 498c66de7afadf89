"""What a deployed language model is: its files, what it takes and gives, and what was measured of it before."""

from __future__ import annotations

import re
from typing import Literal

import msgspec

from edge.contracts.codec import build_readers, decode_json, encode_json
from edge.contracts.errors import MessageRejected
from edge.contracts.manifest import ArtifactFile, check_digest

LANGUAGE_SCHEMA = "apportion.language/1"
LANGUAGE_NAME = "language.json"
MAX_LANGUAGE_BYTES = 1024 * 1024
_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,60}(\.[a-z]{1,8}){1,2}")


class LanguageManifest(msgspec.Struct, frozen=True, kw_only=True):
    """``language.json`` beside the files.

    Attributes:
        federation, rounds: what trained it, and for how long.
        model: how it was built, for people.
        runtime: what runs it, as registered in ``edge/runtimes``, from ``minimum_runtime_version`` on.
        precision: of the matrices; the model computes in float32.
        graph, weights: files of the model.
        tokenizer: file that makes symbols of text; None: the model takes and gives symbols.
        end: symbol that ends a text; None: it has none.
        vocabulary: symbols; ``context``: the longest text, in symbols.
        positions: of held-out text that the figures below were measured on, by these files on their runtime; 0: there
            was none.
        perplexity: of them; ``torch_perplexity``: by torch in float32, with nothing merged but the factors.
        max_error: largest difference of a logit from torch's, relative to the largest one.
    """

    federation: str
    rounds: int
    model: str
    runtime: str
    minimum_runtime_version: str
    precision: Literal["float32", "int8"]
    graph: ArtifactFile
    weights: ArtifactFile
    vocabulary: int
    context: int
    positions: int
    perplexity: float
    torch_perplexity: float
    max_error: float
    tokenizer: ArtifactFile | None = None
    end: int | None = None
    schema: str = LANGUAGE_SCHEMA

    @property
    def files(self) -> tuple[ArtifactFile, ...]:
        """All of them."""
        return tuple(file for file in (self.graph, self.weights, self.tokenizer) if file is not None)

    def described(self) -> str:
        """What was measured of it, for people."""
        if not self.positions:
            return f"within {self.max_error:.1e} of torch; no held-out text to measure on"
        figures = f"perplexity {self.perplexity:.3f}, torch {self.torch_perplexity:.3f}"
        return f"{figures} on {self.positions} held-out positions"

    def to_bytes(self) -> bytes:
        """Canonical JSON."""
        return encode_json(self)

    @classmethod
    def from_bytes(cls, data: bytes) -> LanguageManifest:
        """The manifest in ``data``, its names and numbers checked.

        Raises:
            UnsupportedVersion: another schema version.
            MessageRejected: too large, malformed, or with an unsafe name.
        """
        manifest = decode_json(data, cls, schema=LANGUAGE_SCHEMA, limit=MAX_LANGUAGE_BYTES)
        for file in manifest.files:
            if not _FILE_NAME.fullmatch(file.name):
                raise MessageRejected(f"language manifest: file name {file.name[:80]!r} is not a plain name")
            check_digest(file.sha256, where=f"language manifest: file {file.name}")
        if min(manifest.vocabulary, manifest.context) < 1:
            raise MessageRejected(
                f"language manifest: vocabulary {manifest.vocabulary}, context {manifest.context}; must be counts"
            )
        return manifest


build_readers(LanguageManifest)
