"""FedDF, DS-FL and Fed-ET: who teaches, who learns, what a device gets back, what a state carries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from coordinator.distillation.ensembles import consensus, sharpened, softmax
from coordinator.distillation.predictions import proxy_logits
from coordinator.methods import Method, State, Submodel, Update, build_method
from coordinator.methods.ds_fl import DSFL
from coordinator.methods.proxy_method import ProxyMethod
from coordinator.rounds.batch_norm_statistics import state_with_statistics
from coordinator.rounds.global_model import decode_state, encode_state
from coordinator.submodels.build import apply_cut
from edge.contracts.errors import ConfigError, UpdateRejected
from edge.contracts.manifest import InputSpec

NAMES = ("feddf", "ds_fl", "fed_et")
PROXY = {"proxy": "tests.federation.proxy_images:build", "proxy-examples": 32}


class Tiny(nn.Module):
    """Eight channels, a norm, a classifier of five."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Conv2d(3, 8, 2), nn.BatchNorm2d(8), nn.Linear(72, 5)
        self.input_spec = InputSpec(layout="chw", shape=(3, 4, 4))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.relu(self.norm(self.first(x))).flatten(1))


def tiny(name: str, **options: Any) -> tuple[ProxyMethod, State]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = Tiny()
    given = {key.replace("_", "-"): value for key, value in options.items()}
    method = build_method(name, module, {"levels": [1, 0.5], **PROXY, "distillation-steps": 4, **given})
    assert isinstance(method, ProxyMethod)
    return method, method.init()


def sent(method: Method, state: State, index: int, device: str = "") -> Submodel:
    return method.cut(state, method.levels()[index], round_index=state.round, device=device, seed=1)


def trained(submodel: Submodel, device: str, *, examples: int = 1, spread: float = 0.3) -> Update:
    """The update of a device on which everything trained moved, elsewhere on every device."""
    generator = np.random.default_rng(sum(device.encode()))
    tensors = {
        name: (value + generator.uniform(0, spread, value.shape)).astype(np.float32)
        for name, value in sorted(submodel.tensors.items())
        if value.dtype.kind == "f"
    }
    return Update(device, submodel.level, submodel.cut, tensors, examples)


def of_devices(method: Method, state: State, held: Mapping[str, int], **kept: Any) -> list[Update]:
    return [trained(sent(method, state, index, device), device, **kept) for device, index in held.items()]


def logits(method: ProxyMethod, submodel: Submodel, tensors: Mapping[str, np.ndarray]) -> np.ndarray:
    module = apply_cut(Tiny(), submodel.cut)
    values = {**submodel.tensors, **tensors}
    return proxy_logits(module, values, method.proxy_inputs(), norm="running", device="cpu", where="test")


def divergence(targets: np.ndarray, student: np.ndarray) -> float:
    return float((targets * (np.log(targets + 1e-30) - np.log(softmax(student)))).sum(axis=1).mean())


def same(a: Mapping[str, np.ndarray], b: Mapping[str, np.ndarray]) -> bool:
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)


def told(method: ProxyMethod, state: State, updates: Sequence[Update]) -> list[np.ndarray]:
    return [logits(method, sent(method, state, method.levels().index(u.level)), u.tensors) for u in updates]


# FedDF


def test_feddf_averages_inside_each_group_by_examples() -> None:
    method, state = tiny("feddf", distillation_steps=0)
    held = {"a": 0, "b": 0, "c": 1, "d": 1}
    updates = [
        trained(sent(method, state, index), device, examples=number)
        for (device, index), number in zip(held.items(), (1, 3, 2, 2), strict=True)
    ]
    after = method.aggregate(state, updates)
    for level, (one, other), (weight, rest) in ((0, updates[:2], (1, 3)), (1, updates[2:], (2, 2))):
        model = sent(method, after, level).tensors
        for name, value in one.tensors.items():
            expected = (weight * value.astype(np.float64) + rest * other.tensors[name].astype(np.float64)) / (
                weight + rest
            )
            assert np.array_equal(model[name], expected.astype(np.float32)), name


