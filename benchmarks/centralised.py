"""Centralised SGD on the union of a run's device data, the yardstick for its federated accuracy.

    python -m benchmarks.centralised examples/mnist_writers.toml --epochs 12 --lr 0.02 --batch 32

The same model, initial weights, examples, normalisation and held-out data as the run; plain torch, one thread.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from msgspec.structs import replace

from coordinator.data.datasets import load_dataset
from coordinator.data.inputs import prepare_inputs
from coordinator.exporting.cut_exporter import dense_module, run_input_spec
from coordinator.local_devices.data_folders import device_shares
from coordinator.run_file.loading import load_config
from edge.contracts.streams import permutation, stream_seed
from export.forms.kept_activations import keeping_activations
from export.training_step import StepSpec


def main() -> None:
    """Print the held-out accuracy after every epoch."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--keep", choices=["", "float16"], default="", help="type activations wait for the backward in")
    parser.add_argument("--seed", type=int, help="in place of the run's")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    config = load_config(chosen.config)
    if chosen.seed is not None:
        config = replace(config, federation=replace(config.federation, seed=chosen.seed))
    path = Path(config.data.path) if config.data.path else None
    data = load_dataset(config.data.source, path, config.federation.seed, config.evaluation.holdout)
    union = np.concatenate(device_shares(config, data, config.cohort.local_devices))
    spec = run_input_spec(config)
    x, y = torch.from_numpy(prepare_inputs(data.x_train[union], spec)), torch.from_numpy(data.y_train[union])
    x_test, y_test = torch.from_numpy(prepare_inputs(data.x_test, spec)), torch.from_numpy(data.y_test)
    module = dense_module(config).train()
    step = StepSpec(input=spec, classes=len(data.classes), kept_activations=chosen.keep)
    optimizer = torch.optim.SGD(module.parameters(), lr=chosen.lr, momentum=chosen.momentum)
    print(f"{len(y)} examples of {config.cohort.local_devices} devices, {len(y_test)} held out")
    for epoch in range(chosen.epochs):
        order = torch.from_numpy(permutation(stream_seed(config.federation.seed, "centralised", epoch), len(y)))
        for begin in range(0, len(y), chosen.batch):
            chunk = order[begin : begin + chosen.batch]
            optimizer.zero_grad()
            with keeping_activations(step, [x[chunk], *module.parameters()]):
                loss = torch.nn.functional.cross_entropy(module(x[chunk]), y[chunk])
            loss.backward()
            optimizer.step()
        module.eval()
        with torch.no_grad():
            correct = sum(
                int((module(x_test[i : i + 500]).argmax(1) == y_test[i : i + 500]).sum())
                for i in range(0, len(y_test), 500)
            )
        module.train()
        print(f"epoch {epoch + 1}: accuracy {correct / len(y_test):.4f}", flush=True)


if __name__ == "__main__":
    main()
