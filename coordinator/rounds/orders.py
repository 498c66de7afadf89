"""The orders of a round: each chosen device placed, its submodel cut and exported, its work order written."""

from __future__ import annotations

from collections.abc import Sequence

from coordinator.device_scores.held_out import EVAL
from coordinator.ledger.records import Assignment
from coordinator.methods.method import local_work
from coordinator.planning.artifacts import Artifact
from coordinator.planning.planner import Placement
from coordinator.rounds.cluster_models import cluster_state
from coordinator.rounds.control_variates import with_variates
from coordinator.rounds.federation import Federation
from coordinator.rounds.free_space import require_free_space
from coordinator.rounds.placement import StoredWeights, assignment_of, history_of, place_device
from coordinator.rounds.snapshot import profile_of
from coordinator.rounds.work_order import build_order
from coordinator.submodels.sparse_layers import with_sparse_layers
from coordinator.submodels.values import AS_THE_RUN_SAYS, State, Submodel
from coordinator.tracking.timing import timed
from edge.contracts.errors import PlanError
from edge.contracts.evaluation import ABILITY
from edge.contracts.fixed_sample import ABILITY as SAMPLES
from edge.contracts.messages import Hello
from export.forms.step_form import PLAIN


def orders_for(
    federation: Federation, state: State, chosen: Sequence[Hello], round_index: int, attempt: int, program: str
) -> tuple[list[Assignment], int]:
    """The assignments of those of the chosen devices that can take part, and how many could but for their budgets."""
    config, assignments = federation.config, list[Assignment]()
    able, history, stored = len(chosen), history_of(federation), StoredWeights(federation)
    work = local_work(federation.method, state) if program == "train" else AS_THE_RUN_SAYS
    cut_round = federation.cut_round(round_index, program)
    federation.ledger.profiles.freeze(hello.profile for hello in chosen)
    for hello in chosen:
        if work.examples and SAMPLES not in hello.abilities:
            raise PlanError(
                f"device {hello.device}, round {round_index + 1}: {config.method.name} takes a sample of "
                f"{work.examples} examples, and its agent trains on no sample; name another device in "
                "$.method.selected-device, or update its agent"
            )
        profile = profile_of(federation, hello)
        try:
            placement = place_device(federation, profile, state, round_index, history, cut_round)
        except PlanError as error:
            federation.progress.say(f"{error}")
            continue
        cluster = config.clusters.cluster(hello.tagged)
        with timed("cut", device=profile.device, level=placement.level.name):
            submodel = cut(federation, cluster_state(state, cluster), placement, cut_round)
        artifact = export(federation, submodel, placement)
        if not artifact.has_program(program):
            # Not every runtime's artifact need have it: a mean over the devices that do is still one.
            federation.progress.say(f"device {profile.device}: no '{program}' program on {placement.runtime}; left out")
            able -= 1
            continue
        holds_out = ABILITY in hello.abilities
        if program == EVAL and not holds_out:
            federation.progress.say(f"device {profile.device}: its agent scores on no share of its own; left out")
            able -= 1
            continue
        weights, constants = stored.store(with_variates(state, submodel, artifact.manifest), placement.form)
        order = build_order(
            config,
            federation.name,
            profile,
            artifact,
            weights,
            submodel.program,
            constants=constants,
            round_index=round_index,
            attempt=attempt,
            program=program,
            peak_bytes=placement.chosen.peak_bytes,
            threads=placement.chosen.threads,
            run=federation.ledger.nonce,
            holds_out=holds_out,
            cluster=cluster,
            work=work,
            tokenizer=stored.tokenizer() if submodel.program.has_base else None,
        )
        assignments.append(assignment_of(federation.method, order, submodel, placement))
    require_free_space(federation, state, assignments)
    return assignments, able


def cut(federation: Federation, state: State, placement: Placement, round_index: int) -> Submodel:
    """The submodel of a placed device: which part of every layer it holds, in the faster form, and the values."""
    seed, device = federation.config.federation.seed, placement.device
    submodel = federation.method.cut(state, placement.level, round_index=round_index, device=device, seed=seed)
    densities = federation.ledger.profiles.of(device).sparse_below.get(placement.runtime, {})
    return with_sparse_layers(submodel, densities) if densities and placement.form == PLAIN else submodel


def export(federation: Federation, submodel: Submodel, placement: Placement) -> Artifact:
    """The artifact for a submodel's shapes as placed; made, and held against torch, the first time they occur."""
    return federation.artifacts.get(submodel.cut, submodel.program, placement.runtime, placement.form)
