"""What each kind of liar says. Everything is repeated until the coordinator has settled the order it is about."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from edge.contracts import topics
from edge.contracts.codec import encode_msgpack
from edge.contracts.envelope import seal
from edge.contracts.messages import Accept, Get, Heartbeat, Offer, Put
from edge.contracts.plan import BlobRef, WorkOrder
from profiles.device import DeviceProfile
from tests.chaos.liars.client import Client, tell

FAR = 40.0
"""Every value of a crafted update: further from the weights than any screening lets pass."""

BUFFERED_FAR = 1e25
"""The same where updates are not compared with each other: more than any update may hold."""


class Liar:
    """Tells lies over ``client``; ``variant`` chooses among those of its kind."""

    def __init__(self, client: Client, variant: int, *, is_compared: bool, victims: list[str]) -> None:
        self.client, self.variant, self.victims = client, variant, victims
        self.far = FAR if is_compared else BUFFERED_FAR
        self.told = 0

    def idle(self) -> None:
        """Between orders."""
        self.client.say("heartbeat", Heartbeat(state="idle"))

    def ordered(self, order: WorkOrder) -> None:
        """The newest order; called again and again."""
        if self.client.is_settled(order):
            return
        self.told += 1
        self.lie(order)

    def lie(self, order: WorkOrder) -> None:
        """Say it, once more."""
        raise NotImplementedError

    def crafted(self, order: WorkOrder) -> dict[str, np.ndarray] | None:
        """Tensors of the ordered shapes that are far from the weights; None until those are here."""
        weights = self.client.weights(order)
        return None if weights is None else {name: np.full_like(value, self.far) for name, value in weights.items()}


class Malformed(Liar):
    """Messages that are none, then an update that is none."""

    def lie(self, order: WorkOrder) -> None:
        client = self.client
        for kind in ("hello", "accept", "offer", "report", "put", "profile", "get", "refuse", "heartbeat"):
            client.say_bytes(kind, BOMBS[(self.variant + self.told) % len(BOMBS)])
        client.say_bytes("hello", encode_msgpack({"v": 7, "id": "a", "kind": "hello", "sent_at": 0.0, "body": {}}))
        client.say_bytes("offer", seal("refuse", {}))
        client.say("offer", {"assignment_id": [order.assignment_id], "update": None})
        client.say("offer", Offer("../../etc", BlobRef("a" * 64, 10, "raw", 10)))
        client.say("dance", {})
        bodies = (b"\xc1" * 5000, struct.pack("<Q", 2**62) + b"{}", b"{" * 4000, struct.pack("<Q", 8) + b'{"a":{}}')
        client.report(order, client.upload(order, bodies[self.variant % len(bodies)]))


BOMBS = (
    b"\xc1" * 100,
    b"\x91" * 100_000,  # lists in lists
    b"\xdf\xff\xff\xff\xff",  # a map of 2^32 entries
    b"\xdd\xff\xff\xff\xff" + b"\x00" * 1000,
    b"\x81\xa1v" * 30_000,  # maps in maps
    b"\xc9\xff\xff\xff\xff\x01",  # an extension of 4 GB
    b"\xdb\xff\xff\xff\xff" + b"a" * 10,
    b"",
)


class Extreme(Liar):
    """Figures that are well-formed and impossible, one of each hello and report."""

    def lie(self, order: WorkOrder) -> None:
        client = self.client
        profile = client.hello_body().profile
        for size in (2**63, 2**64 - 1):
            client.say("hello", _as_map(client.hello_body(), num_examples=size))
            idle = msgspec.to_builtins(profile) | {"supervisor_idle_bytes": size}
            client.say("hello", _as_map(client.hello_body(), profile=idle))
            client.say("profile", idle)
        client.say("heartbeat", {"state": "idle", "step": 2**63, "loss": float("inf")})
        changes = (
            {"num_examples": 2**53},
            {"num_examples": 2**63},
            {"num_examples": 2**64 - 1},
            {"loss": 1.7e308},
            {"loss": float("inf")},
            {"loss": float("nan")},
            {"metrics": {"accuracy": -1.7e308}},
            {"trainer_peak_bytes": 2**63},
            {"step_ms_p50": float("inf")},
            {"wall_s": 1e300},
            {"num_examples": 0},
        )
        at = self.variant % (len(changes) + len(self.updates))
        weights = client.weights(order)
        if weights is None:
            return
        if at < len(changes):
            client.report(order, client.upload(order, weights), **changes[at])
        else:
            client.report(order, client.upload(order, self.updates[at - len(changes)](weights)))

    updates: tuple[Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]], ...] = (
        lambda w: {name: np.full_like(value, np.nan) for name, value in w.items()},
        lambda w: {name: np.full_like(value, 1e25) for name, value in w.items()},
        lambda w: {name: np.full_like(value, -np.inf) for name, value in w.items()},
        lambda w: {name: value[:1] for name, value in w.items()},
        lambda w: {name: value.astype(np.float64) for name, value in w.items()},
        lambda w: dict(list(w.items())[1:]),
        lambda w: w | {"backdoor": np.zeros(3, np.float32)},
    )


def _as_map(body: Any, **changes: Any) -> dict[str, Any]:
    return dict(msgspec.to_builtins(body)) | changes


class Late(Liar):
    """Accepts, says bye, and reports when it was told that nobody waits for it."""

    def ordered(self, order: WorkOrder) -> None:
        """Whatever the coordinator answers, it is said again."""
        client = self.client
        if not client.is_settled(order):
            client.accept(order)
            client.bye()
            return
        weights = client.weights(order)
        if weights is None:
            return
        if self.told < 3:
            self.told += 1
            client.hello()
            client.report(order, client.upload(order, weights))

    def idle(self) -> None:
        """It is back when it has nothing in hand."""
        order = self.client.order
        if order is None or self.client.is_settled(order):
            self.client.say("heartbeat", Heartbeat(state="idle"))


class Doubled(Liar):
    """Two updates for one order, or two contents for one digest; then everything again, in later rounds and as if of
    another run."""

    def lie(self, order: WorkOrder) -> None:
        client, tensors = self.client, self.crafted(order)
        if tensors is None:
            return
        if self.variant % 2:
            ref = client.upload(order, tensors, send=bytes(order.weights.size))
            client.report(order, ref)
            return
        first = client.upload(order, tensors)
        client.report(order, first)
        second = client.upload(order, {name: -value for name, value in tensors.items()})
        client.report(order, second)
        client.report(order, first)
        other = msgspec.structs.replace(order, assignment_id=order.assignment_id[::-1])
        client.report(other, first)

    def idle(self) -> None:
        """Replays of what was answered long ago."""
        super().idle()
        for order in list(self.client.orders.values())[:3]:
            if self.client.is_settled(order):
                self.client.say("offer", Offer(order.assignment_id, BlobRef("b" * 64, 10, "raw", 10)))
                self.client.report(order, BlobRef("c" * 64, 10, "raw", 10))


class Flooding(Liar):
    """More of everything than anybody needs, as much as a hundred honest devices say; then it goes away."""

    heard_of = ("", 0)

    def ordered(self, order: WorkOrder) -> None:
        """Three bursts for an order and each coordinator that asks who is there, and none once it is settled."""
        client = self.client
        if client.is_settled(order):
            return
        if self.heard_of != (heard_of := (order.assignment_id, client.calls)):
            self.heard_of, self.told = heard_of, 0
        if self.told < 3:
            self.told += 1
            client.accept(order)
            for number in range(100):
                client.hello()
                client.say("profile", client.hello_body().profile)
                if number % 5 == 0:  # of more it would have to pay off the answers, unheard, and could not say bye
                    client.say("get", Get(order.weights.digest, "raw", 0, 65_536))
                client.say("get", Get(f"{number:064x}", "raw", 0, 65_536))
                client.say("accept", Accept(f"{number:064x}"))
                ref = BlobRef(f"{self.told * 1000 + number:064x}", order.weights.size, "raw", order.weights.size)
                client.say("offer", Offer(order.assignment_id, ref))
                client.say("put", Put(order.assignment_id, ref.digest, 0, bytes(60_000)), qos=0)
                client.say("profile", DeviceProfile(device="another", budget_bytes=number))
            tell(f"burst {self.told}")
        client.bye()

    def idle(self) -> None:
        """It is back when it has nothing in hand."""
        order = self.client.order
        if order is None or self.client.is_settled(order):
            self.client.say("heartbeat", Heartbeat(state="idle"))


class Colluding(Liar):
    """The same crafted update as its friend's, to the last bit."""

    def lie(self, order: WorkOrder) -> None:
        tensors = self.crafted(order)
        if tensors is not None:
            self.client.report(order, self.client.upload(order, tensors))


