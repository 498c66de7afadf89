"""Draws what a ladder measured: memory and time of a step against model size, and what was fitted to them.

matplotlib (extra ``fleet``) is imported only here and only to draw. Colours are Okabe and Ito's, which people with any
colour vision tell apart; batches have shapes of their own besides, so that the figure can be printed in grey.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from edge.contracts.errors import ConfigError
from profiles.device import MemoryLine, StepLine

COLOURS = {"onnxruntime": "#0072B2", "executorch": "#D55E00", "onnxruntime_training": "#009E73"}
OTHER_COLOUR, FIT_COLOUR, LIMIT_COLOUR = "#CC79A7", "#000000", "#A00000"
MARKERS = ("o", "s", "^", "D", "v", "P")
SUFFIXES = (".png", ".svg", ".pdf")
MB = 2**20
FAR_ABOVE = 4.0
"""A ceiling so many times above every peak is told in words: drawn to scale, it would flatten everything below it."""

LABEL_GAP = 0.026
"""Least distance of two names above the left panel, as a share of its width."""

Row = Mapping[str, Any]


def check_plot_file(path: Path, *, is_climbing: bool) -> None:
    """Nothing when a figure can be drawn to ``path``; said before anything takes long.

    Raises:
        ConfigError: nothing is measured, a format that is none, no such folder, or matplotlib is not installed.
    """
    if not is_climbing:
        raise ConfigError(["--plot: draws what a ladder measured, and none is given"], hint="--ladder DIR --plot FILE")
    if path.suffix.lower() not in SUFFIXES:
        raise ConfigError([f"--plot: {path.name} is not one of {', '.join(SUFFIXES)}"], hint="--plot profile.png")
    if not path.parent.is_dir():
        raise ConfigError([f"--plot: there is no folder {path.parent}"], hint="make it, or name another")
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            [f"--plot: matplotlib is not installed ({error})"], hint="pip install 'apportion[fleet]'"
        ) from error


def draw_values(values: Mapping[str, Any], path: Path) -> Path:
    """``path``, now a figure of the ``ladder`` in a profile's values.

    Raises:
        ConfigError: nothing was measured; as :func:`check_plot_file`.
        OSError: the file cannot be written.
    """
    check_plot_file(path, is_climbing="ladder" in values)
    ladder = values["ladder"]
    rows: Sequence[Row] = ladder["rows"]
    if not any(row["outcome"] == "measured" for row in rows):
        raise ConfigError(["--plot: no rung was measured, there is nothing to draw"], hint="give a higher --ceiling-mb")
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11.0, 6.2), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    memory, latency = figure.subplots(1, 2)
    panels = _Panels(rows, ladder["memory"], ladder["step_times"])
    panels.memory(memory)
    panels.latency(latency)
    profile = values["profile"]
    what = profile.get("board") or profile.get("cpu_model") or profile.get("machine", "")
    figure.suptitle(f"{profile['device']}: {what}" if what else profile["device"], fontsize=12)
    handles, labels = latency.get_legend_handles_labels()
    more = [pair for pair in zip(*memory.get_legend_handles_labels(), strict=True) if pair[1] not in labels]
    figure.legend(
        [*handles, *(handle for handle, _ in more)],
        [*labels, *(label for _, label in more)],
        loc="outside lower center",
        ncols=4,
        fontsize=8,
        frameon=False,
    )
    with rc_context({"svg.fonttype": "none"}):  # text stays text: it can be searched, and the file is a third
        figure.savefig(path)
    return path


class _Panels:
    """The two panels of one ladder; axes are matplotlib's."""

    def __init__(self, rows: Sequence[Row], memory: Sequence[Row], step_times: Sequence[Row]) -> None:
        self._measured = [row for row in rows if row["outcome"] == "measured"]
        self._killed = [row for row in rows if row["outcome"] == "killed"]
        self._limit = max((row["limit_bytes"] for row in rows), default=0)
        self._memory = {line["runtime"]: msgspec.convert(line, MemoryLine) for line in memory}
        self._times = {(line["runtime"], line["threads"]): msgspec.convert(line, StepLine) for line in step_times}
        self._batches = sorted({row["batch"] for row in self._measured})
        self._least = min((row["threads"] for row in self._measured), default=1)

    def memory(self, axes: Any) -> None:
        """Peak of a trainer with the fewest threads, the fit, the ceiling, and what was killed."""
        rows = [row for row in self._measured if row["threads"] == self._least]
        self._points(axes, rows, lambda row: row["peak_bytes"] / MB)
        self._fitted(axes, rows, self._fitted_peak)
        idle = max((row["idle_bytes"] for row in rows), default=0) / MB
        axes.axhline(idle, color="#777777", linestyle=":", linewidth=1.0, label=f"idle trainer {idle:.0f} MB")
        for number, row in enumerate(self._killed):
            expected = max((other["idle_bytes"] for other in rows), default=0) + row["predicted_bytes"]
            axes.plot(
                row["parameters"],
                expected / MB,
                "x",
                color=LIMIT_COLOUR,
                markersize=8,
                markeredgewidth=2,
                label=None if number else "killed at its limit (drawn where predicted)",
            )
        self._ceiling(axes, max((row["peak_bytes"] for row in rows), default=0))
        axes.set_ylabel("peak memory of the trainer (MB, 2^20 bytes)")
        axes.set_ylim(bottom=0.0)
        _finish(axes, self._measured)

    def latency(self, axes: Any) -> None:
        """Median step, more threads hollow, and the fit of the fewest."""
        from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

        self._points(axes, self._measured, lambda row: row["alone_ms"])
        self._fitted(axes, [row for row in self._measured if row["threads"] == self._least], self._fitted_ms)
        busy = any(row["is_busy"] for row in self._measured)
        axes.set_ylabel(f"time of a training step, median (ms{', of its processor where busy' if busy else ''})")
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
        _finish(axes, self._measured)

    def _points(self, axes: Any, rows: Sequence[Row], value: Any) -> None:
        for runtime, threads, batch in sorted({(r["runtime"], r["threads"], r["batch"]) for r in rows}):
            own = [r for r in rows if (r["runtime"], r["threads"], r["batch"]) == (runtime, threads, batch)]
            colour = COLOURS.get(runtime, OTHER_COLOUR)
            axes.plot(
                [row["parameters"] for row in own],
                [value(row) for row in own],
                MARKERS[self._batches.index(batch) % len(MARKERS)],
                color=colour,
                markerfacecolor=colour if threads == self._least else "white",
                markersize=6,
                label=f"{runtime}, batch {batch}, {threads} thread{'s' if threads > 1 else ''}",
            )

    def _fitted(self, axes: Any, rows: Sequence[Row], value: Any) -> None:
        """A line through the fit's values for the widths of one model at one batch, dashes for every other setting."""
        label: str | None = "fitted (lines join the widths of one model)"
        families: dict[tuple[str, str, int], list[Row]] = {}
        for row in rows:
            if value(row) is not None:
                families.setdefault((row["runtime"], row["shape"].partition(":")[0], row["batch"]), []).append(row)
        for own in families.values():
            own.sort(key=lambda row: row["parameters"])
            axes.plot(
                [row["parameters"] for row in own],
                [value(row) for row in own],
                "_-",
                color=FIT_COLOUR,
                linewidth=0.9,
                markersize=9,
                alpha=0.75,
                label=label,
            )
            label = None

    def _fitted_peak(self, row: Row) -> float | None:
        line = self._memory.get(row["runtime"])
        if line is None:
            return None
        grown = line.growth_bytes(row["predicted_bytes"], row["graph_bytes"])
        return float(row["idle_bytes"] + grown) / MB

    def _fitted_ms(self, row: Row) -> float | None:
        line = self._times.get((row["runtime"], row["threads"]))
        if line is None:
            return None
        asked = {name: row[name] for name in ("macs", "batch", "live_bytes", "parameters", "graph_bytes")}
        return line.step_ms(**asked)

    def _ceiling(self, axes: Any, highest: int) -> None:
        if not self._limit:
            return
        told = f"memory ceiling {self._limit / MB:,.0f} MB"
        if highest and self._limit > FAR_ABOVE * highest:
            axes.text(
                0.02, 0.97, f"{told}, far above", transform=axes.transAxes, va="top", fontsize=8, color=LIMIT_COLOUR
            )
            return
        axes.axhline(self._limit / MB, color=LIMIT_COLOUR, linestyle="--", linewidth=1.2, label=told)


