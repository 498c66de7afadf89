"""Tensor files from outside, and updates that are not what was ordered."""

from __future__ import annotations

import contextlib
import json
import struct
import time
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edge.contracts.errors import (
    ApportionError,
    ArtifactCorrupt,
    UpdateRejected,
)
from edge.contracts.tensor_file import MAX_HEADER_BYTES, check_tensors, decode_tensors, encode_tensors
from edge.contracts.tensors import TensorSpec
from tests.contracts.samples import TENSORS

FUZZ = settings(max_examples=300, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


def tensor_file(header: Any, body: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


def entry(shape: Any, begin: Any, end: Any, dtype: Any = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def test_tensor_file_cut_at_any_byte_is_rejected() -> None:
    data = encode_tensors(TENSORS)
    for length in range(len(data)):
        with pytest.raises(ArtifactCorrupt, match="update of pi-07"):
            decode_tensors(data[:length], where="update of pi-07")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (struct.pack("<Q", 2**63) + b"{}", "tensor header says 9223372036854775808 bytes"),
        (struct.pack("<Q", MAX_HEADER_BYTES + 1) + b" " * (MAX_HEADER_BYTES + 1), "the limit is 4194304"),
        (tensor_file(b"not json"), "not JSON"),
        (tensor_file(b"\xff\xfe{}"), "not JSON"),
        (tensor_file(b"[" * 100_000), "not JSON"),
        (tensor_file(b'{"a":' + b"9" * 5000 + b"}"), "not JSON"),
        (tensor_file([]), "is list, an object expected"),
        (tensor_file({"a": entry([1], 0, 4, "F64")}, b"\0" * 4), "not readable"),
        (tensor_file({"a": entry([1], 0, 4, ["F32"])}, b"\0" * 4), "not readable"),
        (tensor_file({"a": {"dtype": "F32", "shape": [1]}}, b"\0" * 4), "not readable"),
        (tensor_file({"a": entry(3, 0, 4)}, b"\0" * 4), "not readable"),
        (tensor_file({"a": entry("12", 0, 4)}, b"\0" * 4), "sizes must be counts"),
        (tensor_file({"a": entry([-1], 0, 4)}, b"\0" * 4), "sizes must be counts"),
        (tensor_file({"a": entry([1.0], 0, 4)}, b"\0" * 4), "sizes must be counts"),
        (tensor_file({"a": entry([True], 0, 4)}, b"\0" * 4), "sizes must be counts"),
        (tensor_file({"a": entry([1], False, 4)}, b"\0" * 4), "sizes must be counts"),
        (tensor_file({"a": entry([1], 4, 0)}, b"\0" * 4), "needs 4 bytes"),
        (tensor_file({"a": entry([2], 0, 4)}, b"\0" * 4), "needs 8 bytes"),
        (tensor_file({"a": entry([2**40, 2**40], 0, 4)}, b"\0" * 4), "more than an array can index"),
        (tensor_file({"a": entry([0, 2**40, 2**40], 0, 0)}), "more than an array can index"),
        (tensor_file({"a": entry([1] * 33, 0, 4)}, b"\0" * 4), "has 33 dims, the limit is 32"),
        (tensor_file({"a": entry([1], 0, 4), "b": entry([1], 0, 4)}, b"\0" * 4), "starts at 0, 4 expected"),
        (tensor_file({"a": entry([2], 0, 8), "b": entry([1], 4, 8)}, b"\0" * 8), "starts at 4, 8 expected"),
        (tensor_file({"a": entry([1], 4, 8)}, b"\0" * 8), "starts at 4, 0 expected"),
        (tensor_file({"a": entry([1], 0, 4)}, b"\0" * 8), "tensors end at byte 4 of 8"),
        (tensor_file({}, b"\0"), "tensors end at byte 0 of 1"),
    ],
)  # fmt: skip
def test_tensor_file_that_lies_is_rejected(data: bytes, message: str) -> None:
    with pytest.raises(ArtifactCorrupt, match=message):
        decode_tensors(data, where="here")


def test_header_bomb_costs_neither_time_nor_memory() -> None:
    """A shape of a million huge dims would take minutes to multiply; a tensor that says 2^47 bytes would not fit."""
    bombs = [
        tensor_file({"a": entry([2**48] * 250_000, 0, 4)}, b"\0" * 4),
        tensor_file({"a": entry([2**45], 0, 2**47)}),
    ]
    for bomb in bombs:
        tracemalloc.start()
        started = time.perf_counter()
        with pytest.raises(ArtifactCorrupt) as caught:
            decode_tensors(bomb, where="here")
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert time.perf_counter() - started < 5.0
        assert peak < 40 * len(bomb) + 1_000_000
        assert len(str(caught.value)) < 500


def test_empty_tensors_and_an_empty_file_are_read() -> None:
    header = {"b": entry([1], 0, 4), "a": entry([0, 3], 0, 0), "__metadata__": {"format": "np"}}
    arrays = decode_tensors(tensor_file(header, b"\0" * 4), where="here")
    assert {name: array.shape for name, array in arrays.items()} == {"a": (0, 3), "b": (1,)}
    assert decode_tensors(tensor_file({}), where="here") == {}


def test_decoded_tensors_cannot_be_written() -> None:
    arrays = decode_tensors(encode_tensors(TENSORS), where="here")
    with pytest.raises(ValueError, match="read-only"):
        arrays["fc1.u"][0, 0] = 1.0


def test_equal_tensors_give_equal_bytes_whatever_their_order() -> None:
    assert encode_tensors(TENSORS) == encode_tensors(dict(reversed(TENSORS.items())))


HEADER_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2**64) | st.floats() | st.sampled_from(["F32", "I64", "BOOL", ""]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["dtype", "shape", "data_offsets", "a"]), inner, max_size=4)
    ),
    max_leaves=12,
)