def test_feddf_students_learn_the_mean_logits_of_all_groups() -> None:
    held = {"a": 0, "b": 0, "c": 1}
    plain, state = tiny("feddf", distillation_steps=0)
    updates = of_devices(plain, state, held)
    method, _ = tiny("feddf", distillation_steps=150, distillation_lr=0.01)
    targets = softmax(np.mean([t.astype(np.float64) for t in told(method, state, updates)], axis=0))
    mean, learnt = plain.aggregate(state, updates), method.aggregate(state, updates)
    for level in (0, 1):
        before = divergence(targets, logits(method, sent(method, mean, level), {}))
        after = divergence(targets, logits(method, sent(method, learnt, level), {}))
        assert 0 <= after < before / 2


def test_feddf_level_without_devices_learns_too() -> None:
    method, state = tiny("feddf", distillation_steps=60, distillation_lr=0.01)
    updates = of_devices(method, state, {"a": 1, "b": 1})
    targets = softmax(np.mean(told(method, state, updates), axis=0))
    after = method.aggregate(state, updates)
    students = [logits(method, sent(method, s, 0), {}) for s in (state, after)]
    assert divergence(targets, students[1]) < divergence(targets, students[0])
    assert np.array_equal(after.tensors["first.weight"], sent(method, after, 0).tensors["first.weight"])


def test_feddf_of_identical_devices_does_not_depend_on_their_number() -> None:
    method, state = tiny("feddf")
    update = trained(sent(method, state, 0), "a")
    one, five = method.aggregate(state, [update]), method.aggregate(state, [update] * 5)
    assert all(np.allclose(one.tensors[n], five.tensors[n], rtol=0, atol=1e-7) for n in one.tensors)


# DS-FL


def test_ds_fl_gives_every_device_its_own_model_back() -> None:
    method, state = tiny("ds_fl", distillation_steps=0)
    updates = of_devices(method, state, {"a": 0, "b": 0, "c": 1})
    after = method.aggregate(state, updates)
    for update in updates:
        index = method.levels().index(update.level)
        assert all(
            np.array_equal(sent(method, after, index, update.device).tensors[n], v) for n, v in update.tensors.items()
        )
    assert same(after.tensors, state.tensors)  # no weights are averaged
    assert same(sent(method, after, 0, "stranger").tensors, state.tensors)
    assert same(sent(method, after, 0, "c").tensors, state.tensors)  # another level than its model's


def test_ds_fl_models_learn_the_sharpened_mean_probabilities() -> None:
    method, state = tiny("ds_fl", distillation_steps=150, distillation_batch=16, distillation_lr=0.05)
    updates = of_devices(method, state, {"a": 0, "b": 1, "c": 1})
    teachers = told(method, state, updates)
    targets = sharpened(np.mean([softmax(t) for t in teachers], axis=0), 0.1)
    after = method.aggregate(state, updates)
    for update, teacher in zip(updates, teachers, strict=True):
        own = sent(method, after, method.levels().index(update.level), update.device)
        assert divergence(targets, logits(method, own, {})) < divergence(targets, teacher) / 2
    for level in (0, 1):
        before, learnt = (logits(method, sent(method, s, level), {}) for s in (state, after))
        assert divergence(targets, learnt) < divergence(targets, before) / 2


def test_ds_fl_keeps_the_models_of_devices_that_were_not_selected() -> None:
    method, state = tiny("ds_fl")
    after = method.aggregate(state, of_devices(method, state, {"a": 0, "b": 1}))
    later = method.aggregate(after, of_devices(method, after, {"b": 1}))
    assert same(sent(method, after, 0, "a").tensors, sent(method, later, 0, "a").tensors)
    assert not same(sent(method, after, 1, "b").tensors, sent(method, later, 1, "b").tensors)


def test_ds_fl_device_of_another_level_leaves_its_old_model() -> None:
    method, state = tiny("ds_fl")
    after = method.aggregate(state, of_devices(method, state, {"a": 0}))
    later = method.aggregate(after, of_devices(method, after, {"a": 1}))
    kept = {name.split("/")[2] for name in later.extra if name.startswith("personal/a/")}
    assert kept == {method.levels()[1].name}


def test_ds_fl_without_personal_models_keeps_one_per_level() -> None:
    method, state = tiny("ds_fl", personal=False)
    after = method.aggregate(state, of_devices(method, state, {"a": 0, "b": 1}))
    assert after.extra.keys() == state.extra.keys()
    assert same(sent(method, after, 1, "b").tensors, sent(method, after, 1).tensors)
    assert not same(sent(method, after, 1).tensors, sent(method, state, 1).tensors)