def _finish(axes: Any, rows: Sequence[Row]) -> None:
    """The axis of model sizes, its names above it, and the grid."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes.set_xlabel("model size (parameters)")
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter(FuncFormatter(_count))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.grid(True, which="major", color="#DDDDDD", linewidth=0.6)
    _name_shapes(axes, rows)


def _count(value: float, position: object = None) -> str:
    """``200 k`` or ``1.5 M``."""
    return f"{value / 1e6:g} M" if value >= 1e6 else f"{value / 1e3:g} k"


def _name_shapes(axes: Any, rows: Sequence[Row]) -> None:
    """The shapes' names above the axes, each joined to its number of parameters, none upon another."""
    import math

    places = sorted({(math.log10(row["parameters"]), row["shape"]) for row in rows})
    low, high = (math.log10(value) for value in axes.get_xlim())
    wanted = [(at - low) / (high - low) for at, _ in places]
    at = spread(wanted, LABEL_GAP)
    for (_, shape), place, x in zip(places, wanted, at, strict=True):
        axes.annotate(
            shape,
            xy=(place, 1.0),
            xytext=(x, 1.05),
            xycoords="axes fraction",
            textcoords="axes fraction",
            rotation=90,
            ha="center",
            va="bottom",
            fontsize=7,
            arrowprops={"arrowstyle": "-", "color": "#999999", "linewidth": 0.5, "shrinkA": 0, "shrinkB": 0},
            annotation_clip=False,
        )


def spread(wanted: Sequence[float], gap: float) -> list[float]:
    """Rising places as near to the ``wanted`` rising ones as pushing apart by ``gap`` and centring each pile gives."""
    piles: list[list[float]] = []  # each: first place, number of members, sum of what each wants the first place to be
    for place in wanted:
        piles.append([place, 1, place])
        while len(piles) > 1 and piles[-2][0] + gap * piles[-2][1] > piles[-1][0]:
            _, count, total = piles.pop()
            before = piles[-1]
            before[2] += total - count * gap * before[1]
            before[1] += count
            before[0] = before[2] / before[1]
    return [first + gap * number for first, count, _ in piles for number in range(int(count))]
