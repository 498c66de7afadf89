"""From a configuration and a plan to the work order of one device: schedule, hyper-parameters, uploads, seeds."""

from __future__ import annotations

import math

import msgspec

from coordinator.config.run_config import RunConfig
from coordinator.config.training import TrainingConfig
from coordinator.device_scores.held_out import EVAL, held_out
from coordinator.exporting.parameter_groups import group_values
from coordinator.planning.artifacts import Artifact
from coordinator.privacy.one_cut import is_summable
from coordinator.rounds.program_schedule import training_turns
from coordinator.submodels.packed_tensors import trained_names
from coordinator.submodels.values import AS_THE_RUN_SAYS, DeviceProgram, LocalWork
from edge.contracts.errors import PlanError
from edge.contracts.fixed_sample import FixedSample
from edge.contracts.manifest import ArtifactManifest
from edge.contracts.plan import BlobRef, Schedule, Turn, WorkOrder, assignment_id
from edge.contracts.streams import stream_seed
from edge.runtimes import traits_of
from profiles.device import DeviceProfile


def learning_rate(training: TrainingConfig, round_index: int, rounds: int) -> float:
    """Learning rate of a round, as ``[training] lr-schedule`` says, less of it while ``lr-warm-up`` lasts.

    Source: SLT (NeurIPS 2023), training settings: lr(r) = lr_T + (lr_0 - lr_T) / 2 (1 + cos(pi r / R)). PruneFL's
    0.5^(r / 10000) is the exponential one, FedHM's preprint has steps. Gradual warm-up: Goyal et al. 2017, section 2.2.
    """
    share = min(1.0, (round_index + 1) / (training.lr_warm_up + 1))
    return share * _scheduled_rate(training, round_index, rounds)


def _scheduled_rate(training: TrainingConfig, round_index: int, rounds: int) -> float:
    if training.lr_schedule == "cosine":
        span = (training.lr - training.lr_final) / 2
        return training.lr_final + span * (1 + math.cos(math.pi * round_index / rounds))
    if training.lr_schedule == "steps":
        return training.lr * training.lr_factor ** sum(round_index >= passed for passed in training.lr_milestones)
    if training.lr_schedule == "exponential":
        return float(training.lr * 0.5 ** (round_index / training.lr_half_life))
    return training.lr


def hyper_parameters(
    training: TrainingConfig, program: DeviceProgram, manifest: ArtifactManifest, name: str, *, lr: float
) -> dict[str, float]:
    """Values of the scalar inputs that program ``name`` of the artifact has.

    Raises:
        PlanError: the program has a scalar input nobody has a value for.
    """
    values = {
        "lr": lr,
        "momentum": training.momentum,
        "weight_decay": training.weight_decay,
        "clip_norm": training.clip_norm,
        "proximal_mu": training.proximal_mu,
        "frobenius_lambda": training.frobenius_lambda or training.weight_decay,
        "beta1": 0.9,
        "beta2": 0.999,
        "eps": 1e-8,
        "stats_momentum": 1.0,
        **group_values(training.groups),
        **program.extra_hyper,
    }
    inputs = set(manifest.program(name).inputs)
    wanted = [spec.name for spec in manifest.specs("hyper") if spec.name in inputs]
    unknown = sorted(set(wanted) - values.keys())
    if unknown:
        raise PlanError(
            f"program '{name}' has scalar inputs {unknown} without a value; set them in the method's options"
        )
    return {hyper: float(values[hyper]) for hyper in wanted}


def build_order(
    config: RunConfig,
    federation: str,
    profile: DeviceProfile,
    artifact: Artifact,
    weights: BlobRef,
    device_program: DeviceProgram,
    *,
    constants: BlobRef | None = None,
    round_index: int,
    attempt: int,
    program: str,
    peak_bytes: int,
    threads: int = 1,
    run: str = "",
    holds_out: bool = False,
    cluster: str = "",
    work: LocalWork = AS_THE_RUN_SAYS,
    tokenizer: BlobRef | None = None,
) -> WorkOrder:
    """The order of one device.

    Args:
        program: ``train``, ``stats`` (one pass over the data, buffers come back) or ``eval`` (scores alone come back).
        run: the run's nonce.
        holds_out: the device can keep examples out of its training.
        cluster: whose model it is; empty: that of all devices.
        work: what the method asks for in place of ``[training]``; of training rounds alone.
        tokenizer: of a language model's texts; None: devices use their own.
    """
    training, manifest = config.training, artifact.manifest
    if program == "train":
        turns = training_turns(
            device_program, seed=config.federation.seed, round_index=round_index, device=profile.device
        )
        epochs, steps = (0, work.steps) if work.steps else (training.epochs, training.steps)
        schedule = Schedule(epochs=epochs, steps=steps, turns=turns)
        upload = trained_names(manifest)
    elif program == EVAL:
        steps = config.personal.fine_tune
        schedule = Schedule(steps=steps, turns=(Turn("train"),) if steps else ())
        upload = []
    else:
        schedule = Schedule(epochs=1, turns=(Turn(program),))
        gathered = {output.tensor for output in manifest.program(program).outputs}
        upload = [s.name for s in manifest.specs("buffer") if s.name in gathered]
    names = [spec.name for spec in manifest.specs("parameter", "buffer")]
    personal = config.personal.of(names)
    upload = [name for name in upload if name not in personal]
    # A page sends what it trained as it is.
    is_browser = traits_of(manifest.runtime).is_in_browser
    lr = training.lr if program == EVAL else learning_rate(training, round_index, config.federation.rounds)
    stepped = "train" if program == EVAL and config.personal.fine_tune else program
    rule = held_out(config, manifest, profile.device, round_index, program) if holds_out else None
    return WorkOrder(
        assignment_id=assignment_id(federation, round_index, profile.device, attempt, run),
        federation=federation,
        run=run,
        method=config.method.name,
        device=profile.device,
        round=round_index,
        attempt=attempt,
        artifact=artifact.ref,
        weights=weights,
        constants=constants,
        schedule=schedule,
        batch=training.batch,
        last_batch=training.last_batch,
        data_seed=stream_seed(config.federation.seed, "batch-order", round_index, profile.device),
        hyper=hyper_parameters(training, device_program, manifest, stepped, lr=lr),
        upload=tuple(upload),
        personal=personal or msgspec.UNSET,
        held_out=msgspec.UNSET if rule is None else rule,
        sample=fixed_sample(config, profile.device, work) if program == "train" else msgspec.UNSET,
        cluster=cluster or msgspec.UNSET,
        tokenizer=tokenizer or msgspec.UNSET,
        peak_bytes=peak_bytes,
        threads=threads,
        report_labels=device_program.reports_labels and program == "train",
        precision=config.updates.precision if program == "train" and not is_browser else "fp32",
        encoding="raw" if is_browser else config.updates.encoding,
        summable=is_summable(config, device_program),
    )


def fixed_sample(config: RunConfig, device: str, work: LocalWork) -> FixedSample | msgspec.UnsetType:
    """The sample of a device's examples that a method asks for, the same in all rounds."""
    if not work.examples:
        return msgspec.UNSET
    return FixedSample(size=work.examples, seed=stream_seed(config.federation.seed, "fixed-sample", 0, device))
