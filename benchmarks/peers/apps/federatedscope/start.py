"""The model and the data by name, then the peer's own entry point."""

import runpy

import numpy as np
import torch
from federatedscope.core.data import ClientData
from federatedscope.register import register_data, register_model
from torch import nn
from torch.utils.data import TensorDataset


def digits(config, client_configs):
    """The device's own examples; the server's is the held-out file."""
    if config.data.type != "digits":
        return None
    torch.set_num_threads(1)
    with np.load(config.data.file_path) as arrays:
        data = TensorDataset(torch.from_numpy(arrays["x"]), torch.from_numpy(arrays["y"]))
    is_server = config.distribute.role == "server"
    return ClientData(config, **{"test" if is_server else "train": data}), config


def network(model_config, input_shape):
    """About a million parameters."""
    if model_config.type != "digits":
        return None
    return nn.Sequential(nn.Linear(64, 960), nn.ReLU(), nn.Linear(960, 960), nn.ReLU(), nn.Linear(960, 10))


register_data("digits", digits)
register_model("digits", network)
runpy.run_module("federatedscope.main", run_name="__main__")
