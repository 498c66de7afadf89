"""Offers, blocks and reports: what counts, what is asked for again, and what is rejected."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from coordinator.ledger.ledger import Ledger
from edge.contracts.messages import Ack, Offer, Put
from edge.contracts.plan import BlobRef
from edge.contracts.tensor_file import encode_tensors
from edge.serving.uploads import UPLOAD_BLOCK_BYTES, UPLOAD_TRIES, UPLOAD_WINDOW
from tests.contracts.samples import MANIFEST
from tests.coordinator.messaging.inbox_bench import (
    FEDERATION,
    REPORT,
    SHAPE,
    UPDATE,
    MessageLoop,
    digest_of,
    hello,
    ref_of,
)


@pytest.fixture
def handler(tmp_path: Path) -> Iterator[MessageLoop]:
    with Ledger.create(tmp_path / "ledger.sqlite", federation=FEDERATION, config="", seed=0) as ledger:
        handler = MessageLoop(tmp_path, ledger)
        yield handler
        handler.publisher.close()


def test_offer_is_granted_from_where_an_earlier_upload_stopped(handler: MessageLoop) -> None:
    ref = ref_of(UPDATE)
    ((kind, grant),) = handler.gets("pi-1", "offer", Offer(handler.id(), ref))
    assert (kind, grant.offset, grant.block_bytes, grant.window) == ("grant", 0, UPLOAD_BLOCK_BYTES, UPLOAD_WINDOW)
    handler.gets("pi-1", "put", Put(handler.id(), ref.digest, 0, UPDATE[:100]))
    ((_, grant),) = handler.gets("pi-1", "offer", Offer(handler.id(), ref))
    assert grant.offset == 100


def test_offer_of_more_than_was_ordered_is_rejected(handler: MessageLoop) -> None:
    ((kind, ack),) = handler.gets("pi-1", "offer", Offer(handler.id(), BlobRef("a" * 64, 10**8, "raw", 10**8)))
    assert (kind, ack.code) == ("ack", "update-rejected")
    assert f"update of {10**8} bytes, at most {10 * 64 * 4 + 4 * 2**20} ordered" in ack.reason
    assert handler.state() == "rejected"


@pytest.mark.parametrize("digest", ["../../etc/passwd", "A" * 64, "a" * 63, ""])
def test_offer_of_what_is_no_digest_is_an_error(handler: MessageLoop, digest: str) -> None:
    ((kind, error),) = handler.gets("pi-1", "offer", Offer(handler.id(), BlobRef(digest, 10, "raw", 10)))
    assert (kind, error.code) == ("error", "bad-message")
    assert handler.state() == "open"


def test_put_out_of_order_or_repeated_is_answered_with_where_to_go_on(handler: MessageLoop) -> None:
    ref = ref_of(UPDATE)
    handler.gets("pi-1", "offer", Offer(handler.id(), ref))
    ((_, grant),) = handler.gets("pi-1", "put", Put(handler.id(), ref.digest, 100, UPDATE[100:200]))
    assert grant.offset == 0
    for _ in range(2):
        ((_, grant),) = handler.gets("pi-1", "put", Put(handler.id(), ref.digest, 0, UPDATE[:100]))
        assert grant.offset == 100
    ((_, grant),) = handler.gets("pi-1", "put", Put(handler.id(), ref.digest, 100, UPDATE[100:]))
    assert grant.offset == len(UPDATE)
    assert handler.points.count("mid-upload") == 4


def test_put_that_was_not_offered_is_ignored(handler: MessageLoop) -> None:
    assert handler.gets("pi-1", "put", Put(handler.id(), digest_of(UPDATE), 0, UPDATE)) == []
    handler.upload()
    assert handler.gets("pi-1", "put", Put(handler.id(), "b" * 64, 0, UPDATE)) == []


def test_report_is_recorded_before_it_is_acknowledged_and_counts_once(handler: MessageLoop) -> None:
    ref = handler.upload()
    for _ in range(3):
        ((kind, ack),) = handler.report(ref)
        assert (kind, ack) == ("ack", Ack(handler.id(), True))
    (update,) = handler.ledger.updates.of_attempt(0, 0)
    assert (update.update_digest, update.report.num_examples) == (ref.digest, REPORT.num_examples)
    assert handler.blobs.read(ref.digest) == UPDATE
    assert ref.digest in handler.ledger.blobs.sizes()
    assert list((handler.blobs.root / "partial").iterdir()) == []


def test_report_leaves_a_measurement(handler: MessageLoop) -> None:
    handler.report(handler.upload(), trainer_peak_bytes=70, supervisor_peak_bytes=31, step_ms_p50=4.5)
    (measured,) = handler.ledger.measurements.all()
    assert (measured.device, measured.export_key, measured.batch) == ("pi-1", MANIFEST.export_key, 16)
    assert (measured.predicted_peak_bytes, measured.measured_peak_bytes, measured.step_ms) == (100, 101, 4.5)


def test_report_after_a_restart_of_the_coordinator_needs_no_second_upload(handler: MessageLoop, tmp_path: Path) -> None:
    ref = handler.upload()
    handler.inbox.uploads._uploads.clear()  # what a new process does not have
    ((_, ack),) = handler.report(ref)
    assert ack.accepted


def test_report_without_all_bytes_asks_for_them_and_the_upload_goes_on(handler: MessageLoop) -> None:
    ref = ref_of(UPDATE)
    ((kind, grant),) = handler.report(ref)
    assert (kind, grant.offset) == ("grant", 0)
    handler.gets("pi-1", "put", Put(handler.id(), ref.digest, 0, UPDATE))
    ((_, ack),) = handler.report(ref)
    assert ack.accepted


def test_report_of_other_bytes_is_rejected_after_some_tries(handler: MessageLoop) -> None:
    ref = ref_of(UPDATE)
    for _ in range(UPLOAD_TRIES - 1):
        handler.upload(data=bytes(len(UPDATE)), announced=ref)
        ((kind, _),) = handler.report(ref)
        assert kind == "grant"
    handler.upload(data=bytes(len(UPDATE)), announced=ref)
    ((kind, ack),) = handler.report(ref)
    assert (kind, ack.code) == ("ack", "update-rejected")
    assert f"{UPLOAD_TRIES} uploads and never the announced bytes" in ack.reason
    assert handler.ledger.updates.of_attempt(0, 0) == ()


def test_report_that_names_a_blob_of_ours_is_rejected_and_the_blob_stays(handler: MessageLoop) -> None:
    ((_, ack),) = handler.report(handler.artifact)
    assert not ack.accepted
    assert "the update is not a tensor file" in ack.reason
    assert handler.artifact.digest in handler.blobs


@pytest.mark.parametrize(
    ("tensors", "why"),
    [
        ({"fc1.weight": np.full(SHAPE, np.nan, np.float32)}, r"'fc1.weight' holds 640 values that are not finite"),
        ({"fc1.weight": np.full(SHAPE, 2e15, np.float32)}, r"'fc1.weight' holds 2e+15, at most 1e+15"),
        ({"fc1.weight": np.zeros((64, 10), np.float32)}, "has shape (64, 10), plan says (10, 64)"),
        ({"fc1.weight": np.zeros(SHAPE, np.float16)}, "is float16, plan says float32"),
        ({"fc1.bias": np.zeros(10, np.float32)}, "1 tensors missing ['fc1.weight'], 1 not ordered ['fc1.bias']"),
    ],
    ids=["nan", "huge", "shape", "dtype", "names"],
)
def test_report_of_another_update_than_ordered_is_rejected(
    handler: MessageLoop, tensors: dict[str, np.ndarray], why: str
) -> None:
    ((_, ack),) = handler.report(handler.upload(data=encode_tensors(tensors)))
    assert (ack.accepted, ack.code) == (False, "update-rejected")
    assert f"device pi-1, round 0: {why}" in ack.reason.replace("update for 'fc1.weight' ", "")
    assert handler.state() == "rejected"
    assert handler.state("pi-2") == "open"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"loss": float("nan")}, "Expected `float` >= -1e+30 - at `$.loss`, not nan"),
        ({"loss": 1.7e308}, "Expected `float` <= 1e+30 - at `$.loss`, not 1.7e+308"),
        ({"metrics": {"accuracy": float("-inf")}}, "Expected `float` >= -1e+30 - at `$.metrics[...]`"),
        ({"num_examples": 0}, "stands for 0 examples, at least 1 expected"),
        ({"num_examples": -5}, "at `$.num_examples`, not -5"),
        ({"num_examples": 2**53}, f"at `$.num_examples`, not {2**53}"),
        ({"steps": 2**63}, f"Expected `int` <= {2**53} - at `$.steps`, not {2**63}"),
        ({"bytes_down": -1}, "at `$.bytes_down`, not -1"),
        ({"device": "pi-2"}, "report says device 'pi-2', round 0"),
        ({"round": 1}, "report says device 'pi-1', round 1"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_report_that_the_ledger_or_a_mean_could_not_take_is_rejected(
    handler: MessageLoop, changes: dict[str, Any], why: str
) -> None:
    ((_, ack),) = handler.report(handler.upload(), **changes)
    assert (ack.accepted, ack.code) == (False, "update-rejected")
    assert why in ack.reason
    assert handler.ledger.updates.of_attempt(0, 0) == ()


def test_report_of_a_device_that_has_no_examples_is_rejected(handler: MessageLoop) -> None:
    handler.gets("pi-1", "hello", hello("pi-1", num_examples=0))
    ((_, ack),) = handler.report(handler.upload(), num_examples=1)
    assert (ack.accepted, ack.code) == (False, "update-rejected")
    assert "stands for 1 examples, the device's hello said 0" in ack.reason


def test_report_before_any_hello_is_answered_with_a_call(handler: MessageLoop) -> None:
    ref = handler.upload()
    told = msgspec.structs.replace(REPORT, assignment_id=handler.id(), device="pi-1", round=0, update=ref)
    assert handler.gets("pi-1", "report", told) == [("hello", None)]
    assert handler.state() == "open"
    handler.gets("pi-1", "hello", hello("pi-1", num_examples=REPORT.num_examples))
    ((_, ack),) = handler.gets("pi-1", "report", told)
    assert ack.accepted


def test_report_after_the_deadline_is_stale(handler: MessageLoop) -> None:
    ref = handler.upload()
    assert handler.ledger.assignments.expire(handler.id())
    ((_, ack),) = handler.report(ref)
    assert (ack.accepted, ack.code) == (False, "stale-round")
    assert ack.reason == "round 0, attempt 0: assignment is expired. no report before the deadline"
    assert handler.ledger.updates.of_attempt(0, 0) == ()


def test_expire_leaves_an_answered_assignment_alone(handler: MessageLoop) -> None:
    handler.report(handler.upload())
    assert not handler.ledger.assignments.expire(handler.id())
    assert handler.state() == "reported"
