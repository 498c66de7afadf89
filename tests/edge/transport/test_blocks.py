"""Block transfers without a network: window, order, loss, resume, stalls, hostile blocks and grants."""

from __future__ import annotations

import pytest

from edge.contracts.messages import Block, Get, Grant
from edge.contracts.plan import BlobRef
from edge.transport.blocks import (
    MOST_BLOCK_BYTES,
    MOST_WINDOW,
    BlockRejected,
    Download,
    StallTimer,
    Upload,
)

DATA = bytes(range(250)) * 4
REF = BlobRef("a" * 64, 1000, "raw", 1000)


def answer(get: Get) -> Block:
    return Block(get.digest, get.offset, len(DATA), DATA[get.offset : get.offset + get.length])


def test_download_asks_no_further_than_its_window() -> None:
    download = Download(REF, 0, 0.0, block_bytes=100, window=3)
    assert [(g.offset, g.length) for g in download.requests(0.0)] == [(0, 100), (100, 100), (200, 100)]
    assert download.requests(0.1) == []
    download.receive(answer(Get(REF.digest, "raw", 0, 100)), 0.2)
    assert [g.offset for g in download.requests(0.2)] == [300]


def test_download_gives_bytes_in_order_whatever_the_order_of_arrival() -> None:
    download = Download(REF, 0, 0.0, block_bytes=300, window=4)
    blocks = [answer(get) for get in download.requests(0.0)]
    assert [len(b.data) for b in blocks] == [300, 300, 300, 100]
    given = [download.receive(blocks[i], 0.1) for i in (2, 0, 3, 1)]
    assert [len(g) for g in given] == [0, 300, 0, 700]
    assert b"".join(given) == DATA
    assert download.is_complete


def test_download_resumes_at_its_offset() -> None:
    download = Download(REF, 700, 0.0, block_bytes=200, window=2)
    assert [(g.offset, g.length) for g in download.requests(0.0)] == [(700, 200), (900, 100)]


def test_download_asks_again_after_a_stall_and_waits_twice_as_long() -> None:
    download = Download(REF, 0, 0.0, block_bytes=500, window=2)
    download.requests(0.0)
    download.receive(answer(Get(REF.digest, "raw", 500, 500)), 0.0)
    assert download.requests(1.9) == []
    assert [g.offset for g in download.requests(2.0)] == [0]  # the early second block is kept
    assert download.requests(5.9) == []
    assert [g.offset for g in download.requests(6.0)] == [0]


def test_download_asks_for_one_block_of_a_window_that_may_be_late_only() -> None:
    download = Download(REF, 0, 0.0, block_bytes=100, window=4)
    late = download.requests(0.0)
    assert [g.offset for g in download.requests(2.5)] == [0]
    for get in late:
        download.receive(answer(get), 3.0)
    assert [g.offset for g in download.requests(3.0)] == [400, 500, 600, 700]


def test_download_asks_for_all_of_a_window_that_is_lost() -> None:
    download = Download(REF, 0, 0.0, block_bytes=100, window=4)
    download.requests(0.0)
    (first,) = download.requests(2.5)
    download.receive(answer(first), 3.0)
    assert [g.offset for g in download.requests(3.0)] == [400]
    assert [g.offset for g in download.requests(60.0)] == [100, 200, 300, 400]
    for offset in (100, 200, 300, 400):
        download.receive(answer(Get(REF.digest, "raw", offset, 100)), 60.1)
    download.requests(60.1)
    assert [g.offset for g in download.requests(200.0)] == [500]  # of another window: late until that is known


def test_download_reconnected_asks_at_once() -> None:
    download = Download(REF, 0, 0.0, block_bytes=1000)
    download.requests(0.0)
    download.reconnected(0.5)
    assert [g.offset for g in download.requests(0.5)] == [0]


