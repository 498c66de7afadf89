"""One device's share of a plan: where it is placed, where its weights lie, and the assignment the ledger keeps."""

from __future__ import annotations

from coordinator.artifacts import Artifact
from coordinator.federation import Federation
from coordinator.ledger_records import Assignment
from coordinator.methods.method import Level, ShapesFollowState, State, Submodel, Tensors
from coordinator.packed_tensors import split_tensors
from coordinator.planner import Placement, choose_runtime, place, require_able
from coordinator.round_metrics import measured_correction
from coordinator.simulation.capacity import configured_level
from coordinator.submodels.record import cut_to_json
from edge.contracts.codec import encode_msgpack
from edge.contracts.errors import ConfigError, ExportRefused, ParityError, PlanError
from edge.contracts.manifest import Cost
from edge.contracts.plan import BlobRef, WorkOrder
from edge.contracts.tensor_file import encode_tensors
from profiles.device import DeviceProfile


def export_while_waiting(federation: Federation) -> None:
    """Export from the top of the ladder, where every placement begins, for as long as devices are still arriving.

    Raises:
        PlanError: none of the run's runtimes can carry the method.
        ExportRefused: the run's only runtime cannot train the model; also ParityError. Where there are several, the
            plan says so for each device it concerns.
    """
    method, config = federation.method, federation.config
    _require_able_runtime(federation)
    for level in method.levels():
        for runtime in _expected_runtimes(federation):
            if len(federation.cohort.present()) >= config.cohort.size:
                return
            try:
                _artifact_of(federation, level, runtime, state=None, round_index=0, device="")
            except (ConfigError, ExportRefused, ParityError):
                if len(config.runtime.names) == 1:
                    raise


def _require_able_runtime(federation: Federation) -> None:
    refusals = []
    for name in federation.config.runtime.names:
        try:
            _require_able(federation, name)
        except PlanError as error:
            refusals.append(str(error))
    if len(refusals) == len(federation.config.runtime.names):
        raise PlanError("\n".join(refusals))


def _require_able(federation: Federation, runtime: str) -> None:
    require_able(federation.method, runtime, federation.artifacts.unable, seed=federation.config.federation.seed)


def _expected_runtimes(federation: Federation) -> list[str]:
    """Runtimes of the devices that are here; before the first of them, those that are certain to be needed."""
    runtime, here = federation.config.runtime, federation.cohort.present()
    if not here and len(runtime.names) == 1:
        return list(runtime.names)
    used = {choose_runtime(hello.profile, runtime.names) for hello in here}
    if not here:
        used = {runtime.of_group(group) for group in federation.config.cohort.local}
    return [name for name in runtime.names if name in used]


def place_device(federation: Federation, profile: DeviceProfile, state: State, round_index: int) -> Placement:
    """The first of the run's runtimes that the device has, and the largest level of the method's ladder that fits it.

    A level that the run file gives the device's group is the whole ladder.

    Raises:
        PlanError: it has none of the runtimes, no level fits, its runtime cannot carry the method, or its runtime is
            one of several and there is no artifact for it: then only the devices with that runtime stay away.
        ExportRefused: the run's only runtime cannot train the model; also ParityError, and ConfigError where its
            exporter is not installed.
    """
    config = federation.config
    runtime = choose_runtime(profile, config.runtime.names)
    try:
        _require_able(federation, runtime)
    except PlanError as error:
        raise PlanError(f"device {profile.device}: {error}") from error

    def artifact_of(level: Level) -> Artifact:
        return _artifact_of(federation, level, runtime, state=state, round_index=round_index, device=profile.device)

    def cost_of(level: Level) -> Cost:
        return artifact_of(level).manifest.cost

    def correction_of(level: Level) -> float:
        return measured_correction(federation, profile, artifact_of(level)) if config.planner.adapt else 1.0

    levels = federation.method.levels()
    given = configured_level(config, levels, profile.device, round_index)
    try:
        return place(
            profile,
            runtime,
            levels if given is None else (given,),
            cost_of,
            headroom=config.planner.headroom,
            correction_of=correction_of,
        )
    except (ConfigError, ExportRefused, ParityError) as error:
        if len(config.runtime.names) == 1:
            raise
        raise PlanError(f"device {profile.device}: no artifact for its runtime '{runtime}': {error}") from error


def store_weights(federation: Federation, submodel: Submodel) -> tuple[BlobRef, BlobRef | None]:
    """The submodel's values as blobs that are on disk and in the ledger: what changes, and what stays over rounds."""
    changing, constant = split_tensors(submodel)
    return _store(federation, changing), _store(federation, constant) if constant else None


def _store(federation: Federation, tensors: Tensors) -> BlobRef:
    data = encode_tensors(tensors)
    digest = federation.blobs.put(data)
    federation.ledger.add_blob(digest, len(data))
    return BlobRef(digest, len(data), "raw", len(data))


def assignment_of(order: WorkOrder, submodel: Submodel) -> Assignment:
    """The ledger's record of an order and the cut it is for."""
    return Assignment(
        assignment_id=order.assignment_id,
        round=order.round,
        attempt=order.attempt,
        device=order.device,
        level=submodel.level.name,
        cut=cut_to_json(submodel.cut),
        artifact_digest=order.artifact.digest,
        weights_digest=order.weights.digest,
        order=encode_msgpack(order),
    )


def _artifact_of(
    federation: Federation, level: Level, runtime: str, *, state: State | None, round_index: int, device: str
) -> Artifact:
    """The artifact of a level for a runtime, from shapes alone; without a state, that of a run's beginning."""
    method, seed = federation.method, federation.config.federation.seed
    if state is not None and isinstance(method, ShapesFollowState):
        shape = method.shape_after(state, level, round_index=round_index, device=device, seed=seed)
    else:
        shape = method.cut_shape(level, round_index=round_index, device=device, seed=seed)
    return federation.artifacts.get(shape, method.program(shape), runtime)
