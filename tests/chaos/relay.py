"""The link of one party to the broker: a TCP relay that knows messages, and can be cut, held and told to tamper.

What happens to a message is decided by ``judge``, which is asked about each before it passes.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from tests.chaos.framing import Framer, Packet

UP, DOWN = ">", "<"


@dataclass
class Verdict:
    """What passes in place of a message.

    Attributes:
        packets: these, in this order.
        back: to its sender, who believes it arrived.
        is_held: they pass behind the next message of that direction.
        is_cut: half of the first of them passes, then the connection is reset.
    """

    packets: list[Packet] = field(default_factory=list)
    back: Packet | None = None
    is_held: bool = False
    is_cut: bool = False


Judge = Callable[[str, str, Packet], Awaitable[Verdict]]


class Link:
    """One party's way to the broker.

    Args:
        judge: called with the party, the direction and each publish.
    """

    def __init__(self, party: str, broker_port: Callable[[], int], judge: Judge) -> None:
        self.party = party
        self.port = 0
        self._broker_port = broker_port
        self._judge = judge
        self._open = {UP: asyncio.Event(), DOWN: asyncio.Event()}
        for gate in self._open.values():
            gate.set()
        self._is_refusing = False
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Listen at a free port of this machine."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = int(self._server.sockets[0].getsockname()[1])

    def close(self) -> None:
        """No connection any more."""
        if self._server is not None:
            self._server.close()
        self.reset()

    def reset(self) -> int:
        """End every connection without a word; their number."""
        writers, self._writers = self._writers, set()
        for writer in writers:
            _reset(writer)
        return len(writers)

    async def cut(self, seconds: float) -> None:
        """Reset the connections and refuse new ones for ``seconds``."""
        self._is_refusing = True
        self.reset()
        await asyncio.sleep(seconds)
        self._is_refusing = False

    async def hold(self, directions: str, seconds: float) -> None:
        """Let nothing pass in ``directions`` for ``seconds``; afterwards everything comes."""
        for direction in directions:
            self._open[direction].clear()
        await asyncio.sleep(seconds)
        for direction in directions:
            self._open[direction].set()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_refusing:
            _reset(writer)
            return
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._broker_port())
        except OSError:
            _reset(writer)
            return
        pair = {writer, far_writer}
        self._writers |= pair
        tasks = [
            asyncio.ensure_future(self._pump(reader, far_writer, writer, UP)),
            asyncio.ensure_future(self._pump(far_reader, writer, far_writer, DOWN)),
        ]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._writers -= pair
        for end in pair:
            with contextlib.suppress(OSError):
                end.close()

    async def _pump(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, back: asyncio.StreamWriter, direction: str
    ) -> None:
        framer, held = Framer(), []
        with contextlib.suppress(OSError):
            while data := await source.read(262_144):
                for packet in framer.feed(data):
                    await self._open[direction].wait()
                    if not packet.is_publish:
                        sink.write(packet.to_bytes())
                        continue
                    verdict = await self._judge(self.party, direction, packet)
                    if verdict.is_cut:
                        data = packet.to_bytes()
                        sink.write(data[: len(data) // 2])
                        await sink.drain()
                        self.reset()
                        return
                    if verdict.back is not None:
                        back.write(verdict.back.to_bytes())
                    if verdict.is_held:
                        held += verdict.packets
                        continue
                    for passing in (*verdict.packets, *held):
                        sink.write(passing.to_bytes())
                    held = []
                await sink.drain()


def _reset(writer: asyncio.StreamWriter) -> None:
    own: socket.socket | None = writer.get_extra_info("socket")
    if own is not None:
        with contextlib.suppress(OSError):
            own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
