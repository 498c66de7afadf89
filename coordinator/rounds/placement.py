"""One device's share of a plan: where it is placed, where its weights lie, and the assignment the ledger keeps."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec

from coordinator.exporting.base_file import stored_base
from coordinator.exporting.model_form import base_choices, in_model_form
from coordinator.exporting.run_tokenizer import stored_tokenizer
from coordinator.ledger.records import Assignment
from coordinator.methods.method import Method, MovesProducts, shape_for
from coordinator.planning.capacity_levels import configured_level, device_names, group_level
from coordinator.planning.history import NOTHING, History
from coordinator.planning.native_orders import takes_native_orders
from coordinator.planning.planner import MB, Placement, choose_runtimes, keep, place, require_able
from coordinator.planning.requests import Requests
from coordinator.planning.steps import ArtifactSteps
from coordinator.rounds.federation import Federation
from coordinator.submodels.packed_tensors import split_tensors
from coordinator.submodels.record import Cut, cut_to_json
from coordinator.submodels.values import DeviceProgram, Level, State, Submodel, Tensors
from edge.contracts.codec import encode_json, encode_msgpack
from edge.contracts.errors import ConfigError, ExportRefused, ParityError, PlanError
from edge.contracts.manifest import ArtifactManifest
from edge.contracts.messages import Hello
from edge.contracts.plan import BlobRef, WorkOrder
from edge.contracts.tensor_file import encode_tensors
from export.forms.step_form import PLAIN, StepForm, form_named
from profiles.device import DeviceProfile

if TYPE_CHECKING:
    import numpy as np


def export_certain(federation: Federation) -> None:
    """Before the first device is here, export what a local group has for certain.

    That is the level the run file names, or the whole ladder's first for a group without a budget.

    Raises:
        PlanError: none of the run's runtimes can carry the method.
        ExportRefused: the run's only runtime cannot train the model; also ParityError. Where there are several, the
            plan says so for each device it concerns.
    """
    config, present = federation.config, federation.devices.present
    _require_able_runtime(federation)
    for level, runtime in _certain(federation) if not present() else ():
        if present():
            break
        try:
            federation.artifacts.get(*_shape(federation, level, None, 0, ""), runtime)
        except (ConfigError, ExportRefused, ParityError):
            if len(config.runtime.names) == 1:
                raise


def export_on_arrival(federation: Federation) -> Callable[[Sequence[Hello]], bool]:
    """For :meth:`coordinator.messaging.cohort.Cohort.wait_for`: exports what one device that has come will be given.

    So a model that the run's only runtime cannot train is refused when the first device is here, and not when the wait
    for all of them is over. What is called raises as :func:`place_device`, but for plans, which are made later.
    """
    named = set(device_names(federation.config.cohort))  # by their names, they may have levels of their own
    placed: set[str] = set()
    kinds: set[bytes] = set()

    def export_next(here: Sequence[Hello]) -> bool:
        for hello in here:
            if hello.device in placed:
                continue
            placed.add(hello.device)
            # Of thousands of devices many are the same but for the name; what one needs is exported then.
            kind = encode_msgpack(msgspec.structs.replace(hello.profile, device="", probed_at=0.0))
            if kind not in kinds or hello.device in named:
                kinds.add(kind)
                with contextlib.suppress(PlanError):  # the plan says so, if it is so still
                    place_device(federation, hello.profile, None, 0)
                return True
        return False

    return export_next


def _certain(federation: Federation) -> list[tuple[Level, str]]:
    """Levels, with their runtimes, that some local device is sure to be given."""
    config, levels = federation.config, federation.method.levels()
    found = []
    for number, group in enumerate(config.cohort.local):
        level = group_level(config, number, levels)
        if level is not None or not group.budget_mb:
            found.append((level or levels[0], config.runtime.of_group(group)))
    return list(dict.fromkeys(found))


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


def place_device(
    federation: Federation,
    profile: DeviceProfile,
    state: State | None,
    round_index: int,
    history: History | None = None,
    cut_round: int | None = None,
) -> Placement:
    """The largest level of the method's ladder that fits the device, on one of the run's runtimes, in its best form.

    A level that the run file gives the device's group is the whole ladder.

    Args:
        state: None for shapes of a run's beginning.
        history: what the run's devices measured; None is none.
        cut_round: the round whose cut it has; None: this one.

    Raises:
        PlanError: it has none of the runtimes, no level fits, its runtimes cannot carry the method, or they are
            several and there is no artifact for one: then only the devices with that runtime stay away.
        ExportRefused: the run's only runtime cannot train the model; also ParityError, and ConfigError where its
            exporter is not installed.
    """
    config = federation.config

    def shape(level: Level) -> tuple[Cut, DeviceProgram]:
        return _shape(federation, level, state, round_index if cut_round is None else cut_round, profile.device)

    if takes_native_orders(config, federation.method):
        profile = profile.for_native_orders()
    given = configured_level(config, federation.method.levels(), profile.device, round_index)
    levels = federation.method.levels() if given is None else (given,)
    steps = ArtifactSteps(federation.artifacts, shape, batch=config.training.batch)
    own = NOTHING if history is None else history.of(profile)
    requests = Requests.of(config, base_choices(config))
    if history is not None and (before := _given_before(federation, profile.device, levels, steps)) is not None:
        return keep(profile, *before, steps, requests, own)
    try:
        placement = place(profile, _runtimes(federation, profile), levels, steps, requests, own)
    except (ConfigError, ExportRefused, ParityError) as error:
        if len(config.runtime.names) == 1:
            raise
        has = "', '".join(choose_runtimes(profile, config.runtime.names))
        raise PlanError(f"device {profile.device}: no artifact for its runtime '{has}': {error}") from error
    _tell_downshift(federation, placement, round_index)
    return placement


def _given_before(
    federation: Federation, device: str, levels: Sequence[Level], steps: ArtifactSteps
) -> tuple[Level, str, StepForm] | None:
    """What the device's newest assignment gave it, where there is no reason to ask again: same shapes, no setback, and
    a budget that has never changed.

    So a plan follows from the ledger, not from what this process happens to have exported so far.
    """
    ledger = federation.ledger
    entry = ledger.assignments.latest_of(device)
    if entry is None or federation.config.planner.adapt or ledger.profiles.earlier(device):
        return None
    level = next((level for level in levels if level.name == entry.level), None)
    if level is None or any(s.assignment_id == entry.assignment_id for s in ledger.measurements.setbacks()):
        return None
    if entry.artifact_digest not in federation.blobs:
        return None
    manifest = federation.artifacts.load(entry.artifact_digest).manifest
    form = form_named(entry.form)
    is_same = steps.key(level, manifest.runtime, form) == manifest.export_key
    return (level, manifest.runtime, form) if is_same else None


def _runtimes(federation: Federation, profile: DeviceProfile) -> list[str]:
    """Those of the run's runtimes that the device has and that can carry the method."""
    config, able, refusal = federation.config, [], PlanError("the run allows no runtime")
    for name in choose_runtimes(profile, config.runtime.names):
        try:
            _require_able(federation, name)
            able.append(name)
        except PlanError as error:
            refusal = error
    if not able:
        raise PlanError(f"device {profile.device}: {refusal}") from refusal
    return able if config.planner.runtimes == "best" else able[:1]


