"""What a device does with a message."""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from digits.task import Net, load, train

app = ClientApp()


@app.train()
def train_here(message: Message, context: Context) -> Message:
    """Train the received model on the device's own examples."""
    torch.set_num_threads(1)
    net, config = Net(), context.run_config
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    x, y = load(str(context.node_config["data"]))
    loss = train(
        net, x, y, epochs=config["epochs"], batch=config["batch"], lr=config["lr"], momentum=config["momentum"]
    )
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(x)})
    return Message(content=RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics}), reply_to=message)
