"""The methods that scale width: which channels each keeps, what is averaged, what is evaluated. Invariants 7 and 8.

Source of the rules: the papers named in the methods' own files.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from coordinator.methods import Level, Method, State, Submodel, Update, build_method
from coordinator.models.catalog import build_model
from coordinator.rounds.batch_norm_statistics import state_with_statistics
from coordinator.rounds.global_model import decode_state, encode_state
from coordinator.rounds.program_schedule import training_turns
from coordinator.submodels.build import apply_cut
from coordinator.submodels.values import DeviceProgram, Variant
from edge.contracts.errors import ConfigError, PlanError, UpdateRejected
from edge.contracts.manifest import InputSpec
from export.training_step import Variant as CompiledVariant
from export.variants import variant_module

WIDTH_METHODS = ("small_model", "heterofl", "fjord", "federated_dropout", "fedrolex")


class Tiny(nn.Module):
    """A hidden layer of eight channels with a norm, a classifier of three."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)
        self.input_spec = InputSpec(layout="features", shape=(4,))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.relu(self.norm(self.first(x))))


def tiny(name: str, **options: Any) -> tuple[Method, State]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = Tiny()
    method = build_method(name, module, {key.replace("_", "-"): value for key, value in options.items()})
    return method, method.init()


def sent(method: Method, state: State, index: int, device: str = "a") -> Submodel:
    return method.cut(state, method.levels()[index], round_index=state.round, device=device, seed=1)


def trained(submodel: Submodel, add: float, *, device: str = "a", examples: int = 1, **kept: Any) -> Update:
    """The update of a device on which everything trained moved by ``add``."""
    tensors = {n: v + np.float32(add) for n, v in submodel.tensors.items() if v.dtype.kind == "f"}
    return Update(device, submodel.level, submodel.cut, tensors, examples, **kept)


def hidden(submodel: Submodel) -> tuple[int, ...]:
    record = submodel.cut.get("first")
    return tuple(range(8)) if record is None or record.out_idx is None else record.out_idx


@pytest.mark.parametrize("name", WIDTH_METHODS)
def test_entries_outside_every_cut_keep_their_bits_and_others_are_the_mean_over_holders(name: str) -> None:
    method, state = tiny(name, levels=[0.5, 0.25] if name != "small_model" else [0.5])
    last = len(method.levels()) - 1
    submodels = [sent(method, state, 0, "a"), sent(method, state, last, "b")]
    after = method.aggregate(
        state, [trained(s, add, device=d) for s, add, d in zip(submodels, (1, 3), "ab", strict=True)]
    )
    before = state.tensors["first.bias"]
    held = [set(hidden(s)) for s in submodels]
    if len(before) < 8:
        held = [set(range(len(h))) for h in held]  # the server holds the largest level's channels alone
    for channel, value in enumerate(before):
        own = [add for h, add in zip(held, (1.0, 3.0), strict=True) if channel in h]
        expected = value if not own else np.float32(np.float64(value) + np.mean(own))
        assert after.tensors["first.bias"][channel] == pytest.approx(expected, abs=1e-6)
        if not own:
            assert after.tensors["first.bias"][channel].tobytes() == value.tobytes()
    assert after.tensors["last.bias"] == pytest.approx(state.tensors["last.bias"] + 2.0, abs=1e-6)


@pytest.mark.parametrize("name", WIDTH_METHODS)
def test_identical_untrained_devices_give_the_model_back(name: str) -> None:
    method, state = tiny(name, levels=[0.5])
    after = method.aggregate(state, [trained(sent(method, state, 0, d), 0.0, device=d, examples=3) for d in "abc"])
    assert all(after.tensors[n].tobytes() == v.tobytes() for n, v in state.tensors.items())


def test_heterofl_holds_first_channels_and_trains_on_masked_logits() -> None:
    method, state = tiny("heterofl", levels=[1, 0.25])
    small = sent(method, state, 1)
    assert hidden(small) == (0, 1)
    assert small.cut["last"].in_idx == (0, 1)
    assert small.cut["last"].out_idx is None
    assert small.program.loss == "label_masked_cross_entropy"
    assert np.array_equal(small.tensors["last.weight"], state.tensors["last.weight"][:, :2])


def test_heterofl_scales_what_no_batch_norm_takes_by_the_ratio() -> None:
    normed = tiny("heterofl", levels=[0.25])
    assert all(record.scale == 1.0 for record in sent(*normed, 0).cut.values())
    module = build_model("mlp", hidden=(8, 8))
    for scaler, expected in ((True, 0.25), (False, 1.0)):
        method = build_method("heterofl", module, {"levels": [1, 0.25], "scaler": scaler})
        narrow = sent(method, method.init(), 1).cut
        assert (narrow["fc1"].scale, narrow["fc2"].scale, narrow["fc3"].scale) == (expected, expected, 1.0)
        assert not sent(method, method.init(), 0).cut


