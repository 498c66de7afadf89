"""What masks cost devices and coordinator: ``python -m benchmarks.masking`` prints medians in ms, and message bytes.

One update of float32 values under the masks of a whole cohort; nothing is trained and nothing is sent.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable

import numpy as np

from edge.contracts.envelope import seal
from edge.contracts.masking import (
    Checked,
    Keys,
    Mail,
    Masking,
    Member,
    Proceed,
    Reveal,
    Revealed,
    Roster,
    Shares,
)
from edge.contracts.signing import SIGNATURE_BYTES
from edge.masking.commitments import DIGEST_BYTES, PAIR_BYTES, PARCEL_BYTES, packed
from edge.masking.keys import agree, new_private, public_of
from edge.masking.numbers import add_masks, masked_update
from edge.masking.seeds import MaskSeeds
from edge.masking.shares import SHARE_BYTES, recover, split


def median_ms(work: Callable[[], object], times: int) -> float:
    """Of ``times`` calls."""
    taken = []
    for _ in range(times):
        started = time.perf_counter()
        work()
        taken.append((time.perf_counter() - started) * 1000)
    return round(statistics.median(taken), 1)


def device_costs(devices: int, values: int, threshold: int, times: int) -> dict[str, float]:
    """Milliseconds of a device's own work."""
    trained = {"w": np.random.default_rng(0).normal(size=values).astype(np.float32) * np.float32(0.1)}
    sent = {"w": np.zeros(values, np.float32)}
    largest = (2**31 - 1) // devices
    order = Masking(step=8.0 * 100 / largest, largest=largest, max_weight=100)
    half = devices // 2
    seeds = MaskSeeds(tuple(new_private() for _ in range(devices - half)), tuple(new_private() for _ in range(half)))

    def update(masks: MaskSeeds) -> object:
        return masked_update(["w"], trained.__getitem__, sent, order, masks, num_examples=100)

    own, others = new_private(), [public_of(new_private()) for _ in range(devices - 1)]

    def make_shares() -> None:
        pairs = zip(split(own, threshold, devices)[1:], split(own, threshold, devices)[1:], others, strict=True)
        for first, second, public in pairs:
            packed(new_private(), public, "share", first + second)

    return {
        "masked_update": median_ms(lambda: update(seeds), times),
        "rounding_alone": median_ms(lambda: update(MaskSeeds((), ())), times),
        "seeds": median_ms(lambda: [agree(own, public, "mask") for public in others], times),
        "shares": median_ms(make_shares, times),
    }


def unmasking(devices: int, gone: int, values: int, threshold: int) -> None:
    """The coordinator's work on a sum."""
    secret = new_private()
    shares = dict(enumerate(split(secret, threshold, devices), start=1))
    public, total = public_of(new_private()), np.zeros(values, np.uint32)
    for _ in range(devices - gone):
        add_masks(total, "w", [recover(shares, threshold)], sign=-1)
    for _ in range(gone):
        private = recover(shares, threshold)
        for _ in range(devices - gone):
            add_masks(total, "w", [agree(private, public, "mask")], sign=1)


def message_bytes(devices: int, gone: int, threshold: int) -> dict[str, int]:
    """Of a device's messages about masks."""
    identity, names = "a" * 64, [f"device-{index:03d}" for index in range(devices)]
    key, share = bytes(32), bytes(SHARE_BYTES)
    parcels = dict.fromkeys(names[1:], bytes(PARCEL_BYTES))
    reported, dropped = tuple(names[gone:]), tuple(names[:gone])
    bodies = {
        "keys": Keys(identity, key, key),
        "roster": Roster(identity, threshold, tuple(Member(name, key, key) for name in names)),
        "shares": Shares(identity, parcels, bytes(PAIR_BYTES), bytes(DIGEST_BYTES)),
        "mail": Mail(identity, parcels),
        "checked": Checked(identity),
        "proceed": Proceed(identity),
        "reveal": Reveal(identity, reported, dropped),
        "revealed": Revealed(identity, dict.fromkeys(reported, share), dict.fromkeys(dropped, share)),
    }
    return {kind: len(seal(kind, body, sign=lambda packed: bytes(SIGNATURE_BYTES))) for kind, body in bodies.items()}


def main(arguments: list[str]) -> int:
    """Prints one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--devices", type=int, default=20)
    parser.add_argument("--values", type=int, default=262_144)
    parser.add_argument("--gone", type=int, nargs="*", default=[0, 1, 4, 6])
    parser.add_argument("--times", type=int, default=7)
    chosen = parser.parse_args(arguments)
    devices, threshold = chosen.devices, max(2, chosen.devices // 2 + 1, -(-67 * chosen.devices // 100))
    result = {
        "threshold": threshold,
        "device_ms": device_costs(devices, chosen.values, threshold, chosen.times),
        "unmasking_ms": {
            gone: median_ms(lambda: unmasking(devices, gone, chosen.values, threshold), chosen.times)  # noqa: B023
            for gone in chosen.gone
        },
        "message_bytes": message_bytes(devices, max(chosen.gone), threshold),
    }
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
