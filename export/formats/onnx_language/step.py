"""The programs of a language model's step: ``train`` (or ``accumulate`` and its end), ``features`` and ``eval``."""

from __future__ import annotations

from collections.abc import Callable

from edge.contracts.tensors import FEATURES, TensorSpec
from edge.runtimes.micro_batches import gradient_sum
from export.formats.onnx_language.added import Added
from export.formats.onnx_language.base import Base
from export.formats.onnx_language.block import Block, Computed
from export.formats.onnx_language.cut_tensors import CutTensors
from export.formats.onnx_language.graph import StepGraph
from export.formats.onnx_language.head import Head, Scored
from export.formats.onnx_language.layers import Linears
from export.formats.onnx_language.norms import Norm
from export.formats.onnx_language.prompt import TOKENS, Prompt
from export.formats.onnx_language.update import Adding, Learning, slot_spec
from export.language.architecture import Architecture
from export.task_steps import SUM
from export.training_step import StepSpec

LOSS = TensorSpec("loss", (), "float32", "loss")


class StepWriter:
    """Writes the programs of one cut and step."""

    def __init__(self, shape: Architecture, tensors: CutTensors, spec: StepSpec) -> None:
        self._shape, self._tensors, self._spec = shape, tensors, spec
        self._batch = spec.batch // spec.micro_batches

    def train(self) -> StepGraph:
        """A whole step: loss, gradients, update."""
        graph = StepGraph(self._batch)
        learning = Learning(graph, self._spec, self._tensors.trained)
        learning.prepare()
        self._loss_and_gradients(graph, learning.learn)
        learning.finish()
        return graph

    def accumulate(self) -> StepGraph:
        """The gradients of one micro-batch, as its share of the whole batch's, added to their sums."""
        graph = StepGraph(self._batch)
        self._loss_and_gradients(graph, Adding(graph).learn, share=1.0 / self._spec.micro_batches)
        return graph

    def end(self) -> StepGraph:
        """What moves the factors by the sums of their gradients."""
        graph = StepGraph(self._batch)
        learning = Learning(graph, self._spec, self._tensors.trained)
        learning.prepare()
        for parameter in self._tensors.trained:
            learning.learn(parameter, graph.input(slot_spec(parameter, gradient_sum("").removeprefix("#"))))
        learning.finish()
        return graph

    def features(self, spec: TensorSpec) -> StepGraph:
        """What enters the first trained block, as ``spec`` has it."""
        graph, shape = StepGraph(self._batch), self._shape
        model = _Model(graph, shape, self._tensors, _nothing)
        x = model.embedded()
        for block in model.blocks[: self._tensors.first]:
            x = block.forward(x)
        graph.scope = FEATURES
        x = x if spec.dtype == "float32" else graph.cast(x, spec.dtype)
        x = graph.reshape(x, [-1, self._tensors.length, shape.hidden])
        graph.output(x, spec)
        return graph

    def eval(self) -> StepGraph:
        """Sums over a batch, without gradients."""
        graph = StepGraph(self._batch)
        model = _Model(graph, self._shape, self._tensors, _nothing)
        x = model.embedded()
        for block in model.blocks:
            x = block.forward(x)
        x = model.prompt.behind(x) if model.prompt else x
        scored = model.scored(model.norm.forward(x).value, is_trained=False, wants_best=True)
        mean, _ = model.head.loss(scored)
        size = graph.one("Shape", self._tensors.symbols.name, shape=(1,), dtype="int64", start=0, end=1)
        count = graph.reshape(graph.cast(size, "float32"), [])
        graph.output(graph.mul(mean, count, name=LOSS.name), LOSS)
        for name, value in model.head.sums(scored).items():
            spec = TensorSpec(SUM + name, (), "float32", "metric")
            graph.output(graph.map("Identity", value, name=spec.name), spec)
        return graph

    def _loss_and_gradients(
        self, graph: StepGraph, learn: Callable[[TensorSpec, str], None], *, share: float = 1.0
    ) -> None:
        model = _Model(graph, self._shape, self._tensors, learn)
        first, stored = self._tensors.first, self._tensors.features
        x = model.stored(stored) if stored else model.embedded()
        keeps = stored is not None and not self._spec.recompute
        read: dict[int, str] = {}
        kept: dict[int, Computed] = {}
        for number, block in enumerate(model.blocks):
            if number < first and stored:
                continue
            computed = block.computed(x)
            if number >= first:
                read[number] = x
                kept |= {number: computed} if keeps else {}
            x = block.output(computed)
        x = model.prompt.behind(x) if model.prompt else x
        normalised = model.norm.forward(x)
        scored = model.scored(normalised.value, is_trained=True)
        loss, weight = model.head.loss(scored, share=share, name=LOSS.name)
        graph.output(loss, LOSS)
        dx = model.norm.backward(model.head.gradient(scored, weight), x, normalised)
        dx = model.prompt.behind_backward(dx) if model.prompt else dx
        for number in reversed(range(first, len(model.blocks))):
            goes_on = number > first or model.trains_prompt
            dx = model.blocks[number].backward(dx, read[number], goes_on=goes_on, kept=kept.get(number))
        if model.prompt and model.trains_prompt:
            model.prompt.learn(dx)


