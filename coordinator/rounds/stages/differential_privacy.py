"""A round under ``[privacy]``: who was drawn, differences clipped, noise added once, and what that has spent.

The noise of an attempt comes from 32 bytes that are in the ledger before a sum is made, so that a repeated aggregation
releases the same sum and never a second one with other noise.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec

from coordinator.config.run_config import RunConfig
from coordinator.ledger.records import Assignment, Round
from coordinator.privacy.accountant import PrivacyBudgetSpent, Release, epsilon
from coordinator.privacy.gaussian_noise import SEED_BYTES, Differences, difference, normal, scale_down
from coordinator.rounds.federation import Federation, RoundStage
from coordinator.submodels.packed_tensors import order_masks
from coordinator.submodels.values import State, Tensors, Update
from edge.contracts.errors import LedgerError, PlanError
from edge.contracts.manifest import ArtifactManifest
from edge.contracts.packing import KEPT, unpacked
from edge.contracts.plan import WorkOrder, read_order
from edge.contracts.tensor_file import read_tensor_file

if TYPE_CHECKING:
    import numpy as np


LATELY = 10
"""Rounds: a device counts among those a cohort is drawn from while it has reported in one of the last so many."""


class Mechanism(msgspec.Struct, frozen=True, kw_only=True):
    """What an attempt at a round adds to its sum; a row of the ledger.

    Attributes:
        seed: of the noise; secret, it would undo it. Empty once the round is committed.
        clip_norm, multiplier: the noise has deviation clip_norm * multiplier on the sum.
        denominator: what the sum is divided by, whoever reports.
        cohort: devices that were drawn.
        population: devices they were drawn from, of those known to train.
    """

    seed: bytes
    clip_norm: float
    multiplier: float
    denominator: int
    cohort: int
    population: int


class DifferentialPrivacy(RoundStage):
    """Clipped differences, and noise on their sum, in a run with ``[privacy] clip-norm``."""

    @classmethod
    def is_used(cls, config: RunConfig) -> bool:
        """Whether the run asks for it."""
        return config.privacy.clip_norm > 0

    def selection_seed(self, federation: Federation, seed: int) -> int:
        """A secret one where the draw is part of the protection."""
        privacy = federation.config.privacy
        return secrets.randbits(63) if privacy.noise_multiplier and not privacy.reproducible else seed

    def check(self, federation: Federation, *, chosen: int, population: int) -> None:
        """Check that a round with ``chosen`` devices drawn from ``population`` may be released.

        Raises:
            PrivacyBudgetSpent: it would spend more than the run may.
        """
        privacy = federation.config.privacy
        if not privacy.max_epsilon:
            return
        spent, committed = _releases(federation), federation.ledger.rounds.last_committed()
        round_index = 0 if committed is None else committed.round + 1
        tried = _tried(federation.ledger.privacy.all(), round_index)
        known = _known(federation, round_index, chosen, population)
        after = epsilon([*spent, released(privacy.noise_multiplier, [*tried, (chosen, known)])], privacy.delta)
        if after > privacy.max_epsilon:
            raise PrivacyBudgetSpent(
                f"{len(spent)} rounds spent epsilon {epsilon(spent, privacy.delta):.4g} at delta {privacy.delta:g}, "
                f"the next would make it {after:.4g} and $.privacy.max-epsilon is {privacy.max_epsilon:g}; the "
                "model so far is in the run's directory: resume with a larger --max-epsilon, or stop here"
            )

    def assignments(self, federation: Federation, assignments: list[Assignment]) -> list[Assignment]:
        """As they are.

        Raises:
            PlanError: as :func:`check_covered`.
        """
        for entry in assignments if federation.config.privacy.noise_multiplier else ():
            check_covered(federation.artifacts.load(entry.artifact_digest).manifest, read_order(entry.order))
        return assignments

    def planned(self, federation: Federation, current: Round, *, chosen: int, population: int) -> None:
        """Write what the attempt will add to its sum to the ledger, once."""
        known = _known(federation, current.round, chosen, population)
        note_mechanism(federation, current.round, current.attempt, cohort=chosen, population=known)

    def updates(
        self, federation: Federation, state: State, current: Round, program: str, updates: Iterator[Update]
    ) -> Iterator[Update]:
        """``updates`` as the run's ``[privacy]`` lets a method see them.

        Each clipped to the clip norm without noise; with noise one update in place of all, the mean
        ``w + (sum of clipped differences + noise) / cohort.size`` around the weights ``w`` that were sent.
        """
        privacy = federation.config.privacy
        if program != "train" or privacy.secure_aggregation:
            return updates  # masked updates were clipped by the devices, and their sum has its noise
        entries = {a.device: a for a in federation.ledger.assignments.of_attempt(current.round, current.attempt)}
        clipped = (_clipped(federation, entries[update.device], update) for update in updates)
        if not privacy.noise_multiplier:
            return (update for update, _, _ in clipped)
        mechanism = noise_of(federation, current)
        assert mechanism is not None
        return iter([_noisy_update(mechanism, clipped, where=f"round {current.round + 1}")])

    def metrics(self, federation: Federation, current: Round, program: str, state: State) -> Mapping[str, Any]:
        """``privacy`` of a round's metrics: what all rounds up to this one have spent; nothing without noise."""
        privacy = federation.config.privacy
        mechanism = _mechanism(federation, current.round, current.attempt)
        if mechanism is None:
            return {}
        return {
            "privacy": {
                "epsilon": epsilon(_releases(federation), privacy.delta),
                "delta": privacy.delta,
                "cohort": mechanism.cohort,
                "population": mechanism.population,
                "protects": not privacy.reproducible,
            }
        }

    def committed(self, federation: Federation, state: State, entry: Mapping[str, Any]) -> None:
        """As :meth:`begun`."""
        self.begun(federation)

    def ended(self, federation: Federation) -> None:
        """As :meth:`begun`."""
        self.begun(federation)

    def begun(self, federation: Federation) -> None:
        """Drop the seeds of committed rounds: with one and its sums, the noise could be taken off again."""
        if not federation.config.privacy.noise_multiplier:
            return
        committed = {(r.round, r.attempt) for r in federation.ledger.rounds.all() if r.state == "committed"}
        for key, row in federation.ledger.privacy.all().items():
            mechanism = msgspec.json.decode(row, type=Mechanism)
            if key in committed and mechanism.seed:
                forgotten = msgspec.structs.replace(mechanism, seed=b"")
                federation.ledger.privacy.replace(*key, msgspec.json.encode(forgotten))


