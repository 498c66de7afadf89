"""Blobs coming down: paced by the device, resumed, checked, kept."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable
from contextlib import AbstractContextManager

import msgspec

from coordinator.conformance.blob_server import KitBlobServer, open_blob_server
from coordinator.conformance.findings import NotApplicable, expect
from coordinator.conformance.kit import Kit
from coordinator.conformance.registry import scenario
from coordinator.conformance.script import Seen
from edge.contracts.messages import Block, Get, Refuse
from edge.contracts.plan import BlobRef

BLOBS = "Blobs and blocks"
BULK = "Blobs and blocks, bulk"
NOT_ASKED = "this agent has its blobs over MQTT only, or does not know the server's authority (no {ca} in its command)"


@scenario(BLOBS)
def blocks_are_asked_for_in_the_size_of_the_hello(kit: Kit) -> str:
    """No get is longer than the hello's block_bytes, and together they cover each byte once."""
    hello = kit.agent()
    job = kit.job(seed=30)
    mark = kit.order(job)
    seen = kit.finish(job, since=mark)
    gets = [s.body for s in kit.script.since(mark, "get") if s.body.digest == job.order.weights.digest]
    size = len(job.weights)
    longest = max(get.length for get in gets)
    expect(longest <= hello.block_bytes, f"a get of {longest} bytes, hello says {hello.block_bytes}")
    expect(all(g.offset >= 0 and 0 < g.length <= size - g.offset for g in gets), "a get outside the blob")
    # On a busy machine one may be asked for twice, in the same place.
    asked = sum(length for _, length in {(get.offset, get.length) for get in gets})
    expect(asked == size, f"{asked} bytes asked for, {size} there")
    return f"{len(gets)} blocks of at most {longest} bytes; {seen}"


@scenario(BLOBS)
def window_is_kept_when_nothing_is_answered(kit: Kit) -> str:
    """Without answers no more than window blocks are asked for at once; later they are asked for again."""
    hello = kit.agent()
    job = kit.job(seed=31)
    kit.script.on_get = lambda get: []
    mark = kit.order(job)
    kit.wait("get", since=mark)
    time.sleep(0.5)
    gets = [s.body for s in kit.script.since(mark, "get")]
    places = {(get.digest, get.offset) for get in gets}
    expect(len(places) <= hello.window, f"{len(places)} blocks asked for, the hello says {hello.window}")
    kit.script.on_get = kit.script.blocks
    return f"{len(places)} of {hello.window} open; {kit.finish(job, since=mark)}"


@scenario(BLOBS)
def lost_blocks_are_asked_for_again(kit: Kit) -> str:
    """Every second block is lost the first time."""
    kit.agent()
    job = kit.job(seed=32)
    lost: set[tuple[str, int]] = set()
    count = 0

    def answer(get: Get) -> Iterable[Block] | None:
        nonlocal count
        place = (get.digest, get.offset)
        if place not in lost and get.digest == job.order.weights.digest:
            count += 1
            # A device with small blocks has many: losing a few shows the same.
            if count % 2 and len(lost) < 2:
                lost.add(place)
                return []
        return kit.script.blocks(get)

    kit.script.on_get = answer
    seen = kit.finish(job, since=kit.order(job))
    return f"{len(lost)} lost; {seen}"


@scenario(BLOBS)
def doubled_and_reordered_blocks_do_no_harm(kit: Kit) -> str:
    """Each block comes twice, the second of two before the first."""
    kit.agent()
    job = kit.job(seed=33)
    held: list[Block] = []

    def answer(get: Get) -> Iterable[Block] | None:
        found = kit.script.blocks(get)
        if found is None or get.digest != job.order.weights.digest:
            return found
        held.extend(found)
        is_last = get.offset + get.length >= len(job.weights)
        if len(held) < 2 and not is_last:
            return []
        out = [*reversed(held), *held]
        held.clear()
        return out

    kit.script.on_get = answer
    return kit.finish(job, since=kit.order(job))


@scenario(BLOBS)
def blocks_that_make_no_sense_are_not_used(kit: Kit) -> str:
    """Blocks of another total, outside the blob or longer than asked for do not reach the blob."""
    kit.agent()
    job = kit.job(seed=34)
    is_first = True

    def answer(get: Get) -> Iterable[Block] | None:
        nonlocal is_first
        found = kit.script.blocks(get)
        if found and is_first and get.digest == job.order.weights.digest:
            is_first = False
            good = found[0]
            change = msgspec.structs.replace
            return [
                change(good, total=good.total + 1),
                change(good, offset=good.total - 1, data=b"12"),
                change(good, offset=-1),
                change(good, digest="0" * 64),
                good,
            ]
        return found

    kit.script.on_get = answer
    return kit.finish(job, since=kit.order(job))


@scenario(BLOBS)
def cut_connection_resumes_where_it_was(kit: Kit) -> str:
    """After a reconnect what has arrived is not fetched again."""
    kit.agent()
    job = kit.job(seed=35)
    served = 0

    def answer(get: Get) -> Iterable[Block] | None:
        nonlocal served
        if get.digest == job.order.weights.digest:
            if served >= 3:
                return []
            served += 1
        return kit.script.blocks(get)

    kit.script.on_get = answer
    mark = kit.order(job)
    of_weights = job.order.weights.digest
    kit.wait("get", since=mark, where=lambda get: get.digest == of_weights, count=4)
    time.sleep(0.3)
    have = _contiguous(kit.script.since(mark, "get"), of_weights, 3)
    kit.site.cut()
    again = kit.wait("hello", since=mark, timeout_s=40)
    expect(again.body.assignment_id == job.id, f"the hello names {again.body.assignment_id!r} in hand")
    kit.script.on_get = kit.script.blocks
    place = kit.script.seen.index(again)
    seen = kit.finish(job, since=mark)
    offsets = [s.body.offset for s in kit.script.since(place, "get") if s.body.digest == of_weights]
    expect(bool(offsets), "nothing more was asked for")
    expect(min(offsets) >= have, f"asked from {min(offsets)} again, {have} bytes had arrived")
    return f"went on at {min(offsets)}; {seen}"