def test_server_shrinks_to_the_largest_level_where_nobody_trains_the_whole() -> None:
    for name in ("heterofl", "fjord", "small_model"):
        method, state = tiny(name, levels=[0.5, 0.25])
        size = 2 if name == "small_model" else 4
        assert state.tensors["first.weight"].shape == (size, 4)
        server = method.eval_models(state)["server"]
        built = apply_cut(Tiny(), server.cut, server.tensors)
        assert built.first.out_features == size
    for name in ("fedrolex", "federated_dropout"):
        method, state = tiny(name, levels=[0.5])
        assert state.tensors["first.weight"].shape == (8, 4)
        assert not method.eval_models(state)["server"].cut


def test_evaluated_are_the_models_of_the_papers() -> None:
    expected = {
        "small_model": ["server"],
        "heterofl": ["server", "full", "width 0.5"],
        "fjord": ["server", "full", "width 0.5"],
        "federated_dropout": ["server"],
        "fedrolex": ["server"],
    }
    for name, labels in expected.items():
        method, state = tiny(name, levels=[1, 0.5])
        assert list(method.eval_models(state)) == labels


def test_fedrolex_moves_one_window_for_all_and_visits_every_channel_once_in_as_many_rounds() -> None:
    method, state = tiny("fedrolex", levels=[0.25])
    seen = []
    for round_index in range(8):
        now = State(state.tensors, round=round_index)
        assert hidden(sent(method, now, 0, "a")) == hidden(sent(method, now, 0, "b"))
        seen += hidden(sent(method, now, 0))
    assert hidden(sent(method, state, 0)) == (0, 1)
    assert hidden(sent(method, State(state.tensors, round=7), 0)) == (0, 7)
    assert np.bincount(seen).tolist() == [2] * 8


def test_federated_dropout_draws_per_device_and_round() -> None:
    method, state = tiny("federated_dropout", levels=[0.5])
    drawn = {hidden(sent(method, State(state.tensors, round=r), 0, d)) for r in range(4) for d in "abc"}
    assert all(len(set(channels)) == 4 for channels in drawn)
    assert len(drawn) > 8
    assert hidden(sent(method, state, 0, "a")) == hidden(sent(method, state, 0, "a"))


def test_fjord_nests_a_program_of_every_smaller_level() -> None:
    method, state = tiny("fjord", levels=[1, 0.5, 0.25])
    full, small = sent(method, state, 0).program, sent(method, state, 2).program
    assert [variant.name for variant in full.variants] == ["0_5", "0_25"]
    assert dict(full.variants[1].sizes)["last.weight"] == (3, 2)
    assert dict(full.variants[1].sizes)["norm.running_mean"] == (2,)
    assert full.turns == "draw"
    assert not small.variants
    assert small.turns == "train"


def test_fjords_program_is_the_narrower_network() -> None:
    method, state = tiny("fjord", levels=[0.75, 0.25])
    large, small = sent(method, state, 0), sent(method, state, 1)
    variant = large.program.variants[0]
    nested = variant_module(
        apply_cut(Tiny(), large.cut, large.tensors), CompiledVariant(variant.name, variant.sizes, variant.submodule)
    )
    expected = apply_cut(Tiny(), small.cut, small.tensors).state_dict()
    assert all(torch.equal(value, expected[name]) for name, value in nested.state_dict().items())


def test_fjord_with_an_optimizer_for_every_batch_has_no_momentum() -> None:
    method, state = tiny("fjord", levels=[1, 0.5], optimizer="batch")
    assert [dict(sent(method, state, index).program.extra_hyper) for index in (0, 1)] == [{"momentum": 0.0}] * 2
    plain, state = tiny("fjord", levels=[1, 0.5])
    assert not sent(plain, state, 0).program.extra_hyper


def test_origdrop_divides_by_those_who_held_an_entry_or_by_all() -> None:
    for divisor, share in (("holders", 1.0), ("devices", 0.5)):
        method, state = tiny("origdrop", levels=[1, 0.5], divisor=divisor)
        whole, half = sent(method, state, 0), sent(method, state, 1)
        new = method.aggregate(state, [trained(whole, 1.0), trained(half, 1.0)])
        before, after = state.tensors["first.weight"], new.tensors["first.weight"]
        np.testing.assert_allclose(after[:4], before[:4] + 1, rtol=1e-6)  # both devices held the first four channels
        np.testing.assert_allclose(after[4:], share * (before[4:] + 1), rtol=1e-6)
        assert np.isfinite(new.tensors["norm.running_var"]).all()


def test_model_whose_widths_are_no_beginnings_cannot_be_nested() -> None:
    with pytest.raises(PlanError, match=r"layer 'block1.1.*not its beginning.*heterofl"):
        build_method("fjord", build_model("densenet40"), {"levels": [1, 0.5]})


