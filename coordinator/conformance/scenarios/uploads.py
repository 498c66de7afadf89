"""Updates going up: only what is granted, again where it was lost."""

from __future__ import annotations

from coordinator.conformance.findings import expect
from coordinator.conformance.kit import Job, Kit
from coordinator.conformance.registry import scenario
from edge.contracts.messages import Grant, Put

UPLOADS = "Blobs and blocks, up"


def _offered(kit: Kit, job: Job) -> int:
    """Order ``job`` and wait until its update is offered, which is not answered; the mark before the order."""
    kit.agent()
    kit.script.grants = False
    mark = kit.order(job)
    kit.answer(job, "offer", since=mark, timeout_s=60)
    return mark


@scenario(UPLOADS)
def nothing_is_sent_before_a_grant(kit: Kit) -> str:
    """The update is offered, and offered again while nobody answers; no put comes."""
    job = kit.job("masked", seed=50)
    mark = _offered(kit, job)
    kit.answer(job, "offer", since=mark, timeout_s=40, count=2)
    puts = len(kit.script.since(mark, "put"))
    expect(puts == 0, f"{puts} puts before a grant")
    kit.script.grants = True
    return kit.finish(job, since=mark)


@scenario(UPLOADS)
def puts_keep_to_the_granted_blocks(kit: Kit) -> str:
    """Small blocks and a window of two: no put is longer, none lies beyond the window."""
    kit.agent()
    kit.script.block_bytes, kit.script.window = 20_000, 2
    job = kit.job(seed=51)
    beyond: list[Put] = []

    def take(put: Put) -> bool:
        here = len(kit.script.uploads[put.assignment_id])
        if len(put.data) > 20_000 or put.offset + len(put.data) > here + 2 * 20_000:
            beyond.append(put)
        return True

    kit.script.takes_put = take
    mark = kit.order(job)
    seen = kit.finish(job, since=mark)
    puts = [s.body for s in kit.script.since(mark, "put")]
    first = beyond[0] if beyond else None
    expect(first is None, f"a put of {first and len(first.data)} bytes at {first and first.offset} was not granted")
    return f"{len(puts)} puts of at most {max(len(p.data) for p in puts)} bytes; {seen}"


@scenario(UPLOADS)
def lost_puts_are_sent_again(kit: Kit) -> str:
    """The first and the third block are lost once; the grant that answers what follows says where to go on."""
    kit.agent()
    kit.script.block_bytes = 65_536
    lost: set[int] = set()

    def take(put: Put) -> bool:
        if put.offset in (0, 2 * 65_536) and put.offset not in lost:
            lost.add(put.offset)
            return False
        return True

    kit.script.takes_put = take
    job = kit.job(seed=52)
    seen = kit.finish(job, since=kit.order(job))
    return f"{len(lost)} lost; {seen}"


@scenario(UPLOADS)
def stalled_upload_is_offered_again(kit: Kit) -> str:
    """Grants stop in the middle: after a while the device offers again and goes on where it is told."""
    kit.agent()
    kit.script.block_bytes, kit.script.window = 65_536, 2
    job = kit.job(seed=53)

    def take(put: Put) -> bool:
        if put.offset >= 4 * 65_536:
            kit.script.grants = False
        return kit.script.grants

    kit.script.takes_put = take
    mark = kit.order(job)
    kit.wait("put", since=mark, timeout_s=60, where=lambda put: put.offset >= 4 * 65_536)
    quiet = kit.script.mark()
    kit.answer(job, "offer", since=quiet, timeout_s=60)
    kit.script.takes_put = lambda put: True
    kit.script.grants = True
    kit.script.grant(job.id)
    seen = kit.finish(job, since=mark)
    first = kit.script.since(quiet, "put")[0].body.offset
    return f"offered again, went on at {first}; {seen}"


@scenario(UPLOADS)
def grants_that_make_no_sense_are_not_followed(kit: Kit) -> str:
    """Offsets outside the update, blocks of no bytes and grants for another update change nothing."""
    job = kit.job("masked", seed=54)
    mark = _offered(kit, job)
    digest = kit.answer(job, "offer", since=mark).update.digest
    size = kit.answer(job, "offer", since=mark).update.size
    for grant in (
        Grant(job.id, digest, size + 1, 1000, 2),
        Grant(job.id, digest, -1, 1000, 2),
        Grant(job.id, digest, 0, 0, 2),
        Grant(job.id, digest, 0, 1000, 0),
        Grant(job.id, "0" * 64, 0, 1000, 2),
        Grant("0" * 64, digest, 0, 1000, 2),
    ):
        kit.script.send("grant", grant, qos=0)
    quiet = kit.script.mark()
    kit.script.send("hello", {})
    kit.wait("hello", since=quiet)
    puts = len(kit.script.since(mark, "put"))
    expect(puts == 0, f"{puts} puts after grants that make no sense")
    kit.script.grants = True
    return kit.finish(job, since=mark)


@scenario(UPLOADS)
def update_that_arrived_damaged_is_sent_again(kit: Kit) -> str:
    """After the report a grant at offset 0 wants it all once more; the report follows again."""
    kit.agent()
    kit.script.acks = False
    job = kit.job(seed=55)
    mark = kit.order(job)
    kit.answer(job, "report", since=mark, timeout_s=60)
    kit.script.uploads[job.id].clear()
    again = kit.script.mark()
    kit.script.grant(job.id, 0)
    kit.answer(job, "report", since=again, timeout_s=40)
    kit.wait("put", since=again)
    kit.script.acks = True
    seen = kit.check(job, kit.answer(job, "report", since=again))
    return f"sent twice; {seen}"


@scenario(UPLOADS)
def cut_connection_does_not_lose_the_update(kit: Kit) -> str:
    """The connection breaks in mid-upload: the update is offered again and goes on where the coordinator has it."""
    kit.agent()
    kit.script.block_bytes, kit.script.window = 65_536, 2
    job = kit.job(seed=56)
    cuts: list[int] = []

    def take(put: Put) -> bool:
        if put.offset >= 4 * 65_536 and not cuts:
            cuts.append(put.offset)
            kit.site.cut()
            return False
        return True

    kit.script.takes_put = take
    mark = kit.order(job)
    seen = kit.finish(job, since=mark)
    hellos = [s.body for s in kit.script.since(mark, "hello")]
    expect(bool(cuts and hellos), "the connection was not cut")
    after = kit.script.seen.index(kit.script.since(mark, "hello")[0])
    first = min(s.body.offset for s in kit.script.since(after, "put"))
    expect(first >= 65_536, f"began at {first} again")
    return f"cut at {cuts[0]}, went on at {first}; {seen}"


@scenario(UPLOADS)
def killed_before_the_ack_it_still_reports(kit: Kit) -> str:
    """Killed after its report and started again, it reports the same, from what it kept or from the order again."""
    kit.agent()
    kit.script.acks = False
    job = kit.job("masked", seed=57)
    first = kit.answer(job, "report", since=kit.order(job), timeout_s=60)
    kit.kill()
    kit.start()
    kit.script.acks = True
    state = kit.hello.state if kit.hello else ""
    again = kit.order(job)
    second = kit.answer(job, "report", since=again, timeout_s=60)
    expect(second.update.digest == first.update.digest, "another update than before")
    expect(second.num_examples == first.num_examples, "another number of examples than before")
    return f"{'kept' if state == 'uploading' else 'trained again'}, same update"
