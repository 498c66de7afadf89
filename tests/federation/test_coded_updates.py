"""Updates in fewer bits through a whole federation: real agents, real trainers, one broker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge.contracts.tensor_file import read_tensor_file
from tests.federation.in_process import InProcessFederation
from tests.federation.small_run import config_text

pytestmark = pytest.mark.slow

DEVICES = 3


def text(precision: str, encoding: str = "raw", method: str = 'name = "fedavg"') -> str:
    base = config_text(local=0, size=DEVICES, rounds=3).replace('name = "fedhm"\nlevels = [4]', method)
    base = base.replace("frobenius-lambda = 0.0001\n", "")
    return f'{base}\n[updates]\nprecision = "{precision}"\nencoding = "{encoding}"\n'


def run(folder: Path, exports: Path, config: str) -> tuple[dict[str, np.ndarray], list[Any], Path]:
    folder.mkdir()
    with InProcessFederation(folder, exports, config) as federation:
        for share in range(DEVICES):
            federation.write_data(f"d{share}", share)
            federation.agent(f"d{share}")
        state = federation.run()
        last = federation.ledger.rounds.last_committed()
        assert last is not None
        updates = list(federation.ledger.updates.of_attempt(last.round, last.attempt))
        dtypes = {
            str(value.dtype)
            for value in read_tensor_file(
                federation.federation.blobs.path(updates[0].update_digest), where="test"
            ).values()
        }
        assert [len(devices) for _, _, devices in federation.committed()] == [DEVICES] * 3
        return {name: np.array(value) for name, value in state.tensors.items()}, updates, sorted(dtypes)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory, exports: Path):  # type: ignore[no-untyped-def]
    return run(tmp_path_factory.mktemp("plain") / "run", exports, text("fp32"))


@pytest.mark.parametrize(
    ("precision", "encoding", "share", "bound", "dtypes"),
    [
        ("fp16", "raw", 0.51, 1e-2, ["float16"]),
        ("int8", "raw", 0.28, 3e-2, ["float32", "int8"]),
        ("int8", "zstd", 0.28, 3e-2, ["float32", "int8"]),
    ],
)
def test_model_is_nearly_that_of_whole_updates_in_a_fraction_of_the_bytes(
    plain, precision: str, encoding: str, share: float, bound: float, dtypes: list[str], tmp_path: Path, exports: Path
) -> None:  # type: ignore[no-untyped-def]
    model, updates, found = run(tmp_path / "run", exports, text(precision, encoding))
    assert found == dtypes
    moved = total = 0.0
    for name, value in plain[0].items():
        total += float(np.square(value).sum())
        moved += float(np.square(value - model[name]).sum())
    assert 0 < (moved / total) ** 0.5 < bound
    sizes = [[u.report.update.encoded_size for u in side] for side in (updates, plain[1])]
    assert max(sizes[0]) < share * min(sizes[1])


def test_a_method_whose_factors_change_sends_differences_and_keeps_nothing_over(tmp_path: Path, exports: Path) -> None:
    run(tmp_path / "run", exports, text("int8", method='name = "fedhm"\nlevels = [4]'))
    assert list((tmp_path / "run" / "devices").rglob("left-over/*")) == []


def test_what_rounding_took_waits_on_the_device(tmp_path: Path, exports: Path) -> None:
    run(tmp_path / "run", exports, text("int8"))
    assert len(list((tmp_path / "run" / "devices").rglob("left-over/*"))) == DEVICES
