"""Device-paced bulk transfer as two state machines without I/O: bytes come and go through their caller.

A device asks for blocks (download) or waits for a grant (upload), so nobody ever pushes more at a broker than the
window. Blocks travel at QoS 0: what is lost is asked for again. Transfers resume at an offset; the SHA-256 of the whole
is checked by whoever stores it. Times are seconds on the caller's monotonic clock.
"""

from __future__ import annotations

from edge.contracts.errors import MessageRejected
from edge.contracts.messages import Block, Get, Grant
from edge.contracts.plan import BlobRef

BLOCK_BYTES = 131_072
WINDOW = 4
FIRST_TIMEOUT_S = 2.0
LAST_TIMEOUT_S = 30.0

MOST_BLOCK_BYTES = 262_144
MOST_WINDOW = 16
"""Blocks that a grant is followed for, whatever it says: nobody signs one, and they are in this device's memory."""


class BlockRejected(MessageRejected):
    """A block or grant that cannot belong to the transfer; the transfer itself is unharmed."""


class StallTimer:
    """Says when a transfer made no progress for too long; waits double with every stall and adapt to slow links."""

    def __init__(self, now: float) -> None:
        self._since = now
        self._interval_s = 0.0
        self._timeout_s = FIRST_TIMEOUT_S

    def progress(self, now: float) -> None:
        """Something arrived."""
        self._interval_s = 0.5 * self._interval_s + 0.5 * (now - self._since)
        self._since = now
        # A slow link delivers slower than the first timeout: asking again would only send every block twice.
        self._timeout_s = min(LAST_TIMEOUT_S, max(FIRST_TIMEOUT_S, 4 * self._interval_s))

    def is_stalled(self, now: float) -> bool:
        """True once per stall; the next wait is twice as long."""
        if now < self._since + self._timeout_s:
            return False
        self._since = now
        self._timeout_s = min(LAST_TIMEOUT_S, 2 * self._timeout_s)
        return True

    def restart(self, now: float) -> None:
        """A new connection: wait the first timeout from now."""
        self._since, self._timeout_s = now, FIRST_TIMEOUT_S


class Download:
    """One blob coming in, its encoded bytes given out in order.

    Args:
        offset: bytes already held from an earlier attempt.
    """

    def __init__(
        self, ref: BlobRef, offset: int, now: float, *, block_bytes: int = BLOCK_BYTES, window: int = WINDOW
    ) -> None:
        self.ref = ref
        self.total = ref.encoded_size or ref.size
        self.offset = min(offset, self.total)
        self._block_bytes = block_bytes
        self._window = window
        self._asked = self.offset
        self._doubted_to = -1  # blocks up to here are lost when there is another stall
        self._early: dict[int, bytes] = {}
        self._timer = StallTimer(now)

    @property
    def is_complete(self) -> bool:
        """Every byte has been given out."""
        return self.offset >= self.total

    def requests(self, now: float) -> list[Get]:
        """What to ask for now: new blocks within the window; after a stall the first missing one again, after another
        one all that are missing. They may be late only, and one block more on a crowded way is less than a window."""
        gets = []
        if self._timer.is_stalled(now):
            if self.offset < self._doubted_to:
                self._asked = self.offset
            elif self._asked > self.offset:
                length = min(self._block_bytes, self.total - self.offset)
                gets.append(Get(self.ref.digest, self.ref.encoding, self.offset, length))
            self._doubted_to = self.offset + self._window * self._block_bytes
        while self._asked < min(self.total, self.offset + self._window * self._block_bytes):
            length = min(self._block_bytes, self.total - self._asked)
            if self._asked not in self._early:
                gets.append(Get(self.ref.digest, self.ref.encoding, self._asked, length))
            self._asked += length
        return gets

    def receive(self, block: Block, now: float) -> bytes:
        """The bytes that continue what was given out before: none, this block, or it and early ones after it.

        Raises:
            BlockRejected: a block of another size or place than can have been asked for.
        """
        if block.total != self.total:
            raise BlockRejected(
                f"blob {self.ref.digest[:12]}: block says {block.total} bytes in all, {self.total} ordered; order again"
            )
        end = block.offset + len(block.data)
        if not block.data or block.offset < 0 or len(block.data) > self._block_bytes or end > self.total:
            raise BlockRejected(
                f"blob {self.ref.digest[:12]}: block [{block.offset}, {end}) is outside {self.total} bytes "
                f"or longer than {self._block_bytes}"
            )
        if block.offset < self.offset or block.offset in self._early:
            return b""
        if block.offset > self.offset + self._window * self._block_bytes:
            return b""
        early_bytes = sum(map(len, self._early.values()))
        if block.offset > self.offset and early_bytes + len(block.data) > self._window * self._block_bytes:
            return b""  # more than was asked for: pieces that overlap
        self._early[block.offset] = block.data
        self._timer.progress(now)
        ready = []
        while (data := self._early.pop(self.offset, None)) is not None:
            ready.append(data)
            self.offset += len(data)
        self._asked = max(self._asked, self.offset)
        self._early = {start: data for start, data in self._early.items() if start > self.offset}
        return b"".join(ready)

    def reconnected(self, now: float) -> None:
        """Everything asked for and not arrived is asked for again."""
        self._asked = self.offset
        self._timer.restart(now)


