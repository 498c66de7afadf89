"""The work order: what one device is to do in one round, and how its identity is derived."""

from __future__ import annotations

import hashlib
from typing import Literal

import msgspec

from edge.contracts.codec import decode_msgpack
from edge.contracts.envelope import MAX_MESSAGE_BYTES
from edge.contracts.evaluation import HeldOut
from edge.contracts.fixed_sample import FixedSample
from edge.contracts.installation import Installation
from edge.contracts.masking import Masking
from profiles.bounds import Name, Size

Encoding = Literal["raw", "zstd"]
Precision = Literal["fp32", "fp16", "int8"]
LastBatch = Literal["drop", "keep", "wrap"]


class BlobRef(msgspec.Struct, frozen=True):
    """A blob by the SHA-256 and size of its uncompressed bytes, and how it travels.

    Attributes:
        encoded_size: bytes on the wire; equals ``size`` for ``raw``.
    """

    digest: Name
    size: Size
    encoding: Encoding = "raw"
    encoded_size: Size = 0


class Turn(msgspec.Struct, frozen=True):
    """One entry of a cyclic schedule: the program to run, and whether the next entry sees a new batch."""

    program: str
    advance_batch: bool = True


class Schedule(msgspec.Struct, frozen=True):
    """How long to run: whole ``epochs`` over the local data, or exactly ``steps`` batches; the other is 0.

    ``turns`` repeat cyclically; one turn is the ordinary case. Without any nothing is trained: the order only asks for
    an evaluation.
    """

    epochs: int = 0
    steps: int = 0
    turns: tuple[Turn, ...] = (Turn("train"),)


