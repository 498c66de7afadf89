"""The same federation as a Flower app: run by :mod:`benchmarks.simulation_rounds` in an environment that has Flower.

``PEER_FOLDER=FOLDER python -m benchmarks.flower_peer`` reads what the benchmark wrote there and prints a line of JSON
per round. The app is a quickstart's, with each process's examples read once: the model is built for a message, torch's
own optimizer steps, the server scores every round.
"""

from __future__ import annotations

import functools
import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch import nn

from coordinator.models.catalog import build_model

FOLDER = Path(os.environ["PEER_FOLDER"])
SETTINGS: dict[str, Any] = json.loads((FOLDER / "settings.json").read_text())


@functools.cache
def array(name: str) -> torch.Tensor:
    """One of the arrays that the benchmark wrote."""
    return torch.from_numpy(np.load(FOLDER / f"{name}.npy"))


def precision() -> torch.autocast:
    """In which torch multiplies in the precision that was asked for."""
    return torch.autocast("cpu", torch.bfloat16, enabled=SETTINGS["precision"] == "bfloat16")


def model() -> nn.Module:
    """A fresh model."""
    return build_model(SETTINGS["model"], seed=SETTINGS["seed"], **SETTINGS["model_options"])


def train(message: Message, context: Context) -> Message:
    """Local epochs on the device's share."""
    torch.set_num_threads(1)
    module, number = model(), int(context.node_config["partition-id"])
    module.load_state_dict(message.content["arrays"].to_torch_state_dict())
    module.train()
    mine = torch.from_numpy(np.load(FOLDER / "shares" / f"{number}.npy"))
    batch, is_whole = SETTINGS["batch"], SETTINGS["last_batch"] == "drop"
    optimizer = torch.optim.SGD(
        module.parameters(), lr=SETTINGS["lr"], momentum=SETTINGS["momentum"], weight_decay=SETTINGS["weight_decay"]
    )
    loss_of = nn.CrossEntropyLoss()
    losses = []
    for _ in range(SETTINGS["epochs"]):
        order = mine[torch.randperm(len(mine))]
        for rows in order.split(batch):
            if is_whole and len(rows) < batch:
                continue
            optimizer.zero_grad()
            with precision():
                loss = loss_of(module(array("x_train")[rows]), array("y_train")[rows])
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
    metrics = MetricRecord({"train_loss": sum(losses) / len(losses), "num-examples": len(mine)})
    return Message(
        content=RecordDict({"arrays": ArrayRecord(module.state_dict()), "metrics": metrics}), reply_to=message
    )


def server(grid: Grid, context: Context) -> None:
    """All rounds of FedAvg."""
    torch.set_num_threads(SETTINGS["processes"])
    scored = model().eval()
    started = time.perf_counter()

    def evaluate(number: int, arrays: ArrayRecord) -> MetricRecord:
        scored.load_state_dict(arrays.to_torch_state_dict())
        size = SETTINGS["eval_batch"]
        with torch.no_grad(), precision():
            right = sum(
                int((scored(x).argmax(1) == y).sum())
                for x, y in zip(array("x_test").split(size), array("y_test").split(size), strict=True)
            )
        accuracy = right / len(array("y_test"))
        line = {"round": number, "at_s": time.perf_counter() - started, "accuracy": accuracy}
        print("ROUND " + json.dumps(line), flush=True)
        return MetricRecord({"accuracy": accuracy})

    strategy = FedAvg(
        fraction_train=SETTINGS["size"] / SETTINGS["devices"],
        min_train_nodes=SETTINGS["size"],
        min_available_nodes=SETTINGS["devices"],
        fraction_evaluate=0.0,
    )
    strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(model().state_dict()),
        num_rounds=SETTINGS["rounds"],
        train_config=ConfigRecord({"lr": SETTINGS["lr"]}),
        evaluate_fn=evaluate,
    )


def main() -> None:
    """Run the app."""
    client_app, server_app = ClientApp(), ServerApp()
    client_app.train()(train)
    server_app.main()(server)
    run_simulation(
        server_app,
        client_app,
        num_supernodes=SETTINGS["devices"],
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            "init_args": {"num_cpus": SETTINGS["processes"]},
        },
    )


if __name__ == "__main__":
    # The app's functions are found by this name in Ray's processes.
    from benchmarks.flower_peer import main as run

    run()
