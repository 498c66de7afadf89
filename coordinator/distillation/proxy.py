"""The proxy set: inputs without labels that the coordinator holds, on which models of different shapes can be compared.

Labels of its source are never read. Who teaches whom on it is the methods' business.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

from coordinator.data.datasets import Dataset, load_dataset
from coordinator.data.inputs import prepare_inputs
from edge.contracts.errors import ConfigError, DataError
from edge.contracts.streams import permutation, stream_seed

if TYPE_CHECKING:
    import numpy as np

    from coordinator.config.method_options import Options
    from coordinator.config.run_config import RunConfig
    from edge.contracts.manifest import InputSpec

HELD_BACK = "held-back"
"""The source that takes examples out of the run's own training data before it is dealt to the devices started here."""

SMALLEST = 2
"""Examples of a proxy set at least: a batch norm in training needs more than one."""


@runtime_checkable
class DistilsOnProxy(Protocol):
    """A method that trains models at the coordinator, on inputs of a proxy set.

    Attributes:
        proxy: its proxy set, opened by :func:`open_proxy` before the first round.
        without_distillation: options that turn that training off. With them, devices that trained nothing return the
            model, as those of every method; otherwise they need not: a hard label, a sharpened one or the statistics
            of a batch move a student away from teachers it equals.
    """

    proxy: ProxySet
    without_distillation: ClassVar[Mapping[str, Any]]


class ProxySet:
    """Inputs from one source, read when they are first needed.

    Options of the methods that use it, in kebab case:

    - ``proxy``: ``held-back``, examples of the run's own training data that no device started here gets; a source of
      ``coordinator.data.datasets``; or ``package.module:function``. Its labels are not used.
    - ``proxy-path``: folder of the source; the run's ``[data] path`` unless given.
    - ``proxy-examples``: how many of its training examples, drawn by the run's seed; 0, all, where it is a source of
      its own.

    Attributes:
        seed: of every draw on the coordinator; the run's own.
        device: where torch computes, ``cpu`` or ``cuda``.
        threads: that torch computes with; equal ones give equal bits.
    """

    def __init__(self, method: str, read: Options) -> None:
        """Read the options; :meth:`Options.finish` reports what is wrong with them."""
        self._method = method
        self._source = read.text("proxy")
        self._path = read.text("proxy-path")
        self._examples = read.integer("proxy-examples", 0, low=0)
        self._inputs: np.ndarray | None = None
        self.seed, self.device, self.threads = 0, "cpu", 1

    def require(self) -> None:
        """Check that a source is named.

        Raises:
            ConfigError: none is.
        """
        if not self._source:
            raise ConfigError(
                [
                    f"$.method.proxy: {self._method} distils on inputs that the coordinator holds, and none are given; "
                    f"name a data source, or '{HELD_BACK}' with proxy-examples"
                ]
            )

    def open(
        self,
        spec: InputSpec,
        dataset: Dataset | None = None,
        *,
        seed: int = 0,
        holdout: float = 1 / 3,
        path: Path | None = None,
        device: str = "cpu",
        threads: int = 1,
    ) -> Dataset | None:
        """Read the inputs; ``dataset`` without those held back from it.

        Args:
            spec: how examples become the model's input in this run.
            dataset: the run's own.
            holdout: share of the source held out, for one without a test set of its own; never part of the proxy set.
            path: folder of the source where the options name none.

        Raises:
            ConfigError: no source, more examples than it has, or examples that are not the model's inputs.
            DataError: the source cannot be read.
        """
        import numpy as np

        self.seed, self.device, self.threads = seed, device, threads
        own = dataset
        self.require()
        if self._source == HELD_BACK:
            if own is None or not self._examples:
                raise ConfigError(
                    [f"$.method.proxy-examples: '{HELD_BACK}' takes that many out of the run's data; give their number"]
                )
            source = own
        else:
            folder = Path(self._path) if self._path else path
            source = self._loaded(folder, seed, holdout)
        count = len(source.x_train)
        wanted = self._examples or count
        limit = count - 1 if source is own else count
        if not SMALLEST <= wanted <= limit:
            raise ConfigError(
                [f"$.method.proxy-examples: {wanted} given, {SMALLEST} to {limit} expected of '{self._source}'"]
            )
        chosen = np.sort(permutation(stream_seed(seed, "proxy"), count)[:wanted])
        try:
            self._inputs = prepare_inputs(source.x_train[chosen], spec)
        except ValueError as error:
            raise DataError(
                f"$.method.proxy: examples of '{self._source}' have shape {source.x_train.shape[1:]}, the model takes "
                f"{tuple(spec.shape)} ({error}); choose a source of such inputs"
            ) from error
        return _without(own, chosen) if source is own and own is not None else own

    def _loaded(self, folder: Path | None, seed: int, holdout: float) -> Dataset:
        try:
            return load_dataset(self._source, folder, seed, holdout)
        except ConfigError as error:
            problems = [problem.replace("$.data.source", "$.method.proxy") for problem in error.problems]
            raise ConfigError(problems) from error

    def inputs(self, spec: InputSpec) -> np.ndarray:
        """Inputs [N, ...] as the model takes them; opened with the model's own spec where nobody opened them.

        Raises:
            ConfigError, DataError: as :meth:`open`.
        """
        if self._inputs is None:
            folder = os.environ.get("APPORTION_DATA")
            self.open(spec, path=Path(folder) if folder else None)
        assert self._inputs is not None
        return self._inputs


def require_proxy(method: object) -> None:
    """Check that ``method`` needs no proxy set, or its options name one.

    Raises:
        ConfigError: they do not.
    """
    if isinstance(method, DistilsOnProxy):
        method.proxy.require()


def open_proxy(method: object, config: RunConfig, dataset: Dataset, spec: InputSpec, *, device: str = "cpu") -> Dataset:
    """Open the proxy set of a method that has one; the run's data without what is held back for it.

    Raises:
        ConfigError, DataError: as :meth:`ProxySet.open`.
    """
    if not isinstance(method, DistilsOnProxy):
        return dataset
    rest = method.proxy.open(
        spec,
        dataset,
        seed=config.federation.seed,
        holdout=config.evaluation.holdout,
        path=config.data_path(),
        device=device,
        threads=config.runtime.threads_here,
    )
    return dataset if rest is None else rest


def _without(dataset: Dataset, taken: np.ndarray) -> Dataset:
    import numpy as np

    left = np.setdiff1d(np.arange(len(dataset.x_train)), taken)
    owners = None if dataset.owner_train is None else dataset.owner_train[left]
    return replace(dataset, x_train=dataset.x_train[left], y_train=dataset.y_train[left], owner_train=owners)
