"""The base file of a run: made once, made again where it is lost, and never of other bytes than devices have."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.blobs.audit import blob_faults, repair
from coordinator.blobs.blob_store import BlobStore
from coordinator.blobs.garbage import find_garbage
from coordinator.exporting.base_file import base_key, computing_module, stored_base
from coordinator.ledger.ledger import Ledger
from coordinator.run_file.loading import load_config_text
from edge.contracts.errors import ConfigError, StoreFull
from edge.contracts.tensor_file import read_tensor_file
from export.language.base_weights import dequantised
from export.language.causal_model import CausalModel
from tests.language_models import run_text

CONFIG = load_config_text(run_text())


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger.create(tmp_path / "ledger.sqlite", federation="words", config="", seed=5) as made:
        yield made


def test_it_is_made_once_and_is_no_garbage(tmp_path: Path, ledger: Ledger) -> None:
    blobs = BlobStore(tmp_path / "blobs")
    first = stored_base(CONFIG, ledger, blobs)
    written_at = blobs.path(first.digest).stat().st_mtime_ns
    assert stored_base(CONFIG, ledger, blobs) == first
    assert blobs.path(first.digest).stat().st_mtime_ns == written_at
    assert ledger.blobs.sizes() == {first.digest: first.size}
    assert not ledger.blobs.release(9)
    assert find_garbage(ledger, blobs).count == 0
    base = read_tensor_file(blobs.path(first.digest), where="base")
    module = computing_module(CONFIG)
    assert isinstance(module, CausalModel)
    assert (module.embedding.weight.numpy() == dequantised("embedding.weight", base)).all()
    assert computing_module(load_config_text(run_text())) is module


@pytest.mark.parametrize("size", [0, 100])
def test_a_lost_or_shortened_one_is_made_again_with_its_digest(tmp_path: Path, ledger: Ledger, size: int) -> None:
    blobs = BlobStore(tmp_path / "blobs")
    first = stored_base(CONFIG, ledger, blobs)
    path = blobs.path(first.digest)
    path.unlink() if size == 0 else path.write_bytes(path.read_bytes()[:size])
    (fault,) = blob_faults(ledger, blobs, deep=False)
    assert fault.subject == first.digest
    assert stored_base(CONFIG, ledger, blobs) == first
    assert not blob_faults(ledger, blobs, deep=True)


def test_after_a_repair_it_is_made_again(tmp_path: Path, ledger: Ledger) -> None:
    blobs = BlobStore(tmp_path / "blobs")
    first = stored_base(CONFIG, ledger, blobs)
    path = blobs.path(first.digest)
    path.write_bytes(b"\0" * path.stat().st_size)
    repair(ledger, blobs, blob_faults(ledger, blobs, deep=True))
    assert first.digest not in blobs
    assert stored_base(CONFIG, ledger, blobs) == first


def test_a_base_of_other_bytes_is_refused_with_both_digests(tmp_path: Path, ledger: Ledger) -> None:
    blobs = BlobStore(tmp_path / "blobs")
    other = "f" * 64
    ledger.blobs.add(other, 1)
    ledger.artifacts.add(base_key(CONFIG), other)
    with pytest.raises(ConfigError, match=r"now gives the base [0-9a-f]{12}, devices of this run have f{12}"):
        stored_base(CONFIG, ledger, blobs)


def test_a_store_without_room_says_how_much_is_needed(tmp_path: Path, ledger: Ledger) -> None:
    blobs = BlobStore(tmp_path / "blobs", quota_bytes=1000)
    with pytest.raises(StoreFull, match=r"base of language:custom needs [0-9]+ bytes, 1000 can be put there"):
        stored_base(CONFIG, ledger, blobs)
    assert ledger.artifacts.find(base_key(CONFIG)) is None


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('name = "next-token"', 'name = "regression"', r"\$\.task\.name: 'regression' given"),
        ("[evaluation]", '[aggregation]\nrule = "median"\n[evaluation]', r"\$\.aggregation\.rule: 'median' compares"),
        ("lr = 0.02", "lr = 0.02\nproximal-mu = 0.1", r"\$\.training\.proximal-mu: a language model's step"),
        ("[evaluation]", '[server-optimizer]\nname = "adam"\n[evaluation]', r"\$\.server-optimizer\.name: a step"),
    ],
)
def test_what_factors_do_not_go_with_is_refused(old: str, new: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config_text(run_text().replace(old, new))


def test_a_method_of_dense_weights_is_refused_for_a_language_model() -> None:
    from coordinator.exporting.cut_exporter import dense_module
    from coordinator.run_file.checks import method_of_run

    config = load_config_text(run_text(method="heterofl", options="levels = [1, 0.5]"))
    with pytest.raises(
        ConfigError,
        match=r"heterofl trains or decomposes weights .*: adapter, fedlora, ffa_lora, flora, prefix, prompt",
    ):
        method_of_run(config, dense_module(config))