def test_turns_are_drawn_by_stream_or_go_through_every_variant() -> None:
    variants = (Variant("0_5"), Variant("0_25"))
    drawn = training_turns(DeviceProgram(variants=variants, turns="draw"), seed=1, round_index=2, device="a")
    counts = np.unique([turn.program for turn in drawn], return_counts=True)
    assert counts[0].tolist() == ["train", "train_0_25", "train_0_5"]
    assert min(counts[1]) > 50
    assert all(turn.advance_batch for turn in drawn)
    again = training_turns(DeviceProgram(variants=variants, turns="draw"), seed=1, round_index=2, device="a")
    other = training_turns(DeviceProgram(variants=variants, turns="draw"), seed=1, round_index=2, device="b")
    assert drawn == again != other
    each = training_turns(DeviceProgram(variants=variants, turns="each"), seed=1, round_index=2, device="a")
    assert [(turn.program, turn.advance_batch) for turn in each] == [("train_0_5", False), ("train_0_25", True)]
    assert [t.program for t in training_turns(DeviceProgram(), seed=1, round_index=0, device="a")] == ["train"]


def test_split_mix_atoms_are_disjoint_windows_with_nothing_between_them() -> None:
    method, state = tiny("split_mix", width=0.25)
    dense = Tiny.__new__(Tiny)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        dense = Tiny()
    assert [level.name for level in method.levels()] == ["4 atoms", "2 atoms", "1 atom"]
    for atom in range(4):
        columns = slice(2 * atom, 2 * atom + 2)
        assert np.array_equal(state.tensors[f"atoms.{atom}.first.weight"], dense.first.weight.detach().numpy()[columns])
        assert np.array_equal(
            state.tensors[f"atoms.{atom}.last.weight"], dense.last.weight.detach().numpy()[:, columns]
        )


def test_split_mix_averages_every_atom_over_those_who_trained_it() -> None:
    method, state = tiny("split_mix", width=0.25, levels=[2, 1])
    submodels = {device: sent(method, state, index, device) for device, index in (("a", 0), ("b", 0), ("c", 1))}
    updates = [trained(s, add, device=d) for (d, s), add in zip(submodels.items(), (1, 2, 4), strict=True)]
    after = method.aggregate(state, updates)
    for atom in range(4):
        name = f"atoms.{atom}.last.bias"
        own = [add for s, add in zip(submodels.values(), (1, 2, 4), strict=True) if atom in s.cut[""].atoms]
        assert after.tensors[name] == pytest.approx(state.tensors[name] + (np.mean(own) if own else 0), abs=1e-6)
        if not own:
            assert after.tensors[name].tobytes() == state.tensors[name].tobytes()
    program = submodels["a"].program
    assert [(v.name, v.submodule) for v in program.variants] == [("atom0", "atoms.0"), ("atom1", "atoms.1")]
    assert program.turns == "each"


def test_split_mix_evaluates_mean_logits_of_all_atoms() -> None:
    method, state = tiny("split_mix", width=0.25)
    models = method.eval_models(state)
    assert list(models) == ["server", "4 atoms", "2 atoms", "1 atom"]
    x = torch.randn(5, 4)
    logits = {n: apply_cut(Tiny(), m.cut, m.tensors).eval()(x) for n, m in models.items()}
    built = apply_cut(Tiny(), models["server"].cut, models["server"].tensors).eval()
    assert torch.allclose(logits["server"], torch.stack([atom(x) for atom in built.atoms]).mean(0), atol=1e-6)
    assert not torch.allclose(logits["server"], logits["1 atom"], atol=1e-3)


def test_split_mix_refuses_a_tensor_of_no_atom() -> None:
    method, state = tiny("split_mix", levels=[1])
    submodel = sent(method, state, 0)
    for name in ("atoms.1.last.bias", "last.bias", "atoms.x.last.bias"):
        with pytest.raises(UpdateRejected, match=rf"device pi-07.*'{name}' is of none of its 1 atoms"):
            method.aggregate(state, [Update("pi-07", submodel.level, submodel.cut, {name: np.zeros(3, np.float32)}, 1)])


def test_labels_a_device_owns_decide_which_rows_of_the_classifier_count() -> None:
    method, state = tiny("heterofl", levels=[1, 0.5])
    updates = [
        trained(sent(method, state, 1, "a"), 1, labels=(0, 2)),
        trained(sent(method, state, 0, "b"), 5, device="b"),
    ]
    after = method.aggregate(state, updates).tensors["last.bias"] - state.tensors["last.bias"]
    assert after.tolist() == pytest.approx([3.0, 5.0, 3.0], abs=1e-6)


