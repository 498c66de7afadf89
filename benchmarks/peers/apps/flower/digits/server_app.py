"""The rounds."""

import torch
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from digits.task import Net

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """FedAvg over all devices; the model is saved at the end."""
    config = context.run_config
    devices = config["devices"]
    strategy = FedAvg(fraction_train=1.0, fraction_evaluate=0.0, min_train_nodes=devices, min_available_nodes=devices)
    result = strategy.start(grid=grid, initial_arrays=ArrayRecord(Net().state_dict()), num_rounds=config["rounds"])
    torch.save(result.arrays.to_torch_state_dict(), config["final"])
