"""The rounds of a run as a picture."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from edge.contracts.errors import ConfigError

if TYPE_CHECKING:
    from apportion.rows import Rows


def plot_rounds(rounds: Rows, title: str) -> Any:
    """A figure of two panels: accuracy of each evaluated model on held-out examples, and the devices' training loss.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    try:
        from matplotlib import pyplot
        from matplotlib.ticker import MaxNLocator
    except ImportError as error:
        raise ConfigError(["plot: matplotlib is not installed"], hint="pip install matplotlib") from error
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    trained = [row for row in rounds if row["program"] == "train"]
    metric = "accuracy"
    labels = dict.fromkeys(label for row in trained for label in row.get("evaluation", {}))
    for label in labels:
        scored = [row for row in trained if label in row.get("evaluation", {})]
        metric = next(iter(scored[0]["evaluation"][label]))
        accuracies = [row["evaluation"][label][metric] for row in scored]
        name = "global model" if label == "server" else label
        left.plot([row["round"] for row in scored], accuracies, marker=".", label=name)
    left.set(title=f"{metric.capitalize()} on held-out examples", xlabel="round")
    if metric == "accuracy":
        left.set_ylim(0, 1)
    if len(labels) > 1:
        left.legend(frameon=False)
    right.plot([row["round"] for row in trained], [row["train_loss"] for row in trained], marker=".", color="tab:red")
    right.set(title="Training loss on the devices", xlabel="round")
    right.set_ylim(bottom=0)
    for axes in (left, right):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(title)
    return figure
