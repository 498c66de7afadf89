"""The trainer without Python, cross-built for the boards, carries an order out as this machine's does."""

from __future__ import annotations

import io
import shlex
import subprocess
import zipfile
from pathlib import Path

import numpy as np
import pytest

from coordinator.fleet.device_wheel import PROGRAM, write_device_wheel
from edge.contracts.tensor_file import decode_tensors, read_tensor_file
from edge.flat_orders.order import flat_order
from edge.runtimes.executorch.session import native_trainer
from edge.supervisor.trainer_messages import Progress, Ready, Trained, read_reply
from tests.arm.boards import EmulatedDevice
from tests.arm.session_library import trainer_of
from tests.export.executorch.test_native_features import EXAMPLES, HEAD, VALUES, asked, update
from tests.export.executorch.test_native_features import job_of as features_job
from tests.export.executorch.test_native_trainer import Job, by_native, job_of
from tests.export.test_step import step

pytestmark = [pytest.mark.slow, pytest.mark.runtime]

EQUAL = 1e-5
ROUNDED = 1e-3
"""Of features in float16 that two processors round apart."""
AARCH64 = 183
"""The machine of an ELF file's header."""


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """Convolution, batch norm and a linear layer; 20 examples."""
    return job_of(tmp_path_factory.mktemp("job"), step())


def starter(device: EmulatedDevice, program: Path, folder: Path) -> str:
    """A file that starts ``program`` on ``device`` in its own process, so that its parent is who started it."""
    path = folder / "trainer"
    path.write_text(f'#!/bin/sh\nexec {shlex.join(device.emulator)} {shlex.quote(str(program))} "$@"\n')
    path.chmod(0o755)
    return str(path)


def test_features_are_kept_and_read(device: EmulatedDevice, session_library: Path, tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    job = features_job(tmp_path / "job", "float16")
    program = starter(device, trainer_of(session_library), tmp_path)
    requests = [asked(job, name, folder) for name, folder in (("bare", None), ("first", tmp_path / "kept"))]
    bare, first, again = (update(r, by_native(program, flat_order(r, job.manifest))) for r in (*requests, requests[1]))
    assert bare == first == again
    (file,) = (tmp_path / "kept").iterdir()
    assert file.stat().st_size == EXAMPLES * (HEAD["plain"] + 2 * VALUES)
    here = asked(job, "here", None)
    ours = decode_tensors(update(here, by_native(native_trainer(), flat_order(here, job.manifest))), where="here")
    for name, value in decode_tensors(first, where="there").items():
        assert np.abs(value - ours[name]).max() <= ROUNDED * np.abs(ours[name]).max(), name


def test_an_order_is_carried_out_as_here(
    device: EmulatedDevice, session_library: Path, job: Job, tmp_path: Path
) -> None:
    program = starter(device, trainer_of(session_library), tmp_path)
    first, second = job.request("here", last_batch="keep"), job.request("there", last_batch="keep")
    here = by_native(native_trainer(), flat_order(first, job.manifest))
    there = by_native(program, flat_order(second, job.manifest))
    expected, found = here[-1], there[-1]
    assert isinstance(expected, Trained), expected
    assert isinstance(found, Trained), found
    losses = [[reply.loss for reply in replies if isinstance(reply, Progress)] for replies in (here, there)]
    assert len(losses[0]) == found.steps == 8  # two epochs of 20 examples, 6 at a time
    assert len(set(losses[0])) == len(losses[0])
    assert losses[1] == pytest.approx(losses[0], rel=EQUAL)
    assert (found.num_examples, found.labels) == (expected.num_examples, expected.labels)
    ours, theirs = (read_tensor_file(Path(r.update), where="update") for r in (first, second))
    assert list(theirs) == list(ours)
    for name, value in ours.items():
        np.testing.assert_allclose(theirs[name], value, rtol=EQUAL, atol=EQUAL, err_msg=name)
    same = "the same bits" if found.digest == expected.digest else "other bits"
    print(f"{device.board.processor}: losses {losses[1]}, {same} as here")


def test_it_says_hello_to_a_supervisor_without_a_python_trainer(
    device: EmulatedDevice, session_library: Path, tmp_path: Path
) -> None:
    program = starter(device, trainer_of(session_library), tmp_path)
    done = subprocess.run([program, "hello"], capture_output=True, check=True)
    ready = read_reply(io.BytesIO(done.stdout))
    assert isinstance(ready, Ready), ready
    assert ready.runtime == "executorch"
    assert ready.rss_bytes > 1 << 20
    assert ready.sparse_below.keys() == {"linear", "convolution"}
    assert all(0 < density <= 1 for density in ready.sparse_below.values())


def test_the_wheel_of_a_board_has_it_as_a_program(session_library: Path, tmp_path: Path) -> None:
    program = trainer_of(session_library)
    wheel = write_device_wheel(tmp_path, {f"lib/apportion/{program.name}": program.read_bytes()})
    with zipfile.ZipFile(wheel) as archive:
        (entry,) = (e for e in archive.infolist() if e.filename.endswith(PROGRAM))
        data = archive.read(entry)
    assert (data[:4], int.from_bytes(data[18:20], "little")) == (b"\x7fELF", AARCH64)
    assert entry.external_attr >> 16 & 0o111