def history_of(federation: Federation) -> History:
    """What the ledger holds of what devices measured, as ``[planner] adapt`` allows it to be used."""
    ledger, artifacts = federation.ledger, federation.artifacts
    manifests: dict[str, ArtifactManifest | None] = {}

    def manifest(digest: str | None) -> ArtifactManifest | None:
        if digest is None or digest not in federation.blobs:
            return None
        if digest not in manifests:
            manifests[digest] = artifacts.load(digest).manifest
        return manifests[digest]

    return History(
        setbacks=ledger.measurements.setbacks(),
        measurements=ledger.measurements.all() if federation.config.planner.adapt else (),
        # Of thousands of devices they take a while to read, and only measurements are held against them.
        profiles=ledger.profiles.all() if federation.config.planner.adapt else {},
        manifest=manifest,
        manifest_of_key=lambda key: manifest(ledger.artifacts.find(key)),
    )


class StoredWeights:
    """Submodels' values as blobs, of one plan: devices of a level mostly get the very same, which are written once.

    What is the same is seen by comparing, at a tenth of what encoding and storing again would take.
    """

    def __init__(self, federation: Federation) -> None:
        self._federation = federation
        self._before: dict[tuple[str, str], tuple[Tensors, tuple[BlobRef, BlobRef | None]]] = {}

    def store(self, submodel: Submodel, form: StepForm = PLAIN) -> tuple[BlobRef, BlobRef | None]:
        """References to what changes and to what stays over rounds, both on disk and in the ledger.

        Args:
            form: of the step; a language model's base is in its precision.
        """
        before = self._before.get((submodel.level.name, form.base))
        if before is not None and _are_equal(before[0], submodel.tensors):
            return before[1]
        changing, constant = split_tensors(submodel)
        stays = _store(self._federation, constant) if constant else None
        if submodel.program.has_base:
            config = in_model_form(self._federation.config, StepForm(base=form.base))
            stays = stored_base(config, self._federation.ledger, self._federation.blobs)
        stored = _store(self._federation, changing), stays
        self._before[submodel.level.name, form.base] = submodel.tensors, stored
        return stored

    def tokenizer(self) -> BlobRef | None:
        """Reference to the tokenizer of a language model's run; None where it has none."""
        return stored_tokenizer(self._federation.config, self._federation.ledger, self._federation.blobs)


