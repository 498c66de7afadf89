"""Checkpoints between rounds and the file people take away."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from coordinator.rounds.global_model import decode_state, encode_state, write_final
from coordinator.submodels.values import State
from edge.contracts.errors import ArtifactCorrupt
from edge.contracts.tensor_file import read_header

STATE = State(
    tensors={
        "fc.weight": np.arange(6, dtype=np.float32).reshape(2, 3),
        "bn.num_batches_tracked": np.asarray(5, np.int64),
        "bn.running_mean": np.asarray([0.5, -0.0], np.float32),
    },
    extra={"fc.weight": np.asarray([7.0], np.float32), "spectrum": np.zeros((0, 2), np.float32)},
    round=3,
)


def test_state_comes_back_bit_by_bit() -> None:
    back = decode_state(encode_state(STATE), round_index=3)
    assert back.round == 3
    for before, after in ((STATE.tensors, back.tensors), (STATE.extra, back.extra)):
        assert before.keys() == after.keys()
        for name, value in before.items():
            assert (after[name].dtype, after[name].shape) == (value.dtype, value.shape)
            assert after[name].tobytes() == value.tobytes()


def test_equal_states_give_equal_bytes_whatever_the_order_of_names() -> None:
    other = State(dict(reversed(STATE.tensors.items())), dict(reversed(STATE.extra.items())), 9)
    assert encode_state(other) == encode_state(STATE)


def test_decoded_arrays_are_ones_own_to_write() -> None:
    data = encode_state(STATE)
    decode_state(data, round_index=0).tensors["fc.weight"][...] = -1
    np.testing.assert_array_equal(decode_state(data, round_index=0).tensors["fc.weight"], STATE.tensors["fc.weight"])


def test_truncated_checkpoint_is_refused() -> None:
    with pytest.raises(ArtifactCorrupt, match="checkpoint"):
        decode_state(encode_state(STATE)[:-1], round_index=0)


def test_final_file_holds_the_model_alone_sorted_and_aligned(tmp_path: Path) -> None:
    path = tmp_path / "checkpoints" / "final.safetensors"
    write_final(STATE, path)
    found = load_file(path)
    assert found.keys() == STATE.tensors.keys()
    np.testing.assert_array_equal(found["fc.weight"], STATE.tensors["fc.weight"])
    header, start = read_header(path.read_bytes(), where="final")
    assert list(header) == sorted(STATE.tensors)
    sizes = {"float32": 4, "int64": 8}
    assert all((start + begin) % sizes[dtype] == 0 for dtype, _, begin, _ in header.values())
    assert b"__metadata__" not in path.read_bytes()
    assert [p.name for p in path.parent.iterdir()] == ["final.safetensors"]


def test_final_file_of_a_tensor_with_a_name_beyond_ascii_is_read_by_the_library(tmp_path: Path) -> None:
    path = tmp_path / "final.safetensors"
    write_final(State({"größe.weight": np.ones(3, np.float32), 'a"b': np.zeros(2, np.int64)}), path)
    assert sorted(load_file(path)) == ['a"b', "größe.weight"]