def test_running_statistics_weigh_by_examples_and_weights_do_not_unless_asked() -> None:
    for asked, expected in ((False, 2.0), (True, 2.5)):
        method, state = tiny("heterofl", levels=[1], weight_by_examples=asked)
        updates = [
            trained(sent(method, state, 0, d), a, device=d, examples=n) for d, a, n in (("a", 1, 1), ("b", 3, 3))
        ]
        moved = method.aggregate(state, updates)
        assert moved.tensors["last.bias"] == pytest.approx(state.tensors["last.bias"] + expected, abs=1e-6)
        assert moved.tensors["norm.running_mean"] == pytest.approx(np.full(8, 2.5))


def test_static_statistics_of_a_level_are_its_own_devices() -> None:
    method, state = tiny("heterofl", levels=[1, 0.5])

    def gathered(index: int, device: str, mean: float) -> Update:
        submodel = sent(method, state, index, device)
        size = len(submodel.tensors["norm.running_mean"])
        return Update(device, submodel.level, submodel.cut, {"norm.running_mean": np.full(size, mean, np.float32)}, 2)

    after = state_with_statistics(method, state, [gathered(0, "a", 1.0), gathered(1, "b", 3.0), gathered(1, "c", 5.0)])
    restored = decode_state(encode_state(after), round_index=0)
    models = method.eval_models(restored)
    assert models["full"].tensors["norm.running_mean"].tolist() == [1.0] * 8
    assert models["width 0.5"].tensors["norm.running_mean"].tolist() == [4.0] * 4
    assert restored.tensors["norm.running_mean"].tolist() == [3.0] * 4 + [1.0] * 4
    trained_on = method.aggregate(restored, [trained(sent(method, restored, 0), 0.0)])
    assert not trained_on.extra


@pytest.mark.parametrize("name", WIDTH_METHODS)
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"levels": [0]}, ["$.method.levels: [0]", "above 0 up to 1"]),
        ({"levels": [1.5]}, ["$.method.levels: [1.5]"]),
        ({"levels": []}, ["$.method.levels: []"]),
        ({"levels": [0.5, 0.5]}, ["$.method.levels"]),
        ({"rounding": "up"}, ["$.method.rounding: 'up'", "ceil, round, floor"]),
        ({"width": 3}, ["$.method.width", "levels"]),
    ],
)
def test_bad_options_are_refused_with_path_and_value(name: str, options: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        tiny(name, **options)
    assert all(word in str(caught.value) for word in words)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"levels": [5]}, ["$.method.levels: 5", "up to"]),
        ({"levels": [1.5]}, ["$.method.levels: 1.5", "whole"]),
        ({"width": 1}, ["$.method.width: 1"]),
        ({"width": 0}, ["$.method.width: 0"]),
        ({"atoms": 0}, ["$.method.atoms: 0"]),
        ({"atoms": 2, "levels": [3]}, ["$.method.levels: 3", "up to 2"]),
    ],
)
def test_bad_options_of_split_mix_are_refused(options: dict[str, Any], words: list[str]) -> None:
    given = {"atoms": 4, **options} if "levels" in options else options
    with pytest.raises(ConfigError) as caught:
        tiny("split_mix", **given)
    assert all(word in str(caught.value) for word in words)


@pytest.mark.parametrize("name", ["heterofl", "fedrolex"])
def test_levels_that_cut_nothing_or_alike_are_refused_when_named_and_left_out_by_default(name: str) -> None:
    with pytest.raises(PlanError, match=rf"{name} level 0.95 leaves all channels of Tiny; lower it"):
        tiny(name, levels=[1, 0.95], rounding="ceil")
    with pytest.raises(PlanError, match=r"levels 0.25 and 0.24 leave the same channels of Tiny"):
        tiny(name, levels=[0.25, 0.24], rounding="ceil")
    assert [level.value for level in tiny(name, rounding="ceil")[0].levels()] == [1, 0.5, 0.25, 0.125]


@pytest.mark.parametrize("name", [*WIDTH_METHODS, "split_mix"])
def test_models_that_cannot_be_cut_are_refused_before_the_first_round(name: str) -> None:
    module = nn.Linear(4, 2)
    module.input_spec = InputSpec(layout="features", shape=(4,))
    with pytest.raises(PlanError, match=r"Linear can be cut in width"):
        build_method(name, module, {})
    with pytest.raises(PlanError, match=r"\$\.model\.input"):
        build_method(name, nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)), {})


@pytest.mark.parametrize("name", [*WIDTH_METHODS, "split_mix"])
def test_strange_levels_are_refused(name: str) -> None:
    method, _ = tiny(name)
    with pytest.raises(PlanError, match=rf"{name} has no level 'rank 1/4' \(4\); its levels are '"):
        method.cut_shape(Level("rank 1/4", 4, 0.25), round_index=0, device="a", seed=0)
