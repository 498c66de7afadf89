"""The entry-wise mean, by hand. Invariant 7: equal devices change nothing, what nobody held keeps its bits."""

from __future__ import annotations

import numpy as np
import pytest

from coordinator.aggregation.entrywise import EntrywiseMean
from edge.contracts.errors import UpdateRejected


def array(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def index(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def test_every_entry_is_the_mean_over_those_who_held_it() -> None:
    mean = EntrywiseMean({"w": np.full((2, 3), 9.0, np.float32)})
    mean.add({"w": np.array([[1.0, 2.0]], np.float32)}, 1, where="a", slices={"w": (index(0), index(0, 2))})
    mean.add({"w": np.array([[5.0], [7.0]], np.float32)}, 3, where="b", slices={"w": (None, index(2))})
    # Entry (0, 2): (1 x 2 + 3 x 5) / 4.
    assert mean.result()["w"].tolist() == [[1.0, 9.0, 4.25], [9.0, 9.0, 7.0]]
    assert mean.result()["w"].dtype == np.float32


def test_whole_and_partial_updates_mix_in_any_order() -> None:
    for order in ((0, 1), (1, 0)):
        mean = EntrywiseMean({"w": array(0, 0)})
        for which in order:
            if which:
                mean.add({"w": array(2, 4)}, 1, where="whole")
            else:
                mean.add({"w": array(6)}, 1, where="part", slices={"w": (index(1),)})
        assert mean.result()["w"].tolist() == [2.0, 5.0]


def test_untouched_entries_and_tensors_keep_their_bits() -> None:
    odd = np.frombuffer(np.array([0x7FC00001, 0x80000000, 0x00000001], np.uint32).tobytes(), np.float32)
    before = {"w": odd, "b": array(-0.0)}
    mean = EntrywiseMean(before)
    mean.add({"w": array(3)}, 1, where="a", slices={"w": (index(2),)})
    after = mean.result()
    assert after["w"][:2].tobytes() == odd[:2].tobytes()
    assert after["w"][2] == 3
    assert after["b"] is before["b"]


def test_equal_devices_change_nothing() -> None:
    value = np.random.default_rng(0).normal(size=(50, 30)).astype(np.float32)
    mean = EntrywiseMean({"w": value})
    for device in range(7):
        mean.add(
            {"w": value[::2, 3:9]}, 1 + device, where="a", slices={"w": (index(*range(0, 50, 2)), index(*range(3, 9)))}
        )
    assert mean.result()["w"].tobytes() == value.tobytes()


def test_rows_of_labels_a_device_does_not_own_do_not_count() -> None:
    mean = EntrywiseMean({"fc.weight": np.zeros((3, 2), np.float32), "fc.bias": array(8, 8, 8)})
    update = {"fc.weight": np.array([[1.0], [2.0], [3.0]], np.float32), "fc.bias": array(1, 2, 3)}
    rows = {"fc.weight": (0, 2), "fc.bias": (0, 2)}
    mean.add(update, 1, where="a", slices={"fc.weight": (None, index(1))}, rows=rows)
    mean.add({"fc.bias": array(5, 6, 7)}, 1, where="b", rows={"fc.bias": (2,)})
    assert mean.result()["fc.weight"].tolist() == [[0.0, 1.0], [0.0, 0.0], [0.0, 3.0]]
    assert mean.result()["fc.bias"].tolist() == [1.0, 8.0, 5.0]


def test_sums_are_in_float64_and_integers_are_rounded() -> None:
    mean = EntrywiseMean({"w": array(0), "n": np.array(3, np.int64)})
    for value in (1e8, 1.0, -1e8):
        mean.add({"w": array(value), "n": np.array(2, np.int64)}, 1, where="a")
    assert mean.result()["w"].tolist() == [np.float32(1 / 3)]
    assert mean.result()["n"] == 2


def test_a_weight_of_zero_leaves_the_entry() -> None:
    mean = EntrywiseMean({"w": array(4, 4)})
    mean.add({"w": array(1)}, 0, where="a", slices={"w": (index(0),)})
    assert mean.result()["w"].tolist() == [4.0, 4.0]


@pytest.mark.parametrize(
    ("tensors", "weight", "words"),
    [
        ({"x": array(1)}, 1.0, ["pi-07", "'x'", "global model"]),
        ({"w": array(1, 2)}, 1.0, ["pi-07", "'w'", "(2,)", "(1,)"]),
        ({"w": array(np.nan)}, 1.0, ["pi-07", "'w'", "not finite"]),
        ({"w": array(1)}, -1.0, ["pi-07", "weight -1"]),
        ({"w": array(1)}, np.inf, ["pi-07", "weight inf"]),
    ],
)
def test_hostile_updates_are_refused_and_change_nothing(
    tensors: dict[str, np.ndarray], weight: float, words: list[str]
) -> None:
    mean = EntrywiseMean({"v": array(1), "w": array(1, 2, 3)})
    with pytest.raises(UpdateRejected) as caught:
        mean.add({"v": array(5), **tensors}, weight, where="device pi-07", slices={"w": (index(1),)})
    assert all(word in str(caught.value) for word in words)
    assert mean.result()["v"].tolist() == [1.0]


def test_memory_does_not_grow_with_the_number_of_devices() -> None:
    mean = EntrywiseMean({"w": np.zeros((64, 64), np.float32)})
    sizes = []
    for _ in range(4):
        mean.add({"w": np.ones((64, 1), np.float32)}, 1, where="a", slices={"w": (None, index(5))})
        held = [*mean._sums.values(), *mean._weights.values()]
        sizes.append(sum(a.nbytes for a in held))
    assert sizes == [2 * 64 * 64 * 8] * 4