def test_download_shorter_blocks_than_asked_still_complete() -> None:
    download = Download(REF, 0, 0.0, block_bytes=400, window=2)
    got, now = b"", 0.0
    while not download.is_complete:
        for get in download.requests(now):
            got += download.receive(Block(get.digest, get.offset, 1000, DATA[get.offset : get.offset + 150]), now)
        now += 40
    assert got == DATA


@pytest.mark.parametrize(
    "block",
    [
        Block(REF.digest, 0, 999, DATA[:100]),
        Block(REF.digest, -1, 1000, DATA[:100]),
        Block(REF.digest, 950, 1000, DATA[:100]),
        Block(REF.digest, 0, 1000, b""),
        Block(REF.digest, 0, 1000, DATA[:101]),
    ],
    ids=["total", "negative", "beyond", "empty", "long"],
)
def test_download_impossible_block_raises_and_changes_nothing(block: Block) -> None:
    download = Download(REF, 0, 0.0, block_bytes=100, window=2)
    with pytest.raises(BlockRejected, match="aaaaaaaaaaaa"):
        download.receive(block, 0.0)
    assert download.offset == 0
    assert [g.offset for g in download.requests(0.0)] == [0, 100]


def test_download_old_and_far_blocks_are_ignored() -> None:
    download = Download(REF, 500, 0.0, block_bytes=100, window=2)
    assert download.receive(answer(Get(REF.digest, "raw", 400, 100)), 0.0) == b""
    assert download.receive(answer(Get(REF.digest, "raw", 900, 100)), 0.0) == b""
    assert download.offset == 500


def test_download_of_nothing_is_complete() -> None:
    assert Download(BlobRef("b" * 64, 0), 0, 0.0).is_complete


def grant(offset: int, *, block_bytes: int = 100, window: int = 2) -> Grant:
    return Grant("assignment", REF.digest, offset, block_bytes, window)


def test_upload_sends_nothing_before_a_grant_and_only_its_window_after() -> None:
    upload = Upload(REF, 0.0)
    assert upload.sends() == []
    upload.granted(grant(0), 0.0)
    assert upload.sends() == [(0, 100), (100, 100)]
    assert upload.sends() == []
    upload.granted(grant(100), 0.1)
    assert upload.sends() == [(200, 100)]


def test_upload_starts_where_the_coordinator_is() -> None:
    upload = Upload(REF, 0.0)
    upload.granted(grant(850), 0.0)
    assert upload.sends() == [(850, 100), (950, 50)]
    upload.granted(grant(1000), 0.1)
    assert upload.is_complete


def test_upload_goes_back_only_when_an_offer_was_answered() -> None:
    upload = Upload(REF, 0.0)
    upload.granted(grant(0), 0.0)
    upload.sends()
    upload.granted(grant(200), 0.1)
    upload.sends()
    upload.granted(grant(100), 0.2)  # an old grant that was overtaken
    assert upload.sends() == []
    assert upload.confirmed == 200
    assert upload.is_stalled(5.0)
    upload.offered()
    upload.granted(grant(200), 5.1)
    assert upload.sends() == [(200, 100), (300, 100)]


def test_upload_sends_a_lost_block_again_once_when_the_grant_does_not_rise() -> None:
    upload = Upload(REF, 0.0)
    upload.granted(grant(0, window=3), 0.0)
    upload.sends()
    upload.granted(grant(100, window=3), 0.1)
    upload.sends()
    upload.granted(grant(100, window=3), 0.2)  # [100, 200) was lost, [200, 300) and [300, 400) were ignored
    assert upload.sends() == [(100, 100), (200, 100), (300, 100)]
    upload.granted(grant(100, window=3), 0.3)  # the answer to the second ignored block
    assert upload.sends() == []


