"""The tokenizer of a run: found, stored once, and refused where it is another or another model's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.blobs.blob_store import BlobStore
from coordinator.blobs.garbage import find_garbage
from coordinator.config.run_config import RunConfig
from coordinator.exporting.run_tokenizer import stored_tokenizer
from coordinator.ledger.ledger import Ledger
from coordinator.run_file.loading import load_config_text
from edge.contracts.errors import ConfigError, DataError
from tests.edge.language.tiny_tokenizer import write_tokenizer
from tests.language_models import run_text


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger.create(tmp_path / "ledger.sqlite", federation="words", config="", seed=5) as made:
        yield made


@pytest.fixture
def held_out(tmp_path: Path) -> Path:
    folder = tmp_path / "held-out"
    folder.mkdir()
    (folder / "data.toml").write_text('tokenizer = "tokenizer.json"\n')
    return folder


def run(held_out: Path | None, *, vocabulary: int = 300) -> RunConfig:
    text = run_text().replace("vocabulary = 30", f"vocabulary = {vocabulary}")
    return load_config_text(text.replace("[evaluation]", f'[evaluation]\ndata = "{held_out}"') if held_out else text)


def test_it_is_stored_once_and_is_no_garbage(tmp_path: Path, ledger: Ledger, held_out: Path) -> None:
    blobs = BlobStore(tmp_path / "blobs")
    path = write_tokenizer(held_out / "tokenizer.json")
    first = stored_tokenizer(run(held_out), ledger, blobs)
    assert first is not None
    assert blobs.read(first.digest) == path.read_bytes()
    path.unlink()
    assert stored_tokenizer(run(held_out), ledger, blobs) == first
    assert find_garbage(ledger, blobs).count == 0


def test_a_run_without_one_sends_none(tmp_path: Path, ledger: Ledger) -> None:
    assert stored_tokenizer(run(None), ledger, BlobStore(tmp_path / "blobs")) is None


def test_another_one_than_devices_have_is_refused_with_both_digests(
    tmp_path: Path, ledger: Ledger, held_out: Path
) -> None:
    blobs = BlobStore(tmp_path / "blobs")
    write_tokenizer(held_out / "tokenizer.json")
    first = stored_tokenizer(run(held_out), ledger, blobs)
    assert first is not None
    blobs.path(first.digest).unlink()
    write_tokenizer(held_out / "tokenizer.json", text="zyx wvu zyx wvu\n")
    with pytest.raises(ConfigError, match=rf"tokenizer [0-9a-f]{{12}} is there, .* have {first.digest[:12]}; put"):
        stored_tokenizer(run(held_out), ledger, blobs)


def test_that_of_another_model_is_refused(tmp_path: Path, ledger: Ledger, held_out: Path) -> None:
    write_tokenizer(held_out / "tokenizer.json")
    with pytest.raises(DataError, match="symbols are more than the model's 30; give the model's own"):
        stored_tokenizer(run(held_out, vocabulary=30), ledger, BlobStore(tmp_path / "blobs"))


def test_one_that_is_not_there_is_named(tmp_path: Path, ledger: Ledger, held_out: Path) -> None:
    with pytest.raises(ConfigError, match=r"held-out/tokenizer\.json: the run's tokenizer cannot be read \(No such"):
        stored_tokenizer(run(held_out), ledger, BlobStore(tmp_path / "blobs"))


def test_held_out_text_is_read_with_the_models_own(tmp_path: Path, ledger: Ledger, held_out: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    sizes = {"vocab_size": 300, "n_positions": 24, "n_embd": 16, "n_layer": 2, "n_head": 2}
    (model / "config.json").write_text(json.dumps({"model_type": "gpt2", **sizes}))
    write_tokenizer(model / "tokenizer.json")
    write_tokenizer(held_out / "tokenizer.json", text="zyx wvu zyx wvu\n")
    parts = run_text().partition("[model.options]")
    whole = parts[0].replace("language:custom", f"language:{model}") + parts[2].partition("[task]")[1]
    whole += parts[2].partition("[task]")[2].replace("[evaluation]", f'[evaluation]\ndata = "{held_out}"')
    config = load_config_text(whole)
    with pytest.raises(ConfigError, match=r"\$\.evaluation\.data: read with .*held-out/tokenizer\.json"):
        stored_tokenizer(config, ledger, BlobStore(tmp_path / "blobs"))
    (held_out / "tokenizer.json").write_bytes((model / "tokenizer.json").read_bytes())
    assert stored_tokenizer(config, ledger, BlobStore(tmp_path / "blobs")) is not None