class Upload:
    """One update going out; sends only what is granted.

    A grant confirms everything before its offset. Grants of a transfer rise; one that answers an offer may also fall
    back, because then the coordinator said what it really holds.
    """

    def __init__(self, ref: BlobRef, now: float) -> None:
        self.ref = ref
        self.total = ref.encoded_size or ref.size
        self.confirmed = 0
        self._block_bytes = BLOCK_BYTES
        self._limit = 0
        self._sent = 0
        self._repeated = -1
        self._doubtful_to = -1  # grants that come again up to here tell of no loss
        self._is_offer_open = True
        self._offers = 0  # made since the last one that was answered
        self._is_broken = False  # what was on its way is lost with its connection
        self._timer = StallTimer(now)

    @property
    def is_complete(self) -> bool:
        """The coordinator has every byte."""
        return self.confirmed >= self.total and not self._is_offer_open

    @property
    def is_offer_open(self) -> bool:
        """No grant has answered the last offer yet."""
        return self._is_offer_open

    def offered(self) -> None:
        """An offer was sent: the next grant decides where to go on."""
        self._is_offer_open = True
        self._offers += 1

    def granted(self, grant: Grant, now: float) -> None:
        """Take a grant in.

        Raises:
            BlockRejected: an offset, block size or window that makes no sense.
        """
        if not (0 <= grant.offset <= self.total and grant.block_bytes > 0 and grant.window > 0):
            raise BlockRejected(
                f"grant at {grant.offset} of {self.total} bytes, {grant.window} blocks of {grant.block_bytes}: "
                "offset must lie in the update, sizes must be positive"
            )
        if self._is_offer_open:
            self._answered(grant.offset)
        elif grant.offset < self.confirmed and not self.is_complete:
            return
        elif grant.offset < self.confirmed:
            # All had arrived, and it was not what was announced: it is wanted again from there.
            self._sent = grant.offset
        elif grant.offset == self.confirmed > self._doubtful_to and grant.offset not in (self._sent, self._repeated):
            # Said again instead of risen: the block that begins there was lost, what followed it was ignored. What of
            # the window is there all the same is answered with grants that do not rise: they are of this repetition.
            self._doubtful_to = self._sent
            self._sent = self._repeated = grant.offset
        self.confirmed = grant.offset
        self._sent = max(self._sent, grant.offset)
        self._block_bytes = min(grant.block_bytes, MOST_BLOCK_BYTES)
        self._limit = grant.offset + min(grant.window, MOST_WINDOW) * self._block_bytes
        self._timer.progress(now)

    def _answered(self, offset: int) -> None:
        """An offer was open, and a grant came.

        One that rises is for a block that was on its way: nothing is lost, the other side or the link was slow, and to
        send it all again would make them slower. The answer itself is still to come, as it may be after a broken
        connection: a block that went through before is granted over the new one.
        """
        is_alive = not self._is_broken and self.confirmed < self._sent and self.confirmed < offset
        if is_alive or self._is_broken or self._offers > 1 or self._sent > offset:
            self._doubtful_to = max(self._sent, offset)
        if not is_alive:
            self._sent = offset
        self._is_offer_open = self._is_broken = False
        self._offers = 0

    def sends(self) -> list[tuple[int, int]]:
        """(offset, length) of the blocks to send now; each is given once."""
        spans = []
        while not self._is_offer_open and self._sent < min(self.total, self._limit):
            length = min(self._block_bytes, self.total - self._sent)
            spans.append((self._sent, length))
            self._sent += length
        return spans

    def is_stalled(self, now: float) -> bool:
        """No grant for too long: True once per stall, from then on an offer is open, and to be made."""
        is_stalled = not self.is_complete and self._timer.is_stalled(now)
        self._is_offer_open = self._is_offer_open or is_stalled
        return is_stalled

    def reconnected(self, now: float) -> None:
        """Sent blocks may be lost: offer again."""
        self._is_offer_open = self._is_broken = True
        self._offers = 0
        self._timer.restart(now)