def test_ds_fl_statistics_go_to_the_model_they_were_gathered_with() -> None:
    method, state = tiny("ds_fl")
    state = method.aggregate(state, of_devices(method, state, {"a": 0, "b": 1}))
    updates = []
    for device, index, value in (("a", 0, 1.0), ("b", 1, 2.0), ("stranger", 0, 4.0)):
        submodel = sent(method, state, index, device)
        buffers = {"norm.running_mean": np.full_like(submodel.tensors["norm.running_mean"], value)}
        updates.append(Update(device, submodel.level, submodel.cut, buffers, 1))
    after = state_with_statistics(method, state, updates)
    assert (sent(method, after, 0, "a").tensors["norm.running_mean"] == 1).all()
    assert (sent(method, after, 1, "b").tensors["norm.running_mean"] == 2).all()
    assert same(after.tensors, state.tensors)
    assert after.extra.keys() == state.extra.keys()


def test_ds_fl_says_what_the_papers_protocol_would_send() -> None:
    assert DSFL.paper_bytes(2000, 10) == 80_000


# Fed-ET


def test_fed_et_shares_the_representation_entry_by_entry() -> None:
    method, state = tiny("fed_et", distillation_steps=0, levels=[0.75, 0.5])
    updates = of_devices(method, state, {"a": 0, "b": 1, "c": 1})
    after = method.aggregate(state, updates)
    server, whole = after.tensors["last.weight"], state.tensors["last.weight"]
    wide, narrow = updates[0].tensors["last.weight"], [u.tensors["last.weight"] for u in updates[1:]]
    # A channel is nine columns behind the flatten: four are everybody's, two the wide device's, two nobody's.
    mean = (wide[:, :36].astype(np.float64) + narrow[0] + narrow[1]) / 3
    assert np.array_equal(server[:, :36], mean.astype(np.float32))
    assert np.array_equal(server[:, 36:54], wide[:, 36:])
    assert np.array_equal(server[:, 54:], whole[:, 54:])
    assert np.array_equal(after.tensors["first.weight"], state.tensors["first.weight"])
    small = sent(method, after, 1).tensors
    assert np.array_equal(small["last.weight"], server[:, :36])
    means = (updates[1].tensors["first.weight"].astype(np.float64) + updates[2].tensors["first.weight"]) / 2
    assert np.array_equal(small["first.weight"], means.astype(np.float32))


def test_fed_et_server_learns_the_consensus_and_passes_its_representation_on() -> None:
    method, state = tiny("fed_et", distillation_steps=200, distillation_batch=16, distillation_lr=0.05, levels=[0.5])
    updates = of_devices(method, state, {"a": 0, "b": 0, "c": 0})
    targets = consensus(told(method, state, updates), 0.05)
    after = method.aggregate(state, updates)
    found = [
        (logits(method, method.eval_models(s)["server"], {}).argmax(1) == targets.labels).mean() for s in (state, after)
    ]
    assert found[1] > 0.9 > found[0]
    small = sent(method, after, 0).tensors
    assert np.array_equal(small["last.weight"], after.tensors["last.weight"][:, :36])
    assert np.array_equal(small["last.bias"], after.tensors["last.bias"])


def test_fed_et_without_transfer_leaves_small_models_to_their_groups() -> None:
    method, state = tiny("fed_et", transfer=False, levels=[0.75, 0.5])
    updates = of_devices(method, state, {"a": 0})
    after = method.aggregate(state, updates)
    assert all(np.array_equal(sent(method, after, 0).tensors[n], v) for n, v in updates[0].tensors.items())
    assert same(sent(method, after, 1).tensors, sent(method, state, 1).tensors)


def test_fed_et_representation_may_be_named_and_unknown_ones_are_refused() -> None:
    method, state = tiny("fed_et", representation=["first", "n*"], distillation_steps=0, levels=[0.5])
    update = of_devices(method, state, {"a": 0})[0]
    after = method.aggregate(state, [update])
    assert np.array_equal(after.tensors["first.bias"][:4], update.tensors["first.bias"])
    assert np.array_equal(after.tensors["norm.weight"][:4], update.tensors["norm.weight"])
    assert np.array_equal(after.tensors["last.weight"], state.tensors["last.weight"])
    with pytest.raises(ConfigError, match=r"\$\.method\.representation: 'fc'.*first, norm, last"):
        tiny("fed_et", representation="fc")


def test_fed_et_devices_never_get_the_servers_model() -> None:
    method, state = tiny("fed_et", levels=[1, 0.5])
    after = method.aggregate(state, of_devices(method, state, {"a": 0, "b": 1}))
    assert not np.array_equal(sent(method, after, 0).tensors["first.weight"], after.tensors["first.weight"])


