"""Whether a round that is about to be planned has room for what it will store: asked before any device trains."""

from __future__ import annotations

from collections.abc import Sequence

from coordinator.ledger.records import Assignment
from coordinator.rounds.federation import Federation
from coordinator.submodels.packed_tensors import order_masks, upload_specs
from coordinator.submodels.values import State
from edge.contracts.errors import StoreFull
from edge.contracts.plan import WorkOrder, read_order

_HEADER_BYTES = 4096


def require_free_space(federation: Federation, state: State, assignments: Sequence[Assignment]) -> None:
    """Check that the updates of ``assignments`` and the model they lead to fit; what is sent is stored already.

    Raises:
        StoreFull: they do not; nothing was planned.
    """
    sizes: dict[tuple[str, str, tuple[str, ...]], int] = {}
    needed = 0
    for entry in assignments:
        order = read_order(entry.order)
        kind = (order.artifact.digest, order.constants.digest if order.constants else "", order.upload)
        if kind not in sizes:
            sizes[kind] = _update_bytes(federation, order)
        needed += sizes[kind]
    model = sum(value.nbytes for tensors in (state.tensors, state.extra) for value in tensors.values())
    room = federation.blobs.room_bytes()
    if needed + model > room:
        raise StoreFull(
            f"{federation.blobs.root}: {needed + model} bytes are needed for {len(assignments)} updates and the model "
            f"they lead to, {room} can be put there; free some disk space, raise store.quota-mb, or plan fewer devices"
        )


def _update_bytes(federation: Federation, order: WorkOrder) -> int:
    manifest = federation.artifacts.load(order.artifact.digest).manifest
    specs = upload_specs(manifest, order, order_masks(federation.blobs, order))
    return sum(spec.byte_count() for spec in specs) + _HEADER_BYTES