def note_mechanism(federation: Federation, round_index: int, attempt: int, *, cohort: int, population: int) -> None:
    """Write what a planned attempt will add to its sum to the ledger, once; nothing in a run without noise.

    Args:
        cohort: devices that were drawn.
        population: devices they were drawn from.
    """
    privacy = federation.config.privacy
    if not privacy.noise_multiplier or _mechanism(federation, round_index, attempt) is not None:
        return
    name = f"{federation.config.federation.seed}\nnoise\n{round_index}\n{attempt}"
    mechanism = Mechanism(
        seed=hashlib.sha256(name.encode()).digest() if privacy.reproducible else secrets.token_bytes(SEED_BYTES),
        clip_norm=privacy.clip_norm,
        multiplier=privacy.noise_multiplier,
        denominator=federation.config.cohort.size,
        cohort=cohort,
        population=population,
    )
    federation.ledger.privacy.add(round_index, attempt, msgspec.json.encode(mechanism))


def noise_of(federation: Federation, current: Round) -> Mechanism | None:
    """What is added to the attempt's sum; None in a run without noise.

    Raises:
        LedgerError: the round was committed and its seed is gone: its sum can never be made again.
    """
    if not federation.config.privacy.noise_multiplier:
        return None
    # An attempt that was planned by a process which died before it wrote the row: nothing helps but the noise itself.
    size = len(federation.ledger.assignments.of_attempt(current.round, current.attempt))
    note_mechanism(federation, current.round, current.attempt, cohort=size, population=size)
    mechanism = _mechanism(federation, current.round, current.attempt)
    assert mechanism is not None
    if not mechanism.seed:
        raise LedgerError(
            f"round {current.round + 1}: its noise was forgotten when it was committed, so its model cannot be made "
            "again; put the blob back from a copy"
        )
    return mechanism


def noisy_mean(mechanism: Mechanism, weights: Tensors, total: Tensors) -> dict[str, np.ndarray]:
    """``weights`` plus (the sum of differences ``total`` and its noise) / denominator, in the weights' dtypes."""
    deviation = mechanism.clip_norm * mechanism.multiplier
    mean = {}
    for name, value in total.items():
        noise = normal(mechanism.seed, name, value.shape, deviation)
        mean[name] = (weights[name] + (value + noise) / mechanism.denominator).astype(weights[name].dtype)
    return mean


def check_covered(manifest: ArtifactManifest, order: WorkOrder) -> None:
    """Check that noise for trained weights covers all that the update of ``order`` would tell.

    Raises:
        PlanError: running statistics or sums of gradients would travel with it, which are functions of the data too.
    """
    specs = [manifest.tensor(name.removesuffix(KEPT)) for name in order.upload]
    bare = [s.name for s in specs if s.role != "parameter" and not s.dtype.startswith(("int", "uint"))]
    if bare:
        named = f"{', '.join(bare[:3])}{' and more' if len(bare) > 3 else ''}"
        raise PlanError(
            f"device {order.device} would send {named}, which noise for trained weights does not cover; take a model "
            "without batch norms, or leave out $.privacy.noise-multiplier"
        )