@scenario(BLOBS)
def kept_blobs_are_not_fetched_again(kit: Kit) -> str:
    """The second order of an artifact needs its weights only, the third nothing; also after a restart."""
    kit.agent()
    first = kit.job(seed=36)
    kit.finish(first, since=kit.order(first))
    second = kit.job(seed=37)
    mark = kit.order(second)
    kit.finish(second, since=mark)
    asked = {s.body.digest for s in kit.script.since(mark, "get")}
    expect(asked == {second.order.weights.digest}, f"{len(asked)} blobs fetched for the second order, 1 is new")
    kit.stop()
    kit.start()
    third = kit.job(seed=37)
    mark = kit.order(third)
    seen = kit.finish(third, since=mark)
    again = len(kit.script.since(mark, "get"))
    expect(again == 0, f"{again} blocks fetched for the third order, everything was there")
    return seen


@scenario(BLOBS)
def tampered_blob_is_asked_for_again(kit: Kit) -> str:
    """A blob that arrives with another digest is dropped and fetched once more."""
    kit.agent()
    job = kit.job("masked", seed=38)
    digest, good = job.order.weights.digest, job.weights
    kit.script.blobs[digest] = good[:-1] + bytes([good[-1] ^ 1])
    asked = 0

    def answer(get: Get) -> Iterable[Block] | None:
        nonlocal asked
        if get.digest == digest and get.offset == 0:
            asked += 1
            if asked == 2:
                kit.script.blobs[digest] = good
        return kit.script.blocks(get)

    kit.script.on_get = answer
    seen = kit.finish(job, since=kit.order(job))
    expect(asked == 2, f"asked for from the start {asked} times, 2 expected")
    return seen


@scenario(BLOBS)
def tampered_blob_is_never_used(kit: Kit) -> str:
    """Twice the wrong bytes: the order is refused."""
    kit.agent()
    job = kit.job("masked", seed=39)
    digest, good = job.order.weights.digest, job.weights
    kit.script.blobs[digest] = good[:-1] + bytes([good[-1] ^ 1])
    mark = kit.order(job)
    seen = kit.refusal(job, "artifact-corrupt", since=mark)
    kit.script.blobs[digest] = good
    times = sum(s.body.digest == digest and s.body.offset == 0 for s in kit.script.since(mark, "get"))
    expect(times >= 2, f"asked for {times} time before it was refused")
    return seen


@scenario(BLOBS)
def compressed_blob_is_decoded_or_refused_by_name(kit: Kit) -> str:
    """Weights as zstd: an agent that has no zstd refuses with unsupported-encoding."""
    import zstandard

    kit.agent()
    plain = kit.job("masked", seed=42)
    packed = zstandard.compress(plain.weights)
    weights = BlobRef(plain.order.weights.digest, len(plain.weights), "zstd", len(packed))
    job = dataclasses.replace(plain, order=msgspec.structs.replace(plain.order, weights=weights))
    kit.script.blobs[weights.digest] = packed
    mark = kit.order(job)
    try:
        answer = kit.answer(job, "report", "refuse", since=mark, timeout_s=60)
        if isinstance(answer, Refuse):
            expect(answer.code == "unsupported-encoding", f"refused with {answer.code!r}: {answer.reason}")
            return f"{answer.code}: {answer.reason[:90]}"
        return kit.check(job, answer)
    finally:
        kit.script.blobs[weights.digest] = plain.weights


@scenario(BULK)
def bulk_address_is_preferred(kit: Kit) -> str:
    """Where the order names an HTTPS address, its blobs come from there."""
    with _server(kit) as server:
        job = kit.job(seed=40, bulk=server.url)
        mark = kit.order(job)
        seen = kit.finish(job, since=mark)
        if not server.asked:
            raise NotApplicable(NOT_ASKED)
        gets = [s for s in kit.script.since(mark, "get") if s.body.digest == job.order.weights.digest]
        expect(not gets, f"{len(gets)} blocks of the weights asked for over MQTT as well")
        return f"{len(server.asked)} range requests; {seen}"


@scenario(BULK)
def bulk_that_fails_falls_back_to_blocks(kit: Kit) -> str:
    """An answer other than 206 means: ask over MQTT."""
    with _server(kit) as server:
        server.fails = True
        job = kit.job(seed=41, bulk=server.url)
        mark = kit.order(job)
        seen = kit.finish(job, since=mark)
        if not server.asked:
            raise NotApplicable(NOT_ASKED)
        return f"{len(server.asked)} requests refused, {len(kit.script.since(mark, 'get'))} blocks; {seen}"


def _server(kit: Kit) -> AbstractContextManager[KitBlobServer]:
    kit.agent()
    return open_blob_server(kit.script.blobs, None if kit.plain_bulk else kit.site.certificate)


def _contiguous(gets: list[Seen], digest: str, answered: int) -> int:
    """Bytes from the start of the blob that the first ``answered`` of ``gets`` brought."""
    have = 0
    for get in [seen.body for seen in gets if seen.body.digest == digest][:answered]:
        if get.offset == have:
            have += get.length
    return have