def _are_equal(some: Tensors, others: Tensors) -> bool:
    import numpy as np

    if some.keys() != others.keys():
        return False
    pairs = ((value, others[name]) for name, value in some.items())
    # Bit for bit: two zeros that differ in sign are equal numbers and different blobs.
    return all(
        a is b or (a.dtype == b.dtype and a.shape == b.shape and np.array_equal(_bytes(a), _bytes(b))) for a, b in pairs
    )


def _bytes(value: np.ndarray) -> np.ndarray:
    import numpy as np

    return np.ascontiguousarray(value).reshape(-1).view(np.uint8)


def _store(federation: Federation, tensors: Tensors) -> BlobRef:
    data = encode_tensors(tensors)
    digest = federation.blobs.put(data)
    federation.ledger.blobs.add(digest, len(data))
    return BlobRef(digest, len(data), "raw", len(data))


def assignment_of(method: Method, order: WorkOrder, submodel: Submodel, placement: Placement) -> Assignment:
    """The ledger's record of an order and the cut it is for."""
    cut = cut_to_json(submodel.cut)
    if order.precision != "fp32" and not (method.synchronous_only or isinstance(method, MovesProducts)):
        # Its tensors mean the same in every round of that cut, so what rounding lost in one may be sent in the next.
        order = msgspec.structs.replace(order, cut_digest=hashlib.sha256(encode_json(cut)).hexdigest())
    return Assignment(
        assignment_id=order.assignment_id,
        round=order.round,
        attempt=order.attempt,
        device=order.device,
        level=submodel.level.name,
        cut=cut,
        artifact_digest=order.artifact.digest,
        weights_digest=order.weights.digest,
        order=encode_msgpack(order),
        form=placement.form.name,
    )


def _tell_downshift(federation: Federation, placement: Placement, round_index: int) -> None:
    """Say, and record, that a device gets something else than what it did not carry in an earlier round."""
    before = [trial for trial in placement.tried if trial.outcome == "failed-before"]
    if before:
        chosen = placement.chosen
        federation.progress.say(
            f"downshift: {before[-1].reason}; {placement.device} gets {chosen.level.name}, {chosen.form.name}, "
            f"expected at {chosen.peak_bytes / MB:.1f} MB"
        )
        federation.progress.record(
            "downshift",
            round=round_index,
            device=placement.device,
            failed=[trial.to_json() for trial in before],
            level=chosen.level.name,
            form=chosen.form.name,
            predicted_peak_bytes=chosen.peak_bytes,
        )


def _shape(
    federation: Federation, level: Level, state: State | None, round_index: int, device: str
) -> tuple[Cut, DeviceProgram]:
    """A level's cut, values apart, and what its devices are asked to do; without a state, that of a run's beginning."""
    method, seed = federation.method, federation.config.federation.seed
    cut = shape_for(method, level, state, round_index=round_index, device=device, seed=seed)
    return cut, method.program(cut)