def privacy_summary(federation: Federation) -> dict[str, Any]:
    """``privacy`` of a run's summary; nothing for a run that neither clips nor masks."""
    privacy = federation.config.privacy
    if not privacy.clip_norm and not privacy.secure_aggregation:
        return {}
    told: dict[str, Any] = {
        "clip_norm": privacy.clip_norm,
        "noise_multiplier": privacy.noise_multiplier,
        "secure_aggregation": privacy.secure_aggregation,
    }
    if privacy.noise_multiplier:
        told |= {"epsilon": epsilon(_releases(federation), privacy.delta), "delta": privacy.delta}
        told["protects"] = not privacy.reproducible
        if privacy.reproducible:
            told["warning"] = "reproducible noise comes from the run's seed: it protects nothing"
    return {"privacy": told}


def _mechanism(federation: Federation, round_index: int, attempt: int) -> Mechanism | None:
    row = federation.ledger.privacy.all().get((round_index, attempt))
    return None if row is None else msgspec.json.decode(row, type=Mechanism)


def _known(federation: Federation, round_index: int, chosen: int, population: int) -> int:
    """Of ``population`` devices that a cohort was drawn from, how many are known to train: those that reported lately.

    Whoever only says hello makes nobody's part in a cohort less likely than it looks. Fewer than the cohort: all of it
    counts as drawn, which is the bound without sampling.
    """
    lately = len(federation.ledger.updates.reporters(round_index - LATELY))
    return max(chosen, min(population, lately))


def released(multiplier: float, attempts: Sequence[tuple[int, int]]) -> Release:
    """What the last of ``attempts`` at a round lets out, each the (cohort, population) of a draw.

    A device that is in no released sum of an attempt that failed may be in that of the next one: its chance of being in
    one is at most the sum of its chances, and is taken for that.
    """
    population = min(population for _, population in attempts)
    return Release(multiplier, min(population, sum(cohort for cohort, _ in attempts)), population)


def _tried(rows: Mapping[tuple[int, int], bytes], round_index: int) -> list[tuple[int, int]]:
    """(Cohort, population) of every attempt at a round, in order."""
    found = [msgspec.json.decode(row, type=Mechanism) for key, row in sorted(rows.items()) if key[0] == round_index]
    return [(mechanism.cohort, mechanism.population) for mechanism in found]


def _releases(federation: Federation) -> list[Release]:
    """Of every attempt whose sum was made or may have been: abandoned ones had none, but cost the one after them."""
    rows = federation.ledger.privacy.all()
    summed = [(r.round, r.attempt) for r in federation.ledger.rounds.all() if r.state in ("aggregating", "committed")]
    return [
        released(
            msgspec.json.decode(rows[key], type=Mechanism).multiplier,
            _tried({k: row for k, row in rows.items() if k[1] <= key[1]}, key[0]),
        )
        for key in summed
        if key in rows
    ]


def _clipped(federation: Federation, entry: Assignment, update: Update) -> tuple[Update, Differences, Differences]:
    """(The update, clipped; the weights it was trained from; its clipped differences), trained tensors alone."""
    order = read_order(entry.order)
    where = f"device {entry.device}, round {entry.round + 1}"
    path = federation.blobs.path(order.weights.digest)
    sent = unpacked(read_tensor_file(path, where=where), order_masks(federation.blobs, order), where=where)
    specs = federation.artifacts.load(entry.artifact_digest).manifest.specs("parameter")
    names = [spec.name for spec in specs if spec.name in update.tensors]
    kept, _ = scale_down(difference(update.tensors, sent, names), federation.config.privacy.clip_norm)
    values = {name: (sent[name] + kept[name]).astype(sent[name].dtype) for name in names}
    return replace(update, tensors={**update.tensors, **values}), {name: sent[name] for name in names}, kept


def _noisy_update(
    mechanism: Mechanism, clipped: Iterable[tuple[Update, Differences, Differences]], *, where: str
) -> Update:
    total: Differences = {}
    first: Update | None = None
    weights: Differences = {}
    for update, sent, kept in clipped:
        if first is None:
            first, weights = update, sent
        elif first.cut != update.cut:
            raise PlanError(
                f"{where}: the devices' cuts differ, and noise is measured for one; use a method of one cut"
            )
        for name, value in kept.items():
            total[name] = total.get(name, 0.0) + value
    if first is None:
        raise PlanError(f"{where}: no updates to aggregate; repeat the round")
    mean = noisy_mean(mechanism, weights, total)
    # Counts of batches are the same on every device that trains as ordered; anything else of the data was refused.
    rest = {name: value for name, value in first.tensors.items() if name not in mean and value.dtype.kind != "f"}
    return Update("noisy sum", first.level, first.cut, {**rest, **mean}, num_examples=1)
