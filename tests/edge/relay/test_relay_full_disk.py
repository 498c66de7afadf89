"""A relay whose disk fails at a durable write: it lives, each update counts once, the sum has the same bits."""

from __future__ import annotations

import errno
import time
from pathlib import Path

import msgspec
import pytest

from edge.contracts.plan import assignment_id
from edge.relay import relay as relay_module
from edge.relay.settings import RelaySettings
from edge.relay.site_hello import nobody
from edge.relay.site_work import SiteRecord, SiteWork
from tests.edge.relay.site_bench import RELAY, assert_is, expected_mean, site_job
from tests.edge.relay.test_site import Site
from tests.failing_disk import FailingDisk, failing
from tests.waiting import wait_until

pytestmark = pytest.mark.slow

AGAIN_S = 0.3


def one_round(folder: Path, disk: FailingDisk) -> list[str]:
    """A round of a site of two with ``disk`` under its relay; the codes of what the relay refused on the way.

    As a coordinator would, it says an order again until it is answered, and orders anew what was refused.
    """
    site = Site(folder)
    try:
        relay = site.relay()
        first = site.device("a", examples=30, add=0.1)
        second = site.device("b", examples=10, add=-0.7)
        site.ready(40)
        refused: list[str] = []
        with failing(disk):
            for attempt in range(6):
                job = site_job()
                identity = assignment_id("fed", 0, RELAY, attempt)
                job.order = msgspec.structs.replace(job.order, assignment_id=identity, attempt=attempt)
                site.coordinator.blobs.update(job.blobs)
                if answer(site, job.order, refused):
                    break
            assert_is(site.coordinator.updates[identity], expected_mean(job, first, second))
            assert list(site.coordinator.reports) == [identity]
            assert site.coordinator.reports[identity].num_examples == 40
            wait_until(lambda: relay.state == "idle", "the end of the round")
        assert first.trained.count(first.orders[-1].assignment_id) == 1
        wait_until(lambda: not any((folder / "relay").glob("site/*")), "its work to be forgotten")
        wait_until(lambda: not any((folder / "relay").glob("work/*")), "its update to be forgotten")
    finally:
        site.close()
    assert site.failures == []
    return refused


def answer(site: Site, order: msgspec.Struct, refused: list[str]) -> bool:
    """Whether ``order`` is reported; one that is refused adds its code to ``refused``."""
    identity, give_up_at = order.assignment_id, time.monotonic() + 30.0  # type: ignore[attr-defined]
    while time.monotonic() < give_up_at:
        site.coordinator.order(order)
        said_again_at = time.monotonic() + AGAIN_S
        while time.monotonic() < said_again_at:
            for kind, body in list(site.coordinator.seen):
                if kind == "refuse" and body.assignment_id == identity:
                    refused.append(body.code)
                    return False
            if identity in site.coordinator.reports:
                return True
            assert site.failures == []
            time.sleep(0.01)
    raise AssertionError(f"no answer to {identity[:12]}; {site.coordinator.kinds()}")


@pytest.mark.parametrize(("number", "kind"), [(errno.ENOSPC, "open"), (errno.EIO, "sync")])
def test_disk_that_fails_at_each_file_costs_no_update(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, kind: str
) -> None:
    """The order's record, a blob, the record as handed out, each device's update and report, who counts, the sum, what
    is finished and what is settled."""
    monkeypatch.setattr(relay_module, "POLL_S", 0.02)
    monkeypatch.setattr("edge.transfer.uploader.REPEAT_S", 0.2)
    (tmp_path / "calm").mkdir()
    calm = FailingDisk(tmp_path / "calm" / "relay", 0, times=0)
    assert one_round(tmp_path / "calm", calm) == []
    # Of the order's three blobs one is enough; those of devices are named by their contents, too.
    names = [what.removesuffix(".tmp").removesuffix(".raw") for what in calm.done]
    files = {name: at for at, name in enumerate(names, 1) if name.startswith(kind) and "blobs" not in name}
    folders = {f"sync {name}" for name in ("blobs", "reports", "relay")}
    places = [at for name, at in files.items() if name not in folders]
    assert len(places) >= 9, calm.done
    blobs = [at for at in places if len(names[at - 1].split()[1]) == 64]
    for at in sorted({*places} - {*blobs[1:3]}):
        folder = tmp_path / str(at)
        folder.mkdir()
        disk = FailingDisk(folder / "relay", at, number)
        refused = one_round(folder, disk)
        assert disk.failed, (at, names[at - 1])
        assert set(refused) <= {"store-full"}, (at, names[at - 1], refused)


def test_order_that_cannot_be_kept_leaves_nothing_behind(tmp_path: Path) -> None:
    settings = RelaySettings(federation="fed", device=RELAY, site="hall-devices")
    record = SiteRecord.taken(site_job().order, nobody(settings))
    with failing(FailingDisk(tmp_path, 1, only="rename")), pytest.raises(OSError, match="No space left"):
        SiteWork.begin(tmp_path / "site", record)
    assert list((tmp_path / "site").iterdir()) == []
    assert SiteWork.begin(tmp_path / "site", record).folder.is_dir()
