"""The same examples for all sides: shares as the run's own partition deals them, and the score of a final model."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmarks.peers.sides import APPS, DEVICES


def write_shares(folder: Path) -> None:
    """``shares/site-1.npz`` and so on, and ``shares/test.npz``: examples as the model takes them."""
    from coordinator.exporting.cut_exporter import run_input_spec
    from coordinator.exporting.run_data import load_run_data
    from coordinator.local_devices.data_folders import device_shares
    from coordinator.run_file.loading import load_config
    from edge.training.normalisation import normalised

    config = load_config(APPS / "apportion" / "run.toml")
    data, spec = load_run_data(config), run_input_spec(config)
    (folder / "shares").mkdir()
    x, y = normalised(data.x_train.astype(np.float32), spec), data.y_train.astype(np.int64)
    for number, rows in enumerate(device_shares(config, data, DEVICES)):
        np.savez(folder / "shares" / f"site-{number + 1}.npz", x=x[rows], y=y[rows])
    test = normalised(data.x_test.astype(np.float32), spec)
    np.savez(folder / "shares" / "test.npz", x=test, y=data.y_test.astype(np.int64))


def tensors(file: Path) -> list[np.ndarray]:
    """Weight, bias, weight, bias ... of a final model; nothing in the file is executed."""
    if file.suffix == ".safetensors":
        from safetensors.numpy import load_file

        state = load_file(file)
    else:
        import torch

        loaded = torch.load(file, map_location="cpu", weights_only=True)
        found = loaded.get("model", loaded)
        state = {name: np.asarray(value) for name, value in found.items()}
    order = sorted(state, key=lambda name: (int(name.split(".")[0]), name.split(".")[1] == "bias"))
    return [state[name] for name in order]


def accuracy(file: Path, folder: Path) -> float:
    """Of a final model on the held-out examples."""
    with np.load(folder / "shares" / "test.npz") as data:
        x, y = data["x"], data["y"]
    layers = tensors(file)
    for index in range(0, len(layers), 2):
        x = x @ layers[index].T + layers[index + 1]
        if index + 2 < len(layers):
            x = np.maximum(x, 0.0)
    return float((x.argmax(1) == y).mean())
