"""An order as the native trainer takes it: every name resolved, so that it parses nothing but numbers and paths.

Made by the supervisor, without NumPy. What the native trainer lacks is said in words: the Python trainer then carries
the order out, with the same result to the bit.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Sequence

from edge.contracts.errors import ArtifactCorrupt, PlanError
from edge.contracts.manifest import ArtifactManifest, Program
from edge.contracts.plan import WorkOrder
from edge.contracts.tensor_file import SAFETENSORS_NAMES
from edge.contracts.tensors import TensorSpec
from edge.flat_orders.examples import write_examples
from edge.flat_orders.features import write_features
from edge.flat_orders.programs import Programs
from edge.flat_orders.request import FlatRequest
from edge.flat_orders.state import State, in_file_order
from edge.flat_orders.writing import MAGIC, FlatWriter, Unable
from edge.runtimes.micro_batches import step_programs
from edge.runtimes.update_rule import FILE_NAME

_LAST_BATCH = {"drop": 0, "keep": 1, "wrap": 2}


def flat_order(request: FlatRequest, manifest: ArtifactManifest) -> bytes:
    """The order of ``request`` in flat form.

    Raises:
        Unable: the Python trainer has to carry it out.
    """
    try:
        _check(request, manifest)
        return _written(request, manifest)
    except (ArtifactCorrupt, PlanError, OSError, OverflowError, struct.error) as error:
        raise Unable(f"the order cannot be prepared ({error})") from error


def _check(request: FlatRequest, manifest: ArtifactManifest) -> None:
    order = request.order
    reasons = {
        "its update is masked": order.masking is not None,
        f"its update is sent as {order.precision}": order.precision != "fp32",
        f"its update is packed by {order.encoding}": order.encoding != "raw",
        "the device keeps layers for itself": bool(order.own_layers),
        "the device keeps control variates": order.keeps_variates,
        "a fine-tuned model may be kept": bool(order.held_out_share and order.held_out_share.tuned),
        "the artifact's self-test is to be repeated": request.self_test,
    }
    if found := [reason for reason, is_so in reasons.items() if is_so]:
        raise Unable(found[0])
    known = {FILE_NAME, *(program.file for program in manifest.programs)}
    if others := [file.name for file in manifest.files if file.name not in known]:
        raise Unable(f"the artifact has the file {others[0]}")
    schedule = order.schedule
    if schedule.turns and (
        (schedule.epochs > 0) == (schedule.steps > 0) or not any(t.advance_batch for t in schedule.turns)
    ):
        raise Unable("its schedule has no end")


def _written(request: FlatRequest, manifest: ArtifactManifest) -> bytes:
    order = request.order
    state = State(manifest, [path for path in (request.weights, request.constants) if path])
    programs = Programs(order, manifest, state, request.files)
    turns, held_out = FlatWriter(), FlatWriter()
    turns.each(order.schedule.turns, lambda t: _write_turn(turns, manifest, programs, t.program, t.advance_batch))
    _write_held_out(held_out, order, manifest, programs)
    _write_sample(held_out, order)
    examples, features = FlatWriter(), FlatWriter()
    count = write_examples(examples, request.data, manifest)
    write_features(features, request, manifest, programs, state, examples=count)
    # What follows gives tensors their numbers, and so comes before they are written.
    steps, update = FlatWriter(), FlatWriter()
    programs.write(steps)
    specs = in_file_order(state.spec(name) for name in order.upload)
    update.text(request.update, tensor_header(specs))
    update.integers([state.number(spec.name) for spec in specs])

    head = FlatWriter()
    head.text(MAGIC, order.assignment_id)
    head.real(request.progress_s)
    head.integer(request.threads)
    state.write(head)
    examples.integer(order.batch, _LAST_BATCH[order.last_batch])
    examples.text(str(order.data_seed))
    examples.integer(order.schedule.epochs, order.schedule.steps)
    scalars, files = FlatWriter(), FlatWriter()
    programs.write_scalars(scalars)
    files.integer(order.report_labels, 1)
    parts = (head, examples, steps, turns, scalars, held_out, features, files, update)
    return b"".join(part.to_bytes() for part in parts)


def _write_turn(writer: FlatWriter, manifest: ArtifactManifest, programs: Programs, name: str, advances: bool) -> None:
    taken: Sequence[Program] = step_programs(manifest, name)
    writer.integers([programs.number(program) for program in taken])
    writer.integer(manifest.micro_batches if len(taken) > 1 else 1, advances)


def _write_held_out(writer: FlatWriter, order: WorkOrder, manifest: ArtifactManifest, programs: Programs) -> None:
    rule = order.held_out_share
    if rule is None:
        writer.integer(0)
        writer.real(0.0)
        writer.integer(0, 0, -1, 1)
        return
    if not 0.0 < rule.share <= 0.5 or not math.isfinite(rule.share):
        raise Unable(f"it holds out {rule.share} of the examples")
    writer.integer(1)
    writer.real(rule.share)
    writer.unsigned(rule.seed)
    number = programs.number(manifest.program(rule.program)) if rule.program else -1
    writer.integer(rule.least, number, max(1, order.batch // manifest.micro_batches))


def _write_sample(writer: FlatWriter, order: WorkOrder) -> None:
    rule = order.fixed_sample
    if rule is not None and rule.size < 1:
        raise Unable(f"it trains on a sample of {rule.size} examples")
    writer.integer(0 if rule is None else rule.size)
    writer.unsigned(0 if rule is None else rule.seed)


def tensor_header(specs: Sequence[TensorSpec]) -> bytes:
    """What a safetensors file of ``specs`` in this order begins with, as :mod:`edge.training.update_file` writes it."""
    header: dict[str, object] = {}
    offset = 0
    for spec in specs:
        size = spec.byte_count()
        header[spec.name] = {
            "dtype": SAFETENSORS_NAMES[spec.dtype],
            "shape": [int(n) for n in spec.shape],
            "data_offsets": [offset, offset + size],
        }
        offset += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


__all__ = ["FlatRequest", "Unable", "flat_order", "tensor_header"]
