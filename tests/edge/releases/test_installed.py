"""Models sent to a device: whole or not at all, the one before kept and gone back to, with layers of one's own."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import msgspec
import numpy as np
import pytest

from edge.__main__ import main
from edge.contracts.errors import ArtifactCorrupt, ConfigError, MessageRejected, StoreFull
from edge.contracts.inference import MANIFEST_NAME, InferenceManifest
from edge.contracts.installation import Installation
from edge.contracts.manifest import ArtifactFile, ArtifactManifest
from edge.contracts.plan import BlobRef, Schedule, WorkOrder
from edge.contracts.tensor_file import encode_tensors, read_tensor_file
from edge.inference.release import predictor_of
from edge.releases import installed
from edge.releases.installed import EMPTY_DIGEST, EMPTY_UPDATE, Releases
from edge.releases.own_tensors import kept_at, tuned_at
from edge.training.update_file import write_update
from tests.contracts.samples import MANIFEST, ORDER
from tests.edge.inference.test_predict import model as model

__all__ = ["model"]


def sent(store: Path, folder: Path, name: str, *, uses_own: bool = False) -> WorkOrder:
    """An order of the model in ``folder`` as it arrives: its blobs are in the store."""
    blobs = store / "blobs"
    blobs.mkdir(parents=True, exist_ok=True)

    def blob(data: bytes) -> BlobRef:
        digest = hashlib.sha256(data).hexdigest()
        (blobs / digest).write_bytes(data)
        return BlobRef(digest, len(data), "raw", len(data))

    described = blob((folder / MANIFEST_NAME).read_bytes())
    files = (ArtifactFile(MANIFEST_NAME, described.digest, described.size),)
    artifact = msgspec.structs.replace(MANIFEST, format="inference", programs=(), tensors=(), files=files)
    return msgspec.structs.replace(
        ORDER,
        artifact=blob(artifact.to_bytes()),
        weights=blob(next(folder.glob("model.*")).read_bytes()),
        schedule=Schedule(turns=()),
        upload=(),
        installs=Installation(name=name, uses_own=uses_own),
    )


def install(store: Path, order: WorkOrder) -> None:
    manifest = ArtifactManifest.from_bytes((store / "blobs" / order.artifact.digest).read_bytes())
    Releases(store).install(order, manifest, lambda digest: store / "blobs" / digest)


def variant(folder: Path, rounds: int) -> Path:
    """Another release: the same model after more rounds."""
    path = folder / MANIFEST_NAME
    manifest = InferenceManifest.from_bytes(path.read_bytes())
    path.write_bytes(msgspec.structs.replace(manifest, rounds=rounds).to_bytes())
    return folder


def test_newest_is_in_use_and_the_one_before_is_kept(tmp_path: Path, model: Path) -> None:
    store, orders = tmp_path / "store", []
    for rounds in (1, 2, 3):
        orders.append(sent(store, variant(model, rounds), f"after {rounds}"))
        install(store, orders[-1])
    found = Releases(store).read()
    assert found.previous is not None
    assert (found.current.name, found.previous.name) == ("after 3", "after 2")
    folders = sorted(path.name for path in (store / "releases").iterdir() if path.is_dir())
    assert folders == sorted(order.artifact.digest for order in orders[1:])
    install(store, orders[2])
    assert Releases(store).read() == found
    for blob in (store / "blobs").iterdir():  # the store may let its own names go
        blob.unlink()
    assert predictor_of(store).manifest.rounds == 3
    assert Releases(store).roll_back().name == "after 2"
    assert predictor_of(store).manifest.rounds == 2
    assert Releases(store).roll_back().name == "after 3"


def test_commands_tell_and_roll_back(tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = tmp_path / "store"
    assert main(["release", "--store", str(store)]) == 2
    assert "no model was sent to" in capsys.readouterr().err
    install(store, sent(store, model, "first"))
    assert main(["release", "--store", str(store), "--rollback"]) == 2
    assert "'first' is the only model that was sent to this device" in capsys.readouterr().err
    install(store, sent(store, variant(model, 9), "second"))
    assert main(["release", "--store", str(store)]) == 0
    assert [line.split()[:3] for line in capsys.readouterr().out.splitlines()] == [
        ["in", "use", "second"],
        ["before", "first", Releases(store).read().previous.digest[:12]],  # type: ignore[union-attr]
    ]
    assert main(["release", "--store", str(store), "--rollback", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["current"]["name"], said["previous"]["name"]) == ("first", "second")
    np.savez(tmp_path / "x.npz", x=np.array([[4.0, 0.0], [0.0, 4.0]], np.float32))
    assert main(["predict", "--store", str(store), "--data", str(tmp_path / "x.npz"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["predictions"] == ["left", "right"]
    for wrong in ([str(model), "--store", str(store)], []):
        assert main(["predict", *wrong, "--data", str(tmp_path / "x.npz")]) == 2
        assert "one of both" in capsys.readouterr().err


def test_own_tensors_take_the_models_places_where_they_fit(tmp_path: Path, model: Path) -> None:
    store = tmp_path / "store"
    swapped = np.array([[0.0, 1.0], [1.0, 0.0]], np.float32)
    x = np.array([[4.0, 0.0]], np.float32)
    install(store, sent(store, model, "plain"))
    plain = Releases(store).read().current
    kept_at(store, plain).parent.mkdir()
    kept_at(store, plain).write_bytes(encode_tensors({"w": swapped}))
    assert predictor_of(store).predict(x).tolist() == ["left"]
    install(store, sent(store, variant(model, 2), "with one's own", uses_own=True))
    assert predictor_of(store).predict(x).tolist() == ["right"]
    assert np.allclose(predictor_of(store).logits(x), [[-1.0, 1.0]])  # (4 / 2 - 1, 0 / 2 - 1), swapped
    tuned_at(store, plain).write_bytes(encode_tensors({"w": 3 * np.eye(2, dtype=np.float32)}))
    assert np.allclose(predictor_of(store).logits(x), [[3.0, -3.0]])


def test_what_does_not_belong_together_changes_nothing(tmp_path: Path, model: Path) -> None:
    store = tmp_path / "store"
    install(store, sent(store, model, "first"))
    before = Releases(store).read()
    order = sent(store, variant(model, 2), "second")
    other = msgspec.structs.replace(order.weights, digest="0" * 64)
    with pytest.raises(MessageRejected, match=r"'second' brings model 000000000000, its inference\.json says"):
        install(store, msgspec.structs.replace(order, weights=other))
    manifest = msgspec.structs.replace(MANIFEST, format="inference", files=())
    with pytest.raises(MessageRejected, match=r"'second' has no inference\.json"):
        Releases(store).install(order, manifest, lambda digest: store / "blobs" / digest)
    assert Releases(store).read() == before
    (store / "releases" / "releases.json").write_bytes(b"{")
    with pytest.raises(ArtifactCorrupt, match="have the model sent again"):
        predictor_of(store)
    install(store, order)
    assert Releases(store).read().current.name == "second"


def test_full_disk_is_told_and_leaves_what_was_there(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "store"
    install(store, sent(store, model, "first"))
    order = sent(store, variant(model, 2), "second")

    def full(source: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(installed, "_place", full)
    with pytest.raises(StoreFull, match="No space left on device"):
        install(store, order)
    assert predictor_of(store).manifest.rounds == 1
    monkeypatch.undo()
    install(store, order)
    assert predictor_of(store).manifest.rounds == 2


def test_empty_update_is_what_a_trainer_would_write(tmp_path: Path) -> None:
    digest, size, _ = write_update(tmp_path / "update", {}, "raw")
    assert ((tmp_path / "update").read_bytes(), digest, size) == (EMPTY_UPDATE, EMPTY_DIGEST, len(EMPTY_UPDATE))
    assert dict(read_tensor_file(tmp_path / "update", where="update")) == {}


def test_nothing_is_predicted_before_a_model_came(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no model was sent to"):
        predictor_of(tmp_path)
