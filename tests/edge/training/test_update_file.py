"""Updates as files: what the other side reads back, byte by byte the same for the same tensors."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
import zstandard
from safetensors.numpy import load

from edge.contracts.errors import DeviceRefused
from edge.contracts.tensor_file import decode_tensors
from edge.training.update_file import write_update

TENSORS = {
    "b": np.arange(6, dtype=np.float32).reshape(2, 3),
    "a": np.array(7, np.int64),
    "empty": np.zeros((0, 4), np.float32),
    "strided": np.arange(8, dtype=np.float32)[::2],
    "mask": np.array([True, False, True]),
}


def test_update_file_is_safetensors_for_both_readers(tmp_path: Path) -> None:
    digest, size, encoded_size = write_update(tmp_path / "u", TENSORS, "raw")
    data = (tmp_path / "u").read_bytes()
    assert (digest, size, encoded_size) == (hashlib.sha256(data).hexdigest(), len(data), len(data))
    for read in (load(data), decode_tensors(data, where="test")):
        assert read.keys() == TENSORS.keys()
        for name, value in TENSORS.items():
            np.testing.assert_array_equal(read[name], value)
            assert read[name].dtype == value.dtype


def test_update_file_does_not_depend_on_the_order_given(tmp_path: Path) -> None:
    first = write_update(tmp_path / "1", TENSORS, "raw")
    assert write_update(tmp_path / "2", dict(reversed(TENSORS.items())), "raw") == first


def test_update_file_zstd_has_the_digest_of_its_plain_bytes(tmp_path: Path) -> None:
    plain = write_update(tmp_path / "plain", TENSORS, "raw")
    packed = write_update(tmp_path / "packed", TENSORS, "zstd")
    assert packed[:2] == plain[:2]
    data = (tmp_path / "packed").read_bytes()
    assert packed[2] == len(data)
    unpacked = zstandard.ZstdDecompressor().decompressobj().decompress(data)
    assert unpacked == (tmp_path / "plain").read_bytes()


def test_update_file_unknown_encoding_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DeviceRefused, match="int8"):
        write_update(tmp_path / "u", TENSORS, "int8")  # type: ignore[arg-type]