# All of them


@pytest.mark.parametrize("name", NAMES)
def test_state_survives_a_checkpoint_and_goes_on_with_the_same_bits(name: str) -> None:
    method, state = tiny(name)
    held = {"a": 0, "b": 1, "c": 1}
    after = method.aggregate(state, of_devices(method, state, held))
    restored = decode_state(encode_state(after), round_index=1)
    again, _ = tiny(name)
    first = method.aggregate(after, of_devices(method, after, held))
    second = again.aggregate(restored, of_devices(again, restored, held))
    assert encode_state(first) == encode_state(second)


@pytest.mark.parametrize("name", NAMES)
def test_threads_of_the_process_do_not_change_a_bit(name: str) -> None:
    method, state = tiny(name)
    updates = of_devices(method, state, {"a": 0, "b": 1})
    before = torch.get_num_threads()
    found = []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            found.append(encode_state(method.aggregate(state, updates)))
    finally:
        torch.set_num_threads(before)
    assert found[0] == found[1]


@pytest.mark.parametrize("name", NAMES)
def test_batches_follow_the_round_and_the_seed(name: str) -> None:
    method, state = tiny(name)
    updates = of_devices(method, state, {"a": 0, "b": 1})
    now, later = (method.aggregate(State(state.tensors, state.extra, number), updates) for number in (0, 1))
    assert not same(now.tensors, later.tensors)
    other, _ = tiny(name)
    other.proxy_inputs()
    other.proxy.seed = 9
    assert not same(now.tensors, other.aggregate(state, updates).tensors)


@pytest.mark.parametrize("name", NAMES)
def test_statistics_are_those_of_each_levels_own_devices(name: str) -> None:
    method, state = tiny(name, **({"personal": False} if name == "ds_fl" else {}))
    updates = []
    for device, index, value in (("a", 0, 1.0), ("b", 1, 2.0), ("c", 1, 4.0)):
        submodel = sent(method, state, index)
        buffers = {"norm.running_mean": np.full_like(submodel.tensors["norm.running_mean"], value)}
        updates.append(Update(device, submodel.level, submodel.cut, buffers, 1))
    after = state_with_statistics(method, state, updates)
    assert (sent(method, after, 0).tensors["norm.running_mean"] == 1).all()
    assert (sent(method, after, 1).tensors["norm.running_mean"] == 3).all()
    assert np.array_equal(
        sent(method, after, 1).tensors["first.weight"], sent(method, state, 1).tensors["first.weight"]
    )


@pytest.mark.parametrize("name", NAMES)
def test_levels_may_leave_out_the_whole_model(name: str) -> None:
    method, state = tiny(name, levels=[0.5, 0.25])
    after = method.aggregate(state, of_devices(method, state, {"a": 0, "b": 1}))
    held = 8 if name == "fed_et" else 4
    assert after.tensors["first.weight"].shape[0] == held
    for submodel in method.eval_models(after).values():
        assert np.isfinite(logits(method, submodel, {})).all()


@pytest.mark.parametrize("name", NAMES)
def test_update_of_another_level_is_refused(name: str) -> None:
    method, state = tiny(name)
    good = trained(sent(method, state, 1), "pi-07")
    bad = Update("pi-07", method.levels()[0], {}, good.tensors, 1)
    with pytest.raises(UpdateRejected, match=r"pi-07.*level 'full'"):
        method.aggregate(state, [bad])


@pytest.mark.parametrize("name", NAMES)
def test_without_a_proxy_set_the_first_round_is_refused_with_the_option(name: str) -> None:
    method = build_method(name, Tiny(), {"levels": [0.5]})
    state = method.init()
    with pytest.raises(ConfigError, match=r"\$\.method\.proxy: "):
        method.aggregate(state, of_devices(method, state, {"a": 0}))


@pytest.mark.parametrize(
    "options",
    [
        {"distillation-lr": 0},
        {"distillation-steps": -1},
        {"distillation-batch": 1},
        {"distillation-optimizer": "rprop"},
    ],
    ids=repr,
)
@pytest.mark.parametrize("name", NAMES)
def test_impossible_distillation_is_refused_with_its_path(name: str, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=rf"\$\.method\.{next(iter(options))}"):
        build_method(name, Tiny(), {**PROXY, **options})
