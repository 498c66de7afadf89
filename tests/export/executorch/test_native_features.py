"""Features in the trainer without Python beside the Python trainer: the same steps to the bit, from the same file."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

import msgspec
import numpy as np
import pytest
from torch import nn

from edge.contracts.fixed_sample import FixedSample
from edge.contracts.plan import Schedule
from edge.contracts.tensor_file import encode_tensors
from edge.flat_orders.order import flat_order
from edge.supervisor.trainer_messages import Failed, Reply, Train, Trained
from edge.training.artifact_folder import read_artifact_folder
from export.bundle import export_artifact
from export.gate_values import gate_values
from tests.export.executorch.test_native_trainer import Job, by_native, by_python, program
from tests.export.features.networks import CLASSES, IMAGE, GroupOfTwo, Residual, frozen_step

pytestmark = pytest.mark.runtime

EXAMPLES, VALUES = 20, 4 * 6 * 6
HEAD = {"plain": 24, "encrypted": 36}
"""Bytes of a record beside its features."""

__all__ = ["program"]


def job_of(folder: Path, features: str, norm: type[nn.Module] = nn.BatchNorm2d, **choice: object) -> Job:
    """Its lowest block frozen; twenty examples."""
    made = Residual(norm)
    step = frozen_step(made, "stem", "blocks.0", features=features, **choice)
    export_artifact(made, step, folder / "artifact", runtime="executorch")
    manifest, paths = read_artifact_folder(folder / "artifact")
    values = gate_values(step, manifest.tensors, masked=False)
    sent = manifest.specs("parameter", "frozen", "buffer")
    (folder / "weights").write_bytes(encode_tensors({s.name: values[s.name] for s in sent}))
    draw = np.random.default_rng(0)
    x = draw.standard_normal((EXAMPLES, *IMAGE.shape)).astype(np.float32)
    np.savez(folder / "data.npz", x=x, y=draw.integers(0, CLASSES, EXAMPLES))
    return Job(folder / "artifact", manifest, paths, folder / "weights", folder / "data.npz")


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Job]:
    return {kind: job_of(tmp_path_factory.mktemp(kind), kind) for kind in ("float32", "float16", "int8")}


def asked(job: Job, name: str, folder: Path | None, *, key: Path | None = None, limit: int = 10**6) -> Train:
    """Two epochs of all examples."""
    hyper = {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.01}
    names = tuple(s.name for s in job.manifest.specs("parameter", "buffer"))
    request = job.request(name, hyper=hyper, upload=names, last_batch="wrap")
    where = {"features": str(folder or ""), "features_bytes": limit, "features_key": str(key or "")}
    return msgspec.structs.replace(request, **where)


def updates(program: str, job: Job, request: Train) -> tuple[bytes, bytes]:
    """By the Python trainer, and then by the other one."""
    first = update(request, by_python(request))
    return first, update(request, by_native(program, flat_order(request, job.manifest)))


def replies(program: str, job: Job, request: Train, *, is_native: bool) -> list[Reply]:
    return by_native(program, flat_order(request, job.manifest)) if is_native else by_python(request)


def update(request: Train, said: list[Reply]) -> bytes:
    assert isinstance(said[-1], Trained), said[-1]
    data = Path(request.update).read_bytes()
    assert hashlib.sha256(data).hexdigest() == said[-1].digest
    return data


@pytest.mark.parametrize("kind", ["float32", "float16", "int8"])
def test_update_is_the_same_bits_whichever_trainer_kept_the_features(
    program: str, jobs: dict[str, Job], kind: str, tmp_path: Path
) -> None:
    job = jobs[kind]
    bare, native_bare = updates(program, job, asked(job, "bare", None))
    assert native_bare == bare
    for first, folder in ((False, tmp_path / "python first"), (True, tmp_path / "native first")):
        request = asked(job, "kept", folder)
        assert update(request, replies(program, job, request, is_native=first)) == bare
        (file,) = folder.iterdir()
        size = {"float32": 4 * VALUES, "float16": 2 * VALUES, "int8": 8 + VALUES}[kind]
        assert file.stat().st_size == EXAMPLES * (HEAD["plain"] + size)
        assert file.stat().st_mode & 0o077 == 0
        kept = file.read_bytes()
        assert update(request, replies(program, job, request, is_native=not first)) == bare
        assert file.read_bytes() == kept  # the other one found every record whole, and so wrote none


def test_features_are_read_where_they_are_kept(program: str, jobs: dict[str, Job], tmp_path: Path) -> None:
    job = jobs["float32"]
    request = asked(job, "kept", tmp_path / "kept")
    flat = flat_order(request, job.manifest)
    bare = update(request, by_native(program, flat))
    # The program that gives them is not there any more.
    blob = Path(request.files[job.manifest.program("features").file])
    data = blob.read_bytes()
    try:
        blob.write_bytes(b"nothing")
        assert update(request, by_native(program, flat)) == bare
        (file,) = (tmp_path / "kept").iterdir()
        damaged = bytearray(file.read_bytes())
        damaged[len(damaged) // 2] ^= 1
        file.write_bytes(damaged)
        failed = by_native(program, flat)[-1]
        assert isinstance(failed, Failed)
        assert "'features' has another digest" in failed.reason
    finally:
        blob.write_bytes(data)
    assert update(request, by_native(program, flat)) == bare


def test_encrypted_records_are_each_others(program: str, jobs: dict[str, Job], tmp_path: Path) -> None:
    job, key = jobs["float32"], tmp_path / "key.pem"
    key.write_bytes(b"a device's private key")
    request = asked(job, "kept", tmp_path / "kept", key=key)
    native = update(request, by_native(program, flat_order(request, job.manifest)))
    (file,) = (tmp_path / "kept").iterdir()
    assert file.suffix == ".encrypted"
    kept = file.read_bytes()
    assert len(kept) == EXAMPLES * (HEAD["encrypted"] + 4 * VALUES)
    assert update(request, by_python(request)) == native
    assert file.read_bytes() == kept
    plain = asked(job, "plain", tmp_path / "plain")
    assert update(plain, by_native(program, flat_order(plain, job.manifest))) == native
    (readable,) = (tmp_path / "plain").iterdir()
    values = readable.read_bytes()[HEAD["plain"] : HEAD["plain"] + 64]
    assert values not in kept


def test_of_another_key_no_record_is_whole(program: str, jobs: dict[str, Job], tmp_path: Path) -> None:
    job, key = jobs["float32"], tmp_path / "key.pem"
    key.write_bytes(b"one")
    request = asked(job, "kept", tmp_path / "kept", key=key)
    first = update(request, by_native(program, flat_order(request, job.manifest)))
    (file,) = (tmp_path / "kept").iterdir()
    before = file.read_bytes()
    key.write_bytes(b"another")
    assert update(request, by_native(program, flat_order(request, job.manifest))) == first
    after = file.read_bytes()
    assert len(after) == len(before)
    size = HEAD["encrypted"] + 4 * VALUES
    assert all(before[i * size : (i + 1) * size] != after[i * size : (i + 1) * size] for i in range(EXAMPLES))


def test_what_does_not_fit_is_computed(program: str, jobs: dict[str, Job], tmp_path: Path) -> None:
    job = jobs["float32"]
    record = HEAD["plain"] + 4 * VALUES
    bare = updates(program, job, asked(job, "bare", None))[0]
    request = asked(job, "kept", tmp_path / "kept", limit=7 * record + 5)
    assert updates(program, job, request) == (bare, bare)
    (file,) = (tmp_path / "kept").iterdir()
    assert file.stat().st_size == 7 * record
    os.truncate(file, 6 * record + 9)
    assert update(request, by_native(program, flat_order(request, job.manifest))) == bare
    assert file.stat().st_size == 7 * record


@pytest.mark.slow
def test_micro_batches_and_a_sample_read_features(program: str, tmp_path: Path) -> None:
    job = job_of(tmp_path, "float16", GroupOfTwo, micro_batches=2)
    for name, folder in (("bare", None), ("kept", tmp_path / "features")):
        request = asked(job, name, folder)
        changed = {"sample": FixedSample(size=9, seed=3), "schedule": Schedule(steps=7)}
        request = msgspec.structs.replace(request, order=msgspec.structs.replace(request.order, **changed))
        by = updates(program, job, request)
        assert by[0] == by[1]


def test_features_that_float16_cannot_hold_are_left_to_the_python_trainer(
    program: str, jobs: dict[str, Job], tmp_path: Path
) -> None:
    job = jobs["float16"]
    np.savez(tmp_path / "large.npz", x=np.full((6, *IMAGE.shape), 3e8, np.float32), y=np.zeros(6, np.int64))
    request = msgspec.structs.replace(asked(job, "large", None), data=str(tmp_path / "large.npz"))
    failed = by_native(program, flat_order(request, job.manifest))[-1]
    assert isinstance(failed, Failed)
    assert (failed.code, bool(re.search("features .* not finite", failed.reason))) == ("trainer-unable", True)
    told = by_python(request)[-1]
    assert isinstance(told, Failed)
    assert "cached-features has to be float32" in told.reason