class _Model:
    """The parts of a model over one graph."""

    def __init__(
        self,
        graph: StepGraph,
        shape: Architecture,
        tensors: CutTensors,
        learn: Callable[[TensorSpec, str], None],
    ) -> None:
        self._graph, self._shape, self._tensors = graph, shape, tensors
        base = self._base = Base(graph, tensors.base)
        linears = Linears(graph, base, tensors.factors, learn)
        added = Added(graph, tensors.added, learn)
        self.prompt = Prompt(graph, added, tensors.length, shape.hidden) if TOKENS in tensors.added else None
        self.trains_prompt = self.prompt is not None and tensors.added[TOKENS].role == "parameter"
        self._before = max((added.length(name) for name in tensors.added if name.endswith(".prefix.keys")), default=0)
        length = tensors.length + (self.prompt.size if self.prompt else 0)
        self.blocks = [Block(graph, base, linears, added, shape, n, length) for n in range(shape.layers)]
        self.norm = Norm(graph, base, shape, "norm")
        self.head = Head(graph, base, "embedding.weight" if shape.tied else "head.weight", shape.vocabulary)

    def embedded(self) -> str:
        """What the first block reads, [M, D], a prompt's positions among them."""
        graph, shape, length = self._graph, self._shape, self._tensors.length
        graph.scope = "embedding"
        graph.input(self._tensors.symbols)
        x = self._base.rows_of("embedding.weight", self._tensors.symbols)
        if shape.embedding_scale != 1.0:
            x = graph.mul(x, shape.embedding_scale)
        if self.prompt:
            x = self.prompt.before(x, self._tensors.symbols.name)
            length += self.prompt.size
        if shape.positions == "learned":
            table = graph.rows(self._base.vector("positions.weight"), self._before, self._before + length)
            x = graph.add(graph.reshape(x, [-1, length, shape.hidden]), table)
            x = graph.reshape(x, [-1, shape.hidden])
        return x

    def stored(self, spec: TensorSpec) -> str:
        """What the first trained block reads, [M, D], where the step is fed it."""
        graph = self._graph
        graph.scope = FEATURES
        x = graph.input(spec)
        x = x if spec.dtype == "float32" else graph.cast(x, "float32")
        return graph.reshape(x, [-1, self._shape.hidden])

    def scored(self, y: str, *, is_trained: bool, wants_best: bool = False) -> Scored:
        """What the head makes of normalised positions."""
        return self.head.scored(y, self._tensors.target, is_trained=is_trained, wants_best=wants_best)


def _nothing(parameter: TensorSpec, gradient: str) -> None:
    raise AssertionError(f"a gradient of {parameter.name} in a program that has none")