def test_upload_repeats_a_window_once_though_each_of_its_blocks_is_answered_again() -> None:
    upload = Upload(REF, 0.0)
    upload.granted(grant(0, window=3), 0.0)
    upload.sends()
    upload.granted(grant(100, window=3), 0.1)
    upload.sends()
    upload.granted(grant(100, window=3), 0.2)  # taken for a loss, though the blocks are only late
    assert upload.sends() == [(100, 100), (200, 100), (300, 100)]
    for offset in (200, 300, 400):
        upload.granted(grant(offset, window=3), 0.3)
    assert upload.sends() == [(400, 100), (500, 100), (600, 100)]
    for _ in range(3):  # the repeated ones, which were there already
        upload.granted(grant(400, window=3), 0.4)
    assert upload.sends() == []
    upload.granted(grant(500, window=3), 0.5)
    assert upload.sends() == [(700, 100)]
    upload.granted(grant(500, window=3), 0.6)  # and now one is lost
    assert upload.sends() == [(500, 100), (600, 100), (700, 100)]


def test_upload_over_a_new_connection_takes_two_answers_for_one() -> None:
    upload = Upload(REF, 0.0)
    upload.granted(grant(0, window=3), 0.0)
    upload.sends()
    upload.reconnected(0.1)
    upload.offered()
    upload.granted(grant(300, window=3), 0.2)  # of the block that went through before
    assert upload.sends() == [(300, 100), (400, 100), (500, 100)]
    upload.granted(grant(300, window=3), 0.2)  # the offer's
    assert upload.sends() == []


def test_upload_that_turned_out_wrong_is_sent_again_from_the_grant() -> None:
    upload = Upload(REF, 0.0)
    upload.granted(grant(1000), 0.0)
    upload.granted(grant(0), 0.1)
    assert not upload.is_complete
    assert upload.sends() == [(0, 100), (100, 100)]


def test_upload_complete_only_after_the_offer_is_answered() -> None:
    upload = Upload(REF, 0.0)
    upload.granted(grant(1000), 0.0)
    assert upload.is_complete
    upload.reconnected(1.0)
    assert not upload.is_complete


@pytest.mark.parametrize(
    "bad",
    [grant(1001), grant(-1), grant(0, block_bytes=0), grant(0, window=0)],
    ids=["far", "negative", "block", "win"],
)
def test_upload_impossible_grant_raises_and_changes_nothing(bad: Grant) -> None:
    upload = Upload(REF, 0.0)
    with pytest.raises(BlockRejected, match="of 1000 bytes"):
        upload.granted(bad, 0.0)
    assert upload.sends() == []


def test_upload_follows_no_grant_further_than_it_has_memory_for() -> None:
    """Whatever the grant says: nobody signs one."""
    large = BlobRef("a" * 64, 1 << 30, "raw", 1 << 30)
    for block_bytes, window in ((1, 1 << 40), (1 << 40, 1 << 40), (131_072, 1_000_000)):
        upload = Upload(large, 0.0)
        upload.granted(grant(0, block_bytes=block_bytes, window=window), 0.0)
        spans = upload.sends()
        assert len(spans) <= MOST_WINDOW
        assert sum(length for _, length in spans) <= MOST_WINDOW * MOST_BLOCK_BYTES


def test_download_keeps_no_more_early_bytes_than_it_asked_for() -> None:
    """Blocks that overlap, at every offset of the window: 64 GiB of them with blocks of 131,072 bytes."""
    ref = BlobRef("a" * 64, 10_000, "raw", 10_000)
    download = Download(ref, 0, 0.0, block_bytes=500, window=4)
    download.requests(0.0)
    for offset in range(1, 2001):
        download.receive(Block(ref.digest, offset, 10_000, bytes(500)), 0.1)
    assert sum(map(len, download._early.values())) <= 4 * 500
    given = download.receive(Block(ref.digest, 0, 10_000, bytes(500)), 0.2)  # what was asked for goes on
    assert len(given) >= 500


def test_stall_timer_adapts_to_a_slow_link() -> None:
    timer = StallTimer(0.0)
    for now in range(3, 60, 3):
        timer.progress(float(now))
    assert not timer.is_stalled(57 + 10.0)  # blocks come every 3 s: 2 s without one is no stall
    assert timer.is_stalled(57 + 12.5)