class WorkOrder(msgspec.Struct, frozen=True, kw_only=True):
    """What one device is to do.

    Attributes:
        artifact: the manifest's bytes; the files follow by the digests inside it.
        weights: safetensors of every parameter, buffer and sent slot or accumulator.
        constants: safetensors of what stays the same over rounds, frozen tensors and masks; kept by digest.
        hyper: values of the program's scalar ``hyper`` inputs.
        data_seed: of the Fisher-Yates batch order; epoch e uses ``stream_seed(data_seed, "epoch", e)``.
        upload: names of the tensors the update holds; ``<name>#kept`` is the kept entries of a masked one.
        deadline_s: seconds left when the order was sent; the receiver counts on its monotonic clock. 0 = none.
        peak_bytes: what the planner expects supervisor and trainer to reach together.
        threads: intra-op threads of the runtime.
        report_labels: whether the report is to say which classes the device has examples of.
        artifact_signature: Ed25519 signature of the manifest's exact bytes; empty where the coordinator has no key.
        precision: of the update; below ``fp32`` it holds differences (:mod:`edge.contracts.precision`).
        cut_digest: equal for orders whose tensors stand for the same part of the model, from round to round; empty
            where none does.
        masking: the update is to be masked; None: it is sent as it is.
        summable: the mean of several devices' updates, weighted by ``num_examples``, may stand for them: what a relay
            needs to know.
        bulk: ``https://...`` where blobs may be had by range request, a digest added to it; empty = over MQTT only.
        upload_to: ``https://...`` where the update may be put, the assignment id added to it; empty = over MQTT only.
        run: the run's nonce: what one run agreed on, signed or masked means nothing in another.
        method: the run's method, by its name, for the owner's policy; empty: not told.
        personal: names of tensors that the device keeps for itself: it begins with its own values, where it has some of
            that shape from this run, and sends none.
        held_out: examples that the device does not train on, and whether it is to score the model on them. Only agents
            that say :data:`edge.contracts.evaluation.ABILITY` get it.
        installs: nothing is trained: ``weights`` is the file of a deployed model, which the artifact describes, for
            the device's owner. Only agents that say :data:`edge.contracts.installation.ABILITY` get it.
        variates: the weights hold control variates, and the device keeps its own: it goes on from those that its update
            of this assignment id left; empty: from zeros. Not there: there are none.
        cluster: the group of devices whose model this is; not there: that of all.
        tokenizer: a ``tokenizer.json``: what makes symbols of the device's texts for a language model; not there: the
            owner's own does.
        sample: the only examples that steps may see; not there: all that are not held out. Only agents that say
            :data:`edge.contracts.fixed_sample.ABILITY` get it.
    """

    assignment_id: str
    federation: str
    device: str
    round: int
    attempt: int
    artifact: BlobRef
    weights: BlobRef
    schedule: Schedule
    batch: int
    last_batch: LastBatch
    data_seed: int
    hyper: dict[str, float]
    upload: tuple[str, ...]
    deadline_s: float = 0.0
    peak_bytes: int = 0
    threads: int = 1
    encoding: Encoding = "raw"
    constants: BlobRef | None = None
    report_labels: bool = False
    artifact_signature: bytes = b""
    bulk: str = ""
    precision: Precision = "fp32"
    cut_digest: str = ""
    masking: Masking | None = None
    summable: bool = False
    upload_to: str = ""
    run: Name = ""
    method: Name = ""
    personal: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    held_out: HeldOut | msgspec.UnsetType = msgspec.UNSET
    installs: Installation | msgspec.UnsetType = msgspec.UNSET
    variates: str | msgspec.UnsetType = msgspec.UNSET
    cluster: Name | msgspec.UnsetType = msgspec.UNSET
    tokenizer: BlobRef | msgspec.UnsetType = msgspec.UNSET
    sample: FixedSample | msgspec.UnsetType = msgspec.UNSET

    @property
    def tokenizer_blob(self) -> BlobRef | None:
        """The run's tokenizer; an order without one is written without the field."""
        return None if self.tokenizer is msgspec.UNSET else self.tokenizer

    @property
    def standing_blobs(self) -> tuple[BlobRef, ...]:
        """What stays the same over rounds, and is kept by digest: constants and tokenizer."""
        return tuple(ref for ref in (self.constants, self.tokenizer_blob) if ref is not None)

    @property
    def blobs(self) -> tuple[BlobRef, ...]:
        """All blobs that the order names itself; those of its files are in the manifest."""
        return (self.artifact, self.weights, *self.standing_blobs)

    @property
    def own_layers(self) -> tuple[str, ...]:
        """The tensors that the device keeps for itself; an order without any is written without the field."""
        return () if self.personal is msgspec.UNSET else self.personal

    @property
    def held_out_share(self) -> HeldOut | None:
        """What is held out; an order that holds nothing out is written without the field."""
        return None if self.held_out is msgspec.UNSET else self.held_out

    @property
    def fixed_sample(self) -> FixedSample | None:
        """The sample; an order without one is written without the field."""
        return None if self.sample is msgspec.UNSET else self.sample

    @property
    def installation(self) -> Installation | None:
        """What is installed; an order of any other kind is written without the field."""
        return None if self.installs is msgspec.UNSET else self.installs

    @property
    def keeps_variates(self) -> bool:
        """Whether the device keeps control variates; an order without any is written without the field."""
        return self.variates is not msgspec.UNSET

    @property
    def variates_of(self) -> str:
        """The assignment whose variates the device goes on from; empty: it begins with zeros, or keeps none."""
        return "" if self.variates is msgspec.UNSET else self.variates

    @property
    def cluster_name(self) -> str:
        """The cluster; empty where there is none."""
        return "" if self.cluster is msgspec.UNSET else self.cluster


def assignment_id(federation: str, round_index: int, device: str, attempt: int, run: str = "") -> str:
    """SHA-256 over ``"<federation>\\n<run>\\n<round>\\n<device>\\n<attempt>"``, hex: an update counts once by it.

    ``run`` is the run's nonce; runs that older releases began have none, and not its line.
    """
    text = f"{federation}\n{run}\n" if run else f"{federation}\n"
    return hashlib.sha256(f"{text}{round_index}\n{device}\n{attempt}".encode()).hexdigest()


def read_order(data: bytes) -> WorkOrder:
    """The work order the ledger holds."""
    return decode_msgpack(data, WorkOrder, limit=MAX_MESSAGE_BYTES)
