"""What a light device does instead of training: the received weights, every float scaled by about one percent at most.

The factor of each value comes from a table of SplitMix64 numbers, the table's start from the device and the round, so
the same device gives the same update again, and no two devices the same. Nothing is learned.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from edge.contracts.errors import DeviceRefused
from edge.contracts.plan import WorkOrder
from edge.contracts.streams import splitmix64, stream_seed
from edge.contracts.tensor_file import decode_tensors, encode_tensors, read_header

if TYPE_CHECKING:
    import numpy as np

NAME = "scaled weights (no training)"
SCALE, OWN_SCALE = 0.01, 0.001
_STARTS = 1 << 16


class StandIn:
    """Makes updates from one weights file, for any number of devices that were ordered the same tensors.

    Args:
        weights: the safetensors bytes all of them received.
        upload: names of the tensors that an update holds.

    Raises:
        DeviceRefused: a tensor is ordered that the weights do not hold.
    """

    def __init__(self, weights: bytes, upload: tuple[str, ...]) -> None:
        import numpy as np

        tensors = decode_tensors(weights, where="weights")
        missing = [name for name in upload if name not in tensors]
        if missing:
            raise DeviceRefused(
                f"update of {len(upload)} tensors ordered, {missing[:3]} are not among the {len(tensors)} received; "
                "a light device sends back what it was sent"
            )
        self._file = np.frombuffer(encode_tensors({name: tensors[name] for name in upload}), np.uint8)
        header, start = read_header(self._file.tobytes(), where="update")
        # Floats are scaled where they lie; the table is long enough for the largest of them at any start.
        self._floats = [(start + begin, start + end) for dtype, _, begin, end in header.values() if dtype == "float32"]
        longest = max((end - begin for begin, end in self._floats), default=0) // 4
        self._factors = _factors(longest + _STARTS)
        self.size = len(self._file)

    def update(self, order: WorkOrder) -> bytes:
        """The update of one order: a safetensors file, equal for equal (federation, round, device)."""
        import numpy as np

        made = self._file.copy()
        seed = stream_seed(order.data_seed, "load-update", order.round, order.device)
        start = seed % _STARTS
        # Of a thousand devices some begin at the same place of the table; this sets them apart.
        own = np.float32(1.0 + OWN_SCALE * (seed >> 40) / (1 << 24))
        for begin, end in self._floats:
            count = (end - begin) // 4
            value = np.frombuffer(made.data, np.float32, count, begin)
            value *= self._factors[start : start + count]
            value *= own
        return made.tobytes()


class Shelf:
    """The weights that devices of this process received, by digest, and the stand-ins made from them; few are kept."""

    def __init__(self, most: int = 4) -> None:
        self._most = most
        self._weights: dict[str, bytes] = {}
        self._stand_ins: dict[tuple[str, tuple[str, ...]], StandIn] = {}

    def __contains__(self, digest: str) -> bool:
        return digest in self._weights

    def agrees(self, digest: str, offset: int, data: bytes) -> bool | None:
        """Whether ``data`` are the kept blob's bytes from ``offset`` on; None when it is not kept here.

        So the devices that fetch the same weights after the first need not each hold them.
        """
        kept = self._weights.get(digest)
        return None if kept is None else kept[offset : offset + len(data)] == data

    def keep(self, digest: str, data: bytes) -> bool:
        """Whether ``data`` has that digest; it is kept if so."""
        if hashlib.sha256(data).hexdigest() != digest:
            return False
        while len(self._weights) >= self._most:
            oldest = next(iter(self._weights))
            self._weights.pop(oldest)
            for key in [key for key in self._stand_ins if key[0] == oldest]:
                self._stand_ins.pop(key)
        self._weights[digest] = data
        return True

    def stand_in(self, order: WorkOrder) -> StandIn:
        """The stand-in for an order whose weights are kept here."""
        key = (order.weights.digest, order.upload)
        if key not in self._stand_ins:
            self._stand_ins[key] = StandIn(self._weights[order.weights.digest], order.upload)
        return self._stand_ins[key]


def _factors(count: int) -> np.ndarray:
    import numpy as np

    uniform = (splitmix64(stream_seed(0, "load-factors"), count) >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return (1.0 + SCALE * (2.0 * uniform - 1.0)).astype(np.float32)