class LyingRelay(Liar):
    """A site of four devices: its sum stands for more than they have, or is no mean, and it gives others orders."""

    def __init__(self, client: Client, variant: int, **values: Any) -> None:
        super().__init__(client, variant, **values)
        client.examples = 36

    def lie(self, order: WorkOrder) -> None:
        client, weights = self.client, self.client.weights(order)
        for victim in self.victims:
            forged = msgspec.structs.replace(
                order, device=victim, assignment_id=order.assignment_id[::-1], hyper={name: 1e3 for name in order.hyper}
            )
            for signature in (None, lambda body: bytes(64)):
                payload = seal("order", forged, sign=signature)
                client.publish(topics.down(client.federation, victim, "order"), payload)
        if weights is None:
            return
        sums = {name: value.astype(np.float64) * 36 for name, value in weights.items()}
        if self.variant % 2:
            client.report(order, client.upload(order, weights), num_examples=36 * 1000, site_devices=4)
        else:
            client.report(order, client.upload(order, sums), site_devices=2**40)


LIES: dict[str, type[Liar]] = {
    "malformed": Malformed,
    "extreme": Extreme,
    "late": Late,
    "doubled": Doubled,
    "flooding": Flooding,
    "colluding": Colluding,
    "relay": LyingRelay,
}
"""By the name of the kind."""
