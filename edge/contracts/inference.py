"""What an inference model is: one file, what goes in and what comes out, and what was measured before it was given out.

The model holds its weights. Who has the folder and a runtime can predict; nobody needs torch.
"""

from __future__ import annotations

import re
from typing import Literal

import msgspec

from edge.contracts.codec import build_readers, decode_json, encode_json
from edge.contracts.errors import MessageRejected
from edge.contracts.manifest import ArtifactFile, InputSpec, check_digest

INFERENCE_SCHEMA = "apportion.inference/1"
MANIFEST_NAME = "inference.json"
MAX_INFERENCE_BYTES = 1024 * 1024
_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,60}\.[a-z]{1,8}")


class InferenceManifest(msgspec.Struct, frozen=True, kw_only=True):
    """``inference.json`` beside a model's file.

    Attributes:
        federation, rounds: what trained it, and for how long.
        model: how it was built, for people.
        runtime: what runs it, as registered in ``edge/runtimes``, from ``minimum_runtime_version`` on.
        precision: of weights and activations; ``int8`` models take and give float32.
        examples: held-out examples that the figures below were measured on, by this file on its runtime.
        accuracy: share of them with the right class; 0 of a task, which has ``max_error`` instead.
        torch_accuracy: the same by torch in float32, before anything was rounded.
        agreement: share of them with the class that torch says.
        task: what the model was trained for; classification is written without it.
        max_error: of a task's model, the largest difference of a prediction from torch's, relative to the largest one.
        output: shape of one example's logits, of a file whose runtime does not tell it; others are written without it.
        personal: names of tensors that every device has of its own and nobody else does: the model is whole on a device
            that took part. Others are written without it.
    """

    federation: str
    rounds: int
    model: str
    runtime: str
    minimum_runtime_version: str
    precision: Literal["float32", "int8"]
    file: ArtifactFile
    input: InputSpec
    classes: tuple[str, ...]
    examples: int
    accuracy: float
    torch_accuracy: float
    agreement: float
    schema: str = INFERENCE_SCHEMA
    output: tuple[int, ...] | msgspec.UnsetType = msgspec.UNSET
    personal: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    task: str | msgspec.UnsetType = msgspec.UNSET
    max_error: float | msgspec.UnsetType = msgspec.UNSET

    def described(self) -> str:
        """What was measured of it, for people."""
        if self.task:
            off = self.max_error or 0.0
            return f"task {self.task}, within {off:.1e} of torch on {self.examples} held-out examples"
        return (
            f"accuracy {self.accuracy:.4f} on {self.examples} held-out examples, torch {self.torch_accuracy:.4f}, "
            f"the same class for {self.agreement:.2%}"
        )

    def to_bytes(self) -> bytes:
        """Canonical JSON."""
        return encode_json(self)

    @classmethod
    def from_bytes(cls, data: bytes) -> InferenceManifest:
        """The manifest in ``data``, its names checked.

        Raises:
            UnsupportedVersion: another schema version.
            MessageRejected: too large, malformed, or with an unsafe name.
        """
        manifest = decode_json(data, cls, schema=INFERENCE_SCHEMA, limit=MAX_INFERENCE_BYTES)
        if not _FILE_NAME.fullmatch(manifest.file.name):
            raise MessageRejected(f"inference manifest: file name {manifest.file.name[:80]!r} is not a plain name")
        check_digest(manifest.file.sha256, where=f"inference manifest: file {manifest.file.name}")
        for what, shape in ("input", manifest.input.shape), ("output", manifest.output or ()):
            if any(size < 1 for size in shape):
                raise MessageRejected(f"inference manifest: {what} shape {shape}; sizes must be counts")
        return manifest


build_readers(InferenceManifest)
