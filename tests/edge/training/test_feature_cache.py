"""Kept features: a record is there whole and for the very example, or it is not; the disk's limit; a step's source."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import pytest

from edge.contracts.errors import DeviceRefused
from edge.contracts.manifest import ArtifactManifest, GraphOutput, Program
from edge.contracts.tensors import TensorSpec
from edge.training.feature_cache.artifact import features_key, kept_bytes
from edge.training.feature_cache.folder import open_records
from edge.training.feature_cache.record_file import RecordFile
from edge.training.feature_cache.rounding import Rounding
from edge.training.feature_cache.source import FeatureSource, frozen_bytes
from tests.edge.tiny_artifact import FEATURES, softmax_graph, softmax_manifest, tiny_job

KEY, SHAPE = bytes(range(32)), (3, 5)
SIZE = 24 + 4 * 15
"""Bytes of a record: place, seal, 15 values."""


def features(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(SHAPE).astype(np.float32)


def records(path: Path, *, key: bytes = KEY, examples: int = 4, limit: int = 10**6) -> RecordFile:
    return RecordFile(path, key, examples=examples, feature_bytes=60, limit_bytes=limit)


def found(file: RecordFile, place: int, example: bytes) -> np.ndarray | None:
    target = np.zeros(SHAPE, np.float32)
    return target if file.read(place, example, target) else None


def filled(path: Path) -> Path:
    file = records(path)
    for place in (2, 0, 3):
        file.write(place, b"example %d" % place, features(place))
    file.close()
    return path


def test_what_is_written_is_read_after_a_restart(tmp_path: Path) -> None:
    file = records(filled(tmp_path / "f"))
    for place in (0, 2, 3):
        assert np.array_equal(found(file, place, b"example %d" % place), features(place))  # type: ignore[arg-type]
    assert found(file, 1, b"example 1") is None
    assert (tmp_path / "f").stat().st_size == 3 * SIZE
    assert (tmp_path / "f").stat().st_mode & 0o077 == 0


def test_another_example_or_other_weights_have_no_record(tmp_path: Path) -> None:
    assert found(records(filled(tmp_path / "f")), 2, b"another text") is None
    assert found(records(filled(tmp_path / "f"), key=bytes(32)), 2, b"example 2") is None


@pytest.mark.parametrize("at", [0, 8, 24, SIZE - 1])
def test_a_turned_bit_is_found_and_its_record_written_again(at: int, tmp_path: Path) -> None:
    path = filled(tmp_path / "f")
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
    file = records(path)
    assert found(file, 2, b"example 2") is None
    file.write(2, b"example 2", features(2))
    assert np.array_equal(found(file, 2, b"example 2"), features(2))  # type: ignore[arg-type]
    assert np.array_equal(found(file, 0, b"example 0"), features(0))  # type: ignore[arg-type]


def test_half_a_record_at_the_end_is_not_there(tmp_path: Path) -> None:
    path = filled(tmp_path / "f")
    os.truncate(path, 3 * SIZE - 7)
    file = records(path)
    assert found(file, 3, b"example 3") is None
    file.write(3, b"example 3", features(3))
    assert path.stat().st_size == 3 * SIZE
    assert found(file, 3, b"example 3") is not None


def test_examples_that_are_gone_leave_room_and_new_ones_are_added(tmp_path: Path) -> None:
    path = filled(tmp_path / "f")
    fewer = records(path, examples=3)
    fewer.write(1, b"example 1", features(1))
    assert path.stat().st_size == 3 * SIZE
    more = records(path, examples=9)
    assert [found(more, place, b"example %d" % place) is not None for place in range(4)] == [True, True, True, False]


def test_no_more_is_kept_than_the_limit_lets(tmp_path: Path) -> None:
    path = tmp_path / "f"
    file = records(path, limit=2 * SIZE + SIZE - 1)
    for place in range(4):
        file.write(place, b"", features(place))
    assert path.stat().st_size == 2 * SIZE
    assert [found(file, place, b"") is not None for place in range(4)] == [True, True, False, False]
    assert found(records(path, limit=SIZE), 1, b"") is None
    assert path.stat().st_size == SIZE


def test_a_full_disk_ends_the_keeping_not_the_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "f"
    file = records(path)
    file.write(0, b"", features(0))

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwritev", full)
    file.write(1, b"", features(1))
    monkeypatch.undo()
    file.write(2, b"", features(2))
    assert [found(file, place, b"") is not None for place in range(3)] == [True, False, False]
    assert path.stat().st_size == SIZE


def test_folder_makes_room_by_what_was_used_least_recently(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"{number}").write_bytes(bytes(1000))
        os.utime(tmp_path / f"{number}", (number, number))
    assert open_records(tmp_path, KEY, 60, examples=4, limit_bytes=1500) is not None
    assert {path.name for path in tmp_path.iterdir()} == {"2", KEY.hex()}


def test_folder_keeps_nothing_where_nothing_is_allowed(tmp_path: Path) -> None:
    filled(tmp_path / KEY.hex())
    assert open_records(tmp_path, KEY, 60, examples=4, limit_bytes=0) is None
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "no folder").write_bytes(b"")
    assert open_records(tmp_path / "no folder", KEY, 60, examples=4, limit_bytes=10**6) is None


def manifest(dtype: str = "float32") -> ArtifactManifest:
    """Steps that read twice the input, in batches of four by two micro-batches."""
    made = ArtifactManifest.from_bytes(softmax_manifest(softmax_graph()))
    first = made.programs[0]
    spec = TensorSpec("features", ("batch", FEATURES), dtype, "features")  # type: ignore[arg-type]
    twice = Program("features", first.file, ("input", "fc.bias"), (GraphOutput("y", "features"),))
    return msgspec.structs.replace(
        made, programs=(*made.programs, twice), tensors=(*made.tensors, spec), batch=4, micro_batches=2
    )


class Doubling:
    """Gives twice the input and writes down how many examples it was asked for."""

    def __init__(self, dtype: str = "float32") -> None:
        self.asked: list[int] = []
        self.bias = np.zeros(3, np.float32)
        self._dtype = dtype

    def compute(self, program: str, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        assert program == "features"
        self.asked.append(len(feeds["input"]))
        with np.errstate(over="ignore"):
            return {"features": (2 * feeds["input"]).astype(self._dtype)}

    def read(self, name: str) -> np.ndarray:
        assert name == "fc.bias"
        return self.bias


def batch(*places: int) -> tuple[np.ndarray, np.ndarray]:
    return np.array(places), np.array([[place] * FEATURES for place in places], np.float32)


def test_source_computes_each_example_once_and_by_micro_batches(tmp_path: Path) -> None:
    session = Doubling()
    file = RecordFile(tmp_path / "f", KEY, examples=8, feature_bytes=4 * FEATURES, limit_bytes=10**6)
    source = FeatureSource(session, manifest(), file)  # type: ignore[arg-type]
    places, x = batch(5, 1, 2, 7)
    assert np.array_equal(source.batch(places, x), 2 * x)
    assert session.asked == [2, 2]
    places, x = batch(2, 6, 5, 2)
    assert np.array_equal(source.batch(places, x), 2 * x)
    assert session.asked == [2, 2, 1]


def test_source_without_records_computes_every_time() -> None:
    session = Doubling()
    source = FeatureSource(session, manifest(), None)  # type: ignore[arg-type]
    for _ in range(2):
        assert np.array_equal(source.batch(*batch(0, 1)), 2 * batch(0, 1)[1])
    assert session.asked == [2, 2]


def test_values_that_float16_cannot_hold_are_refused_with_the_next_step() -> None:
    source = FeatureSource(Doubling("float16"), manifest("float16"), None)  # type: ignore[arg-type]
    with pytest.raises(DeviceRefused, match=r"not finite in float16, whose largest number is 65504; .* be float32"):
        source.batch(*batch(40_000))


def encrypted(tmp_path: Path, private: bytes = b"a private key") -> RecordFile | None:
    key_file = tmp_path / "device.key"
    key_file.write_bytes(private)
    return open_records(tmp_path / "kept", KEY, 60, examples=4, limit_bytes=10**6, key_file=key_file)


def test_device_with_a_key_keeps_nothing_that_can_be_read_without_it(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    filled(tmp_path / "kept" / KEY.hex())
    file = encrypted(tmp_path)
    assert file is not None
    for place in (2, 0):
        file.write(place, b"example %d" % place, features(place))
    file.close()
    (path,) = (tmp_path / "kept").iterdir()  # what was kept before the device had a key is gone
    data = path.read_bytes()
    assert len(data) == 2 * (8 + 28 + 60)
    assert not any(features(place).tobytes()[:16] in data for place in (0, 2))
    again, other = encrypted(tmp_path), encrypted(tmp_path, b"another")
    assert again is not None
    assert other is not None
    for place in (0, 2):
        assert np.array_equal(found(again, place, b"example %d" % place), features(place))  # type: ignore[arg-type]
        assert found(other, place, b"example %d" % place) is None
    assert found(again, 0, b"another") is None


@pytest.mark.parametrize("at", [0, 8, 20, 36, 95])
def test_a_turned_bit_of_an_encrypted_record_is_found(at: int, tmp_path: Path) -> None:
    file = encrypted(tmp_path)
    assert file is not None
    file.write(1, b"example 1", features(1))
    (path,) = (tmp_path / "kept").iterdir()
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
    again = encrypted(tmp_path)
    assert again is not None
    assert found(again, 1, b"example 1") is None


def test_device_whose_key_cannot_be_used_keeps_nothing_in_the_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.exceptions", None)
    assert encrypted(tmp_path) is None
    assert list((tmp_path / "kept").iterdir()) == []


def test_device_whose_key_cannot_be_read_keeps_nothing_in_the_open(tmp_path: Path) -> None:
    gone = tmp_path / "gone.key"
    assert open_records(tmp_path / "kept", KEY, 60, examples=4, limit_bytes=10**6, key_file=gone) is None
    assert list((tmp_path / "kept").iterdir()) == []


@pytest.mark.parametrize(("kind", "size"), [("float16", 30), ("int8", 23)])
def test_rounding_keeps_its_stated_tolerance_and_gives_the_same_bits_again(kind: str, size: int) -> None:
    given = np.stack([np.maximum(features(1), 0), 1000 * features(2), np.full(SHAPE, 3.5, np.float32)])
    rounding = Rounding(kind, 15)
    kept, back = rounding.kept(given), np.empty_like(given)
    rounding.given_back(kept, back)
    assert (kept.shape, kept.dtype, rounding.size) == ((3, size), np.uint8, size)
    of = np.abs(given) * 2.0**-11 if kind == "float16" else np.ptp(given, (1, 2), keepdims=True) / 255 / 2
    assert (np.abs(back - given) <= 1.001 * of + 1e-6).all()
    again = np.empty_like(given)
    rounding.given_back(rounding.kept(back), again)
    assert np.abs(again - back).max() <= 1e-6 * np.abs(back).max()
    alone = np.empty_like(given[1:2])
    rounding.given_back(rounding.kept(given[1:2]), alone)
    assert np.array_equal(alone[0], back[1])


def test_values_that_rounding_cannot_hold_are_refused_with_the_next_step() -> None:
    with pytest.raises(DeviceRefused, match=r"not finite in float16.* cached-features has to be float32"):
        Rounding("float16", 15).kept(np.full((1, 15), 70_000, np.float32))


def test_artifact_that_rounds_as_this_agent_cannot_is_refused() -> None:
    unknown = msgspec.structs.replace(manifest(), features_kept_as="int2")  # type: ignore[arg-type]
    with pytest.raises(DeviceRefused, match="kept as int2, this agent knows float16 and int8; update it"):
        FeatureSource(Doubling(), unknown, None)  # type: ignore[arg-type]


def test_source_gives_rounded_features_whether_they_are_kept_or_not(tmp_path: Path) -> None:
    made = msgspec.structs.replace(manifest(), features_kept_as="int8")
    places, x = batch(5, 1, 2, 7)
    x[:, 1:3] = 0.3, 0.17
    file = RecordFile(tmp_path / "f", KEY, examples=8, feature_bytes=kept_bytes(made), limit_bytes=10**6)
    sources = [FeatureSource(Doubling(), made, records) for records in (None, file, file)]  # type: ignore[arg-type]
    bare, first, again = (source.batch(places, x) for source in sources)
    assert np.array_equal(bare, first)
    assert np.array_equal(bare, again)
    assert 0 < np.abs(bare - 2 * x).max() <= 14 / 255


def test_killed_while_it_writes_it_loses_no_record_that_was_whole(tmp_path: Path) -> None:
    code = (
        "import sys, numpy as np; from pathlib import Path;"
        "from edge.training.feature_cache.record_file import RecordFile;"
        "f = RecordFile(Path(sys.argv[1]), bytes(range(32)), examples=5000, feature_bytes=4 * 4096, limit_bytes=10**9);"
        "value = lambda n: np.full(4096, n, np.float32);"
        "[(f.write(n, b'%d' % n, value(n)), n == 20 and print('go', flush=True)) for n in range(5000)]"
    )
    path = tmp_path / "f"
    child = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "go\n"
    child.kill()
    child.wait()
    child.stdout.close()
    os.truncate(path, path.stat().st_size - 1000)  # a power cut, too, tears the last record
    file = RecordFile(path, KEY, examples=5000, feature_bytes=4 * 4096, limit_bytes=10**9)
    target = np.empty(4096, np.float32)
    there = [n for n in range(5000) if file.read(n, b"%d" % n, target) and (target == n).all()]
    assert len(there) >= 20
    assert there == list(range(len(there)))
    assert path.stat().st_size == len(there) * (24 + 4 * 4096)
    file.write(len(there), b"%d" % len(there), np.full(4096, len(there), np.float32))
    assert file.read(len(there), b"%d" % len(there), target)


def test_session_that_gives_no_features_is_refused() -> None:
    with pytest.raises(DeviceRefused, match="runtime 'onnxruntime' of this agent gives no features"):
        FeatureSource(object(), manifest(), None)  # type: ignore[arg-type]


def test_key_is_of_graph_base_values_and_runtime() -> None:
    made, order, session = manifest(), tiny_job().order, Doubling()

    def key(**changes: object) -> bytes:
        of = {"manifest": made, "order": order, "runtime": "onnxruntime 1.23"} | changes
        return features_key(values=partial(frozen_bytes, session), **of)  # type: ignore[arg-type]

    first = key()
    assert key(order=msgspec.structs.replace(order, round=order.round + 1)) == first
    assert key(runtime="onnxruntime 1.24") != first
    files = tuple(msgspec.structs.replace(file, sha256="0" * 64) for file in made.files)
    assert key(manifest=msgspec.structs.replace(made, files=files)) != first
    based = tuple(
        msgspec.structs.replace(spec, role="mapped") if spec.name == "fc.bias" else spec for spec in made.tensors
    )
    mapped = msgspec.structs.replace(made, tensors=based)
    other = msgspec.structs.replace(order, constants=msgspec.structs.replace(order.weights, digest="1" * 64))
    assert key(manifest=mapped, order=order) != key(manifest=mapped, order=other)
    session.bias = np.ones(3, np.float32)
    assert key() != first
