"""The ONNX Runtime Training format: the files of its training API, plain graphs beside them, and the update rule."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import numpy as np
import onnx
from torch import nn

from edge.contracts.errors import ExportRefused, ParityError
from edge.contracts.manifest import GraphOutput, Parity, Program
from edge.contracts.tensors import TensorSpec
from edge.runtimes.leading_parts import FILE_NAME as PARTS_NAME
from edge.runtimes.leading_parts import parts_to_bytes
from edge.runtimes.update_rule import FILE_NAME
from export.capture import Capture, capture
from export.cost import forward_macs, step_work
from export.formats.onnx_step.operator_table import translate
from export.formats.ort_training.checkpoint import checkpoint_request
from export.formats.ort_training.child import MODEL
from export.formats.ort_training.differentiable import require_gradients
from export.formats.ort_training.environment import RuntimeEnvironment
from export.formats.ort_training.forward import capture_forward
from export.formats.ort_training.gate_run import GateRun
from export.formats.ort_training.memory import training_memory, with_variants
from export.formats.ort_training.operators import ForwardTranslation
from export.formats.ort_training.optimizer_model import BETAS, EPSILON, optimizer_model
from export.formats.ort_training.survey import survey_step
from export.formats.ort_training.training_model import training_model
from export.formats.survey import Captured, Survey
from export.gate_values import gate_values
from export.memory_plan import MemoryPlan
from export.parameter_groups import update_rule
from export.parity import check_parity, self_test_losses
from export.programs import capture_programs, program_functions
from export.step_objective import objective_of
from export.traceable_module import LOOPS
from export.training_step import StepSpec
from export.written_programs import WrittenPrograms

RUNTIME = "onnxruntime_training"
GRADIENT = "grad:"
_FILES = {"train": "training_model.onnx", "eval": "eval_model.onnx"}
"""Names that the training API's documentation uses; other programs are called after themselves."""
_ARENA_SHARE, _NODE_BYTES, _RELEASED_BYTES = 0.1, 9300, 2 << 20
"""What the runtime takes beside live tensors, its arena's fragmentation and its graph, and what an idle trainer gives
back when a graph is loaded (:mod:`edge.system.startup_pages`). Measured on x86-64, one process at batch 32: within
12 % for the MLP, Conv-2, ResNet-18/20, VGG-11, a depthwise net, a ViT, an LSTM, and ResNet-20 and ViT with layers
frozen; a factorized VGG-11 takes 27 % more."""
_STEP_TOLERANCE = 1e-5
"""Of a moved parameter, relative to its largest entry: the optimizer model against the agent's rule, both float32."""


