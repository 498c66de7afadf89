"""What a training gives: the reference's tensors, on every kind of order."""

from __future__ import annotations

from coordinator.conformance.findings import NotApplicable, expect
from coordinator.conformance.kit import Kit
from coordinator.conformance.registry import scenario
from edge.contracts.fixed_sample import ABILITY, FixedSample
from edge.contracts.plan import Schedule, Turn

BATCHES = "Batches"
SAMPLES = "Fixed samples"
RESULT = "A round, seen from a device, 4"


@scenario("A round, seen from a device, 3")
def training_gives_the_reference(kit: Kit) -> str:
    """Three steps of SGD with momentum, normalised bytes, one masked class."""
    return kit.train()


@scenario(BATCHES)
def epochs_drop_the_incomplete_batch(kit: Kit) -> str:
    """Two epochs of whole batches in the order of the data seed."""
    return kit.train("masked", schedule=Schedule(epochs=2), last_batch="drop")


@scenario(BATCHES)
def epochs_keep_the_incomplete_batch(kit: Kit) -> str:
    """The last batch of an epoch is smaller."""
    _need_any_batch(kit)
    return kit.train(schedule=Schedule(epochs=2), last_batch="keep")


@scenario(BATCHES)
def epochs_wrap_the_incomplete_batch(kit: Kit) -> str:
    """The last batch of an epoch is filled from the start of its order."""
    return kit.train(schedule=Schedule(epochs=2), last_batch="wrap")


@scenario(BATCHES)
def steps_go_over_the_end_of_an_epoch(kit: Kit) -> str:
    """Steps count batches, epoch after epoch, each in an order of its own."""
    return kit.train(schedule=Schedule(steps=8), last_batch="wrap")


@scenario(BATCHES)
def batch_larger_than_the_data_is_filled(kit: Kit) -> str:
    """With fewer examples than a batch, drop fills as wrap does."""
    _need_any_batch(kit)
    return kit.train(batch=32, last_batch="drop")


@scenario(BATCHES)
def augmentation_is_drawn_from_its_stream(kit: Kit) -> str:
    """flip and crop4, on raw values, by the uniform numbers of each batch."""
    return kit.train("augmented", schedule=Schedule(steps=5))


@scenario(BATCHES)
def turns_run_their_programs_in_cycles(kit: Kit) -> str:
    """Two programs, the first on the batch that the second sees again."""
    turns = (Turn("train", False), Turn("train_half", True), Turn("train", True))
    return kit.train(schedule=Schedule(steps=5, turns=turns))


@scenario(SAMPLES)
def sample_alone_is_trained_on(kit: Kit) -> str:
    """Two epochs of 11 of the examples, the same 11 in both."""
    return _train_on_sample(kit, 11)


@scenario(SAMPLES)
def sample_of_more_than_there_are_is_all(kit: Kit) -> str:
    """A sample of 1,000 examples, which the device has not."""
    return _train_on_sample(kit, 1000)


@scenario(RESULT)
def batch_norm_moves_its_running_statistics(kit: Kit) -> str:
    """Buffers are carried from step to step and come back with the parameters."""
    return kit.train("batch-norm", schedule=Schedule(steps=4))


@scenario("Micro-batches")
def micro_batches_add_up_to_a_step(kit: Kit) -> str:
    """Program accumulate on each part, then train on the sums."""
    return kit.train("micro-batches", schedule=Schedule(steps=3))


@scenario("Masked tensors")
def masked_weights_travel_as_kept_entries(kit: Kit) -> str:
    """Kept entries and a mask among the constants come, kept entries go."""
    return kit.train("masked", seed=2)


@scenario(RESULT)
def upload_holds_what_was_ordered(kit: Kit) -> str:
    """Two of four tensors."""
    return kit.train(upload=("3.bias", "1.weight"))


@scenario(RESULT)
def report_says_what_was_done(kit: Kit) -> str:
    """Counts, loss, accuracy, times, memory, bytes and labels are plausible and fit the order."""
    kit.agent()
    job = kit.job("plain", seed=3, schedule=Schedule(steps=4), report_labels=True)
    report = kit.answer(job, "report", since=kit.order(job), timeout_s=60)
    seen, wanted = kit.check(job, report), kit.reference(job)
    connection = kit.site.connection
    expect((report.device, report.round) == (connection.device, job.order.round), "another device or round")
    expect(report.runtime == connection.runtime, f"runtime {report.runtime!r}")
    expect(report.num_examples == wanted.num_examples, f"{report.num_examples} examples of {wanted.num_examples}")
    accuracy = report.metrics.get("accuracy", -1.0)
    expect(abs(accuracy - wanted.accuracy) < 1e-6, f"accuracy {accuracy}, {wanted.accuracy} expected")
    expect(report.labels in (None, wanted.labels), f"labels {report.labels}, the data has {wanted.labels}")
    expect(0 < report.step_ms_p50 <= report.step_ms_p95, f"step_ms {report.step_ms_p50}, {report.step_ms_p95}")
    expect(report.wall_s > 0, f"wall_s {report.wall_s}")
    expect(report.trainer_peak_bytes > 0, f"trainer_peak_bytes {report.trainer_peak_bytes}")
    expect(report.trainer_peak_bytes >= report.trainer_idle_bytes >= 0, "trainer_peak_bytes below its idle size")
    expect(report.budget_bytes == connection.budget_mb * 2**20, f"budget_bytes {report.budget_bytes}")
    arrived = len(kit.script.uploads[job.id])
    expect(report.bytes_up == report.update.encoded_size == arrived, f"{report.bytes_up} bytes up, {arrived} came")
    # Others of this session may have brought the artifact and, with the same seed, the weights.
    expect(0 <= report.bytes_down <= 4_000_000, f"bytes_down {report.bytes_down}")
    expect(not report.torch_loaded, "torch was loaded")
    return f"{seen}; peak {report.trainer_peak_bytes >> 20} MB, {report.bytes_down} bytes down, {arrived} up"


def _need_any_batch(kit: Kit) -> None:
    size = kit.artifacts.get("plain").manifest.program("train").batch
    if size is not None:
        raise NotApplicable(f"programs of {kit.site.connection.runtime} run on batches of {size} only")


def _train_on_sample(kit: Kit, size: int) -> str:
    hello = kit.agent()
    if ABILITY not in hello.abilities:
        raise NotApplicable(f"no '{ABILITY}' among the abilities of its hello")
    examples = min(size, hello.num_examples)
    # The seed is above 2^63, as those of orders are.
    sample = FixedSample(size=size, seed=0xF0E1_D2C3_B4A5_9687)
    job = kit.job(schedule=Schedule(epochs=2), last_batch="wrap", sample=sample)
    report = kit.answer(job, "report", since=kit.order(job), timeout_s=60)
    expect(report.num_examples == examples, f"num_examples {report.num_examples}, the sample has {examples}")
    return kit.check(job, report)
