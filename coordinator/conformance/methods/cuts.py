"""What a method cuts and sends: the ladder, the records, the tensors."""

from __future__ import annotations

import msgspec
import numpy as np
import torch

from coordinator.conformance.findings import expect
from coordinator.conformance.methods.subject import Subject, cut, differing, same_bits
from coordinator.methods.own import is_import_path
from coordinator.submodels.build import apply_cut
from coordinator.submodels.record import cut_digest, cut_from_json, cut_to_json
from coordinator.submodels.width import cut_tensors, shape_of_cut, tensor_slices


def is_complete(subject: Subject) -> str:
    """The class can be built, and is named as it is registered."""
    method, _ = subject.built()
    if not is_import_path(subject.name):
        expect(method.name == subject.name, f"it is registered as '{subject.name}' and names itself '{method.name}'")
    return f"{type(method).__name__}, {len(method.levels())} levels"


def init_is_the_models_own(subject: Subject) -> str:
    """The first state has the module's own weights, but for what a mask makes 0 and what the method adds."""
    method, state = subject.built()
    dense = subject.module()
    server = method.eval_models(state)["server"].cut
    expected = {key: value.numpy() for key, value in dense.state_dict().items()}
    if server:
        # The server holds less than the module, or several parts of it.
        slices = tensor_slices(dense, {path: record for path, record in server.items() if path})
        part = cut_tensors(expected, slices)
        atoms = server[""].atoms if "" in server else ()
        expected = {f"atoms.{atom}.{key}": value for atom in atoms for key, value in part.items()} or part
    added = {key for record in server.values() if record.added for key in state.tensors if key not in expected}
    expect(state.round == 0, f"the first state is of round {state.round}, 0 expected")
    odd = sorted((state.tensors.keys() - added) ^ expected.keys())
    expect(not odd, f"state and module differ in the tensors {', '.join(odd[:5])}")
    for key, value in expected.items():
        if key.startswith("atoms.") and not key.startswith("atoms.0."):
            expect(state.tensors[key].shape == value.shape, f"{key} has another shape than in the module")
            continue  # another part of the module than the first atom
        mask = state.extra.get(f"{key}#mask", True)
        expect(np.array_equal(state.tensors[key], np.where(mask, value, 0)), f"{key} is not the module's own")
    return f"{len(expected)} tensors are the module's own"


def levels_are_a_ladder(subject: Subject) -> str:
    """One level or more, of different names, each capacity above 0 and up to 1, largest first."""
    levels = subject.built()[0].levels()
    names = [level.name for level in levels]
    expect(len({*names}) == len(names) >= 1, f"levels {names}: one or more with names of their own expected")
    capacities = [level.capacity for level in levels]
    expect(all(0 < value <= 1 for value in capacities), f"capacities {capacities}: above 0 and up to 1 expected")
    expect(capacities == sorted(capacities, reverse=True), f"capacities {capacities}: largest first expected")
    return ", ".join(names)


def cut_is_what_its_shape_says(subject: Subject) -> str:
    """``cut`` has the shape, the program and the record that ``cut_shape`` and ``program`` say; it can be stored."""
    method, state = subject.built()
    for level in method.levels():
        shape = method.cut_shape(level, round_index=0, device="pi-01", seed=7)
        submodel = method.cut(state, level, round_index=0, device="pi-01", seed=7)
        # One artifact for both: which channels and components they are is in the values.
        is_alike = shape_of_cut(subject.module(), submodel.cut) == shape_of_cut(subject.module(), shape)
        expect(is_alike, f"level '{level.name}': cut and cut_shape differ in shape")
        expect(submodel.program == method.program(shape), f"level '{level.name}': the cut's program is another")
        stored = cut_from_json(msgspec.json.decode(msgspec.json.encode(cut_to_json(shape))))
        is_kept = cut_digest(stored) == cut_digest(shape) and stored == dict(shape)
        expect(is_kept, f"level '{level.name}': the record comes back changed from the ledger")
    return f"{len(method.levels())} cuts"


def cut_builds_a_module_that_runs(subject: Subject) -> str:
    """Every cut makes a module that takes its tensors and runs, and its program names parameters of it."""
    method, state = subject.built()
    for index, level in enumerate(method.levels()):
        submodel = cut(method, state, index)
        built = apply_cut(subject.module(), submodel.cut, submodel.tensors).eval()
        parameters = dict(built.named_parameters())
        odd = sorted({*parameters} - submodel.tensors.keys())
        expect(not odd, f"level '{level.name}': the cut has no values for {', '.join(odd[:5])}")
        expect(bool(torch.isfinite(built(subject.batch())).all()), f"level '{level.name}': outputs are not finite")
        pairs = [factor for pair in submodel.program.frobenius for factor in pair]
        odd = sorted({*pairs, *submodel.program.frozen, *submodel.program.accumulators} - parameters.keys())
        expect(not odd, f"level '{level.name}': the program names {', '.join(odd[:5])}, which are no parameters of it")
    return f"{len(method.levels())} modules run"


def smaller_levels_are_smaller(subject: Subject) -> str:
    """Every level has fewer parameters than the one before, or as many of which fewer are trained."""
    method, state = subject.built()
    built = [apply_cut(subject.module(), cut(method, state, i).cut) for i in range(len(method.levels()))]
    sizes = [sum(p.numel() for p in module.parameters()) for module in built]
    if len(built) > 1 and len({*sizes}) == 1:
        sizes = [sum(p.numel() for p in module.parameters() if p.requires_grad) for module in built]
        expect(
            sizes == sorted({*sizes}, reverse=True),
            f"levels train {sizes} parameters of one size: fewer at each expected",
        )
        return f"{', '.join(map(str, sizes))} trained parameters"
    expect(sizes == sorted({*sizes}, reverse=True), f"levels have {sizes} parameters: fewer at each expected")
    return f"{', '.join(map(str, sizes))} parameters"


def same_arguments_same_bytes(subject: Subject) -> str:
    """Two instances cut the same bytes, in whatever order they are asked: draws come from keyed streams alone."""
    (first, state), (second, other) = subject.built(), subject.built()
    count = len(first.levels())
    results = [cut(first, state, i).tensors for i in range(count)]
    again = [cut(second, other, i).tensors for i in reversed(range(count))][::-1]
    for level, one, two in zip(first.levels(), results, again, strict=True):
        expect(same_bits(one, two), f"level '{level.name}': two instances cut different {differing(one, two)}")
    return f"{count} cuts, twice"