@pytest.mark.slow
@FUZZ
@given(st.dictionaries(st.text(max_size=5), HEADER_VALUES, max_size=4), st.binary(max_size=32))
def test_any_header_never_escapes_as_another_error(header: dict[str, Any], body: bytes) -> None:
    with contextlib.suppress(ApportionError):
        decode_tensors(tensor_file(header, body), where="here")


@FUZZ
@given(st.binary(max_size=200))
def test_random_tensor_bytes_never_escape_as_another_error(data: bytes) -> None:
    with contextlib.suppress(ApportionError):
        decode_tensors(data, where="here")


@FUZZ
@given(st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=5))
def test_changed_bytes_of_a_tensor_file_never_escape_as_another_error(changes: list[tuple[int, int]]) -> None:
    data = bytearray(encode_tensors(TENSORS))
    for place, value in changes:
        data[place % len(data)] = value
    with contextlib.suppress(ApportionError):
        decode_tensors(bytes(data), where="here")


SPECS = (TensorSpec("fc1.u", (3, 2), "float32", "parameter"), TensorSpec("n", (), "int64", "buffer"))
GOOD = {"fc1.u": np.zeros((3, 2), np.float32), "n": np.asarray(1, np.int64)}


def changed(name: str, value: np.ndarray) -> dict[str, np.ndarray]:
    return {**GOOD, name: value}


def with_value(value: float) -> np.ndarray:
    array = np.zeros((3, 2), np.float32)
    array[1, 1] = value
    return array


def test_update_as_ordered_passes() -> None:
    check_tensors(GOOD, SPECS, where="device pi-07, round 12")


@pytest.mark.parametrize(
    ("update", "message"),
    [
        (changed("fc1.u", with_value(np.nan)), "'fc1.u' holds 1 values that are not finite; lower the learning rate"),
        (changed("fc1.u", with_value(-np.inf)), "'fc1.u' holds 1 values that are not finite"),
        (changed("fc1.u", np.zeros((2, 3), np.float32)), r"update for 'fc1.u' has shape \(2, 3\), plan says \(3, 2\)"),
        (changed("fc1.u", np.zeros((3, 2), np.float16)), "update for 'fc1.u' is float16, plan says float32"),
        (changed("fc1.u", np.zeros((3, 2), np.int32)), "update for 'fc1.u' is int32, plan says float32"),
        (changed("n", np.asarray([1], np.int64)), r"update for 'n' has shape \(1,\), plan says \(\)"),
        ({"n": GOOD["n"]}, r"1 tensors missing \['fc1.u'\], 0 not ordered"),
        ({**GOOD, "extra": GOOD["n"]}, r"0 tensors missing \[\], 1 not ordered \['extra'\]"),
    ],
)
def test_update_that_was_not_ordered_is_rejected(update: dict[str, np.ndarray], message: str) -> None:
    with pytest.raises(UpdateRejected, match=f"device pi-07, round 12: .*{message}"):
        check_tensors(update, SPECS, where="device pi-07, round 12")
