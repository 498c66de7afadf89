"""What supervisor and trainer say to each other: length-prefixed msgpack over the child's stdin and stdout.

Tensors do not pass here, they pass as files in the store. Both ends are the same release on the same machine, so there
is no version; the length is bounded all the same.
"""

from __future__ import annotations

from typing import IO

import msgspec

from edge.contracts.evaluation import Evaluation
from edge.contracts.plan import WorkOrder
from edge.masking.seeds import MaskSeeds
from edge.system.pipe_frames import read_frame

MAX_FRAME_BYTES = 1 << 20


class Describe(msgspec.Struct, frozen=True, tag=True):
    """Read the local data at ``data`` and count it; ``kept`` is a folder for what takes long to read, or empty."""

    data: str
    kept: str = ""


class Train(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Carry out an order.

    Attributes:
        manifest, weights, constants: paths of verified blobs; constants may be empty.
        files: file name in the manifest -> path of its verified blob.
        update: path to write the encoded update to.
        threads: intra-op threads.
        progress_s: time between two progress messages.
        self_test: repeat the artifact's self-test before its first use.
        left_over: file of what rounding took from earlier updates, which need not be there; ``new_left_over`` is
            written beside the update, empty where none is kept.
        personal: file of the device's own layers, which need not be there; ``new_personal`` is written beside the
            update, empty where the order names none.
        new_tuned: file for what the device keeps of a fine-tuning that helped, beside the update; empty where the order
            is none.
        variates: file of the device's control variates, which need not be there; ``new_variates`` is written beside the
            update, empty where the order leaves none.
        kept: as in :class:`Describe`.
        features: folder for what the artifact's frozen blocks give for each example, of which at most
            ``features_bytes`` are kept; empty: nothing is kept, and each step computes its own.
        features_key: file of the device's private key, with a secret of which they are encrypted; empty: it has none,
            and they are not.
        tokenizer: path of the run's, a verified blob; empty: the owner's own is used.
        masks: of a masked order; the update is then written masked, and nowhere else.
    """

    order: WorkOrder
    manifest: str
    files: dict[str, str]
    weights: str
    data: str
    update: str
    threads: int
    progress_s: float
    self_test: bool = False
    constants: str = ""
    left_over: str = ""
    new_left_over: str = ""
    personal: str = ""
    new_personal: str = ""
    new_tuned: str = ""
    variates: str = ""
    new_variates: str = ""
    kept: str = ""
    features: str = ""
    features_bytes: int = 0
    features_key: str = ""
    tokenizer: str = ""
    masks: MaskSeeds | None = None


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The runtime is loaded; resident memory now, the most threads it uses (0: as many as asked for), the density below
    which a layer is faster sparse, by kind of layer, and the path of a trainer without Python, empty where none is."""

    runtime: str
    version: str
    rss_bytes: int
    max_threads: int = 0
    sparse_below: dict[str, float] = {}
    native: str = ""


class Described(msgspec.Struct, frozen=True, tag=True):
    """The local data: how many examples, or why not; resident memory with them read."""

    num_examples: int
    rss_bytes: int
    code: str = ""
    error: str = ""


class Progress(msgspec.Struct, frozen=True, tag=True):
    """Steps done so far and the loss of the last one."""

    assignment_id: str
    step: int
    total_steps: int
    loss: float


class Storing(msgspec.Struct, frozen=True, tag=True):
    """The order is carried out, and the disk does not take the update; it is kept in memory and written again."""

    assignment_id: str
    reason: str


class Trained(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """An order carried out: the update lies where it was asked for.

    Attributes:
        digest, size: of the uncompressed update; ``encoded_size`` of the file.
        labels: classes with local examples, where the order asks for them.
        evaluation: sums over the held-out share, where the order asks for them.
        cpu_s: processor time of the order; ``joules`` of the board in that time, None where nothing counts them.
        step_cpu_ms_p50: processor time of a step, of all threads together.
    """

    assignment_id: str
    digest: str
    size: int
    encoded_size: int
    num_examples: int
    steps: int
    loss: float
    metrics: dict[str, float]
    step_ms_p50: float
    step_ms_p95: float
    peak_bytes: int
    idle_bytes: int
    torch_loaded: bool
    threads: int
    labels: tuple[int, ...] | None = None
    evaluation: Evaluation | None = None
    cpu_s: float = 0.0
    joules: float | None = None
    step_cpu_ms_p50: float = 0.0


class Failed(msgspec.Struct, frozen=True, tag=True):
    """An order that could not be carried out; ``code`` is an error's code, ``peak_bytes`` the trainer's peak."""

    assignment_id: str
    code: str
    reason: str
    peak_bytes: int = 0


Request = Describe | Train
Reply = Ready | Described | Progress | Storing | Trained | Failed


def read_request(stream: IO[bytes]) -> Request | None:
    """The supervisor's next message; None at its end."""
    data = read_frame(stream, limit=MAX_FRAME_BYTES)
    return None if data is None else msgspec.msgpack.decode(data, type=Request)


def read_reply(stream: IO[bytes]) -> Reply | None:
    """The trainer's next message; None at its end."""
    data = read_frame(stream, limit=MAX_FRAME_BYTES)
    return None if data is None else msgspec.msgpack.decode(data, type=Reply)
