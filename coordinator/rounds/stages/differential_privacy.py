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
from coordinator.privacy.accountant import PrivacyBudgetSpent, epsilon
from coordinator.privacy.gaussian_noise import SEED_BYTES, Differences, difference, normal, scale_down
from coordinator.privacy.releases import (
    Mechanism,
    draws_of,
    known_to_train,
    mechanism_of,
    mechanisms,
    released,
    releases,
)
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

    def check(self, federation: Federation, *, chosen: int, drawn_from: Sequence[str]) -> None:
        """Check that a round with ``chosen`` devices of ``drawn_from`` may be released.

        Raises:
            PrivacyBudgetSpent: it would spend more than the run may.
        """
        privacy = federation.config.privacy
        if not privacy.max_epsilon:
            return
        spent, committed = releases(federation.ledger), federation.ledger.rounds.last_committed()
        round_index = 0 if committed is None else committed.round + 1
        tried = draws_of(federation.ledger, round_index)
        known = max(chosen, known_to_train(federation.ledger, round_index, drawn_from))
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

    def planned(self, federation: Federation, current: Round, *, chosen: int, drawn_from: Sequence[str]) -> None:
        """Write what the attempt will add to its sum to the ledger, once."""
        known = max(chosen, known_to_train(federation.ledger, current.round, drawn_from))
        note_mechanism(federation, current.round, current.attempt, cohort=chosen, population=known)

    def participants(self, federation: Federation, current: Round, reported: list[str]) -> list[str]:
        """Those that reported; who was drawn for the round and is silent hides nobody in its sum."""
        mechanism = mechanism_of(federation.ledger, current.round, current.attempt)
        if mechanism is not None:
            asked = {
                entry.device
                for attempt in range(current.attempt + 1)
                for entry in federation.ledger.assignments.of_attempt(current.round, attempt)
            }
            silent = known_to_train(federation.ledger, current.round, sorted(asked - set(reported)))
            counted = msgspec.structs.replace(mechanism, silent=silent)
            federation.ledger.privacy.replace(current.round, current.attempt, msgspec.json.encode(counted))
        return reported

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
        mechanism = mechanism_of(federation.ledger, current.round, current.attempt)
        if mechanism is None:
            return {}
        return {
            "privacy": {
                "epsilon": epsilon(releases(federation.ledger), privacy.delta),
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
        for key, mechanism in mechanisms(federation.ledger).items():
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
    if not privacy.noise_multiplier or mechanism_of(federation.ledger, round_index, attempt) is not None:
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
    mechanism = mechanism_of(federation.ledger, current.round, current.attempt)
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
        told |= {"epsilon": epsilon(releases(federation.ledger), privacy.delta), "delta": privacy.delta}
        told["protects"] = not privacy.reproducible
        if privacy.reproducible:
            told["warning"] = "reproducible noise comes from the run's seed: it protects nothing"
    return {"privacy": told}


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