class OrtTraining:
    """Writes the training API's files, ``update.json``, with batch norm ``stats.onnx`` (and ``eval_static.onnx``)."""

    name = "ort_training"
    minimum_runtime_version = "1.19.2"
    writes_over = True
    updates_in_graph = False
    buffers_gradients = True
    features: frozenset[str] = frozenset({"masked", "distillation", "variants", "probe", "task"})

    def __init__(self) -> None:
        self._programs: tuple[Program, ...] = ()

    def write(self, module: nn.Module, spec: StepSpec) -> WrittenPrograms:
        """Trace, translate and differentiate; the files depend on nothing but module, step and versions.

        Raises:
            ExportRefused: naming the layer that has no training step on this runtime.
            ConfigError: the runtime's environment is not there.
        """
        if any(not variant.name for variant in spec.variants):
            raise ExportRefused(
                "(the training step)", f"{RUNTIME} trains the whole module as 'train'", instead="a variant with a name"
            )
        functions = program_functions(module, spec, loops=LOOPS)
        variants = {variant.program: variant for variant in spec.variants}
        steps = {n: capture_forward(functions[n], spec, variants.get(n)) for n in ("train", *variants)}
        captures = {n: capture(f.function, f.inputs, f.module) for n, f in functions.items() if n not in steps}
        inputs = {name: tuple(i.spec for i in functions[name].inputs) for name in steps}
        inputs |= {name: program.inputs for name, program in captures.items()}
        tensors = _tensors(inputs.values(), spec, captures["eval"])
        trained = {name: [t.name for t in inputs[name] if t.role == "parameter"] for name in steps}
        with RuntimeEnvironment() as environment:
            models = {n: _differentiated(forward, trained[n], environment) for n, forward in steps.items()}
            checkpoint = environment.ask(checkpoint_request(models["train"][0], tensors))[MODEL].tobytes()
        files = {
            FILE_NAME: update_rule(spec, trained["train"]).to_bytes(),
            "checkpoint": checkpoint,
            **{_file(name): _bytes(model) for name, (model, _) in models.items()},
            **{_file(name): _bytes(translate(program)) for name, program in captures.items()},
        }
        if variants:
            files[PARTS_NAME] = parts_to_bytes({name: dict(variant.sizes) for name, variant in variants.items()})
        optimizer = None if spec.groups else optimizer_model(spec.optimizer)  # its operators have one rate
        if optimizer is not None:
            files["optimizer_model.onnx"] = _bytes(optimizer)
        outputs = {name: program.outputs for name, program in captures.items()}
        for name, forward in steps.items():
            reported = [o for o in forward.outputs if o == "loss" or o == "correct" or o.startswith("next:")]
            outputs[name] = (*reported, *(f"{GRADIENT}{parameter}" for parameter in trained[name]))
        self._programs = tuple(
            Program(
                name=name,
                file=_file(name),
                inputs=tuple(i.name for i in inputs[name]),
                outputs=tuple(GraphOutput(o, o.removeprefix("next:").removeprefix(GRADIENT)) for o in outputs[name]),
            )
            for name in inputs
        )
        memory = with_variants(
            training_memory(*models["train"], tensors, spec.batch), [models[name][0] for name in variants]
        )
        # The runtime makes the backward pass itself; what it computes is counted on the step as other formats trace it.
        work = step_work(capture_programs(module, spec), spec)
        return WrittenPrograms(files, self._programs, tensors, forward_macs(captures["eval"]), memory, work)

    def survey(self, module: nn.Module, spec: StepSpec, captured: Captured) -> Survey:
        """Every layer that :meth:`write` refuses; needs no environment of the runtime."""
        return survey_step(captured(LOOPS), spec)

    def check(
        self,
        module: nn.Module,
        spec: StepSpec,
        files: Mapping[str, bytes],
        programs: Iterable[Program],
        tensors: Iterable[TensorSpec],
    ) -> Parity:
        """The parity gate on the very bytes that are shipped, run by the device's own session.

        Raises:
            ParityError: naming program and tensor.
        """
        programs, tensors = list(programs), list(tensors)
        with tempfile.TemporaryDirectory(prefix="apportion-ort-") as name, RuntimeEnvironment() as environment:
            folder = _written(files, Path(name))

            def opener(program: str) -> Callable[[], GateRun]:
                return lambda: GateRun(environment, folder, programs, tensors, program)

            parity = check_parity(module, spec, {p.name: opener(p.name) for p in programs}, tensors)
            if "optimizer_model.onnx" in files:
                _check_optimizer_model(opener("train"), spec, tensors)
        return parity

    def self_test_losses(
        self,
        spec: StepSpec,
        files: Mapping[str, bytes],
        tensors: Iterable[TensorSpec],
        values: Mapping[str, np.ndarray],
        *,
        steps: int,
    ) -> tuple[float, ...]:
        """Losses of the first steps from ``values``, as in the self-test; of files that this object wrote."""
        tensors = list(tensors)
        with tempfile.TemporaryDirectory(prefix="apportion-ort-") as name, RuntimeEnvironment() as environment:
            folder = _written(files, Path(name))

            def opened() -> GateRun:
                return GateRun(environment, folder, self._programs, tensors, "train")

            return self_test_losses(opened, values, steps=steps)

    def predicted_peak_bytes(self, memory: MemoryPlan) -> int:
        """Peak of the trainer process above an idle one with the runtime loaded."""
        return memory.live + int(_ARENA_SHARE * memory.intermediate) + _NODE_BYTES * memory.nodes - _RELEASED_BYTES


def _differentiated(
    forward: Capture, trained: list[str], environment: RuntimeEnvironment
) -> tuple[onnx.ModelProto, onnx.ModelProto]:
    """The training model of a forward pass, and the plain graph it was made of."""
    translation = ForwardTranslation(forward)
    graph = translation.model()
    require_gradients(graph, graph.graph.output[0].name, trained)
    return training_model(graph, trained, translation.silent_rows, environment), graph


def _check_optimizer_model(opened: Callable[[], GateRun], spec: StepSpec, tensors: list[TensorSpec]) -> None:
    """One step of the optimizer model from zero slots beside one of the rule, on its own hyper-parameters.

    Raises:
        ParityError: they differ.
    """
    values = gate_values(spec, tensors, masked=False)
    own = {"weight_decay": 0.0, "beta1": BETAS[0], "beta2": BETAS[1], "eps": EPSILON, "clip_norm": 1e30}
    values |= {n: np.array(v, np.float32) for n, v in own.items() if n in values}
    values |= {t.name: np.zeros_like(values[t.name]) for t in tensors if t.role == "slot"}
    by_rule, by_model = opened().run(values), opened().run_optimizer_model(values)
    for name in [t.name for t in tensors if t.role == "parameter"]:
        expected, found = by_rule[f"next:{name}"], by_model[f"next:{name}"]
        error = float(np.abs(expected - found).max()) / max(float(np.abs(expected).max()), 1e-30)
        if not error <= _STEP_TOLERANCE:
            raise ParityError(
                f"optimizer model: '{name}' is {error:.2e} from the agent's rule after a step, at most "
                f"{_STEP_TOLERANCE:.0e} expected; the model is wrong, do not use it"
            )


def _tensors(inputs: Iterable[tuple[TensorSpec, ...]], spec: StepSpec, evaluation: Capture) -> tuple[TensorSpec, ...]:
    """Every tensor of every program once, those of ``train`` first; then what the programs report."""
    known = {item.name: item for program in inputs for item in program}
    return (*known.values(), *objective_of(spec).reported(spec, evaluation))


def _file(program: str) -> str:
    return _FILES.get(program, f"{program}.onnx")


def _bytes(model: onnx.ModelProto) -> bytes:
    return bytes(model.SerializeToString(deterministic=True))


def _written(files: Mapping[str, bytes], folder: Path) -> Path:
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return folder
