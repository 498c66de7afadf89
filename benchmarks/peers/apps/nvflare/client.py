"""What a site runs: receive, train, send."""

import argparse

import numpy as np
import nvflare.client as flare
import torch
from model import Net
from torch import nn


def main() -> None:
    """Rounds until the server ends them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--momentum", type=float, default=0.9)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    net, loss_of = Net(), nn.CrossEntropyLoss()
    flare.init()
    with np.load(f"{arguments.data}/{flare.get_site_name()}.npz") as data:
        x, y = torch.from_numpy(data["x"]), torch.from_numpy(data["y"])
    while flare.is_running():
        received = flare.receive()
        net.load_state_dict(received.params)
        optimizer = torch.optim.SGD(net.parameters(), lr=arguments.lr, momentum=arguments.momentum)
        losses = []
        net.train()
        for _ in range(arguments.epochs):
            for rows in torch.randperm(len(x)).split(arguments.batch):
                if len(rows) < arguments.batch:
                    continue
                optimizer.zero_grad()
                loss = loss_of(net(x[rows]), y[rows])
                loss.backward()
                optimizer.step()
                losses.append(float(loss.detach()))
        flare.send(
            flare.FLModel(
                params=net.state_dict(),
                metrics={"train_loss": sum(losses) / len(losses)},
                meta={"NUM_STEPS_CURRENT_ROUND": len(losses)},
            )
        )


if __name__ == "__main__":
    main()
