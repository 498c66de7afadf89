"""The job: simulated, or with ``--export --export-dir JOB`` written to a folder."""

import argparse

from model import Net
from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe
from nvflare.recipe import SimEnv

parser = argparse.ArgumentParser()
parser.add_argument("--data")
parser.add_argument("--rounds", type=int, default=10)
parser.add_argument("--threads", type=int, default=2)
arguments = parser.parse_args()
recipe = FedAvgRecipe(
    name="digits",
    model=Net(),
    min_clients=8,
    num_rounds=arguments.rounds,
    train_script="client.py",
    train_args=f"--data {arguments.data}",
)
recipe.execute(SimEnv(num_clients=8, num_threads=arguments.threads))
