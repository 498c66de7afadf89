"""What a method makes of updates: the next state, its models, and nothing kept beside the state."""

from __future__ import annotations

import numpy as np
import torch

from coordinator.conformance.findings import expect
from coordinator.conformance.methods.subject import Subject, cut, differing, same_bits, trained_updates, untrained
from coordinator.distillation.proxy import DistilsOnProxy
from coordinator.methods.method import Method
from coordinator.rounds.global_model import decode_state, encode_state
from coordinator.submodels.build import apply_cut


def _mean(subject: Subject) -> Method:
    """The subject as the mean it takes; what is distilled from devices' predictions takes a proxy set."""
    method = subject.made()
    return subject.made(method.without_distillation) if isinstance(method, DistilsOnProxy) else method


def state_is_left_alone(subject: Subject) -> str:
    """Cutting, aggregating and evaluating change neither the state nor the updates that they are given."""
    method, state = subject.built()
    before = {key: value.copy() for key, value in state.tensors.items()}
    updates = [untrained(method, state, i) for i in range(len(method.levels()))]
    copies = [{key: value.copy() for key, value in update.tensors.items()} for update in updates]
    method.eval_models(method.refresh(method.aggregate(state, updates)))
    expect(same_bits(state.tensors, before), f"{differing(state.tensors, before)} of the state were written to")
    for update, copy in zip(updates, copies, strict=True):
        expect(same_bits(update.tensors, copy), f"{differing(update.tensors, copy)} of an update were written to")
    return f"{len(before)} tensors, {len(updates)} updates"


def untrained_devices_change_nothing(subject: Subject) -> str:
    """Devices of the largest level that moved nothing give back the model, to the bit, one round on."""
    method = _mean(subject)
    state = method.init()
    updates = [untrained(method, state, 0, device, examples) for device, examples in (("a", 1), ("b", 7))]
    after = method.refresh(method.aggregate(state, updates))
    expect(after.round == 1, f"the state after round 0 says {after.round} rounds, 1 expected")
    expect(same_bits(after.tensors, state.tensors), f"{differing(after.tensors, state.tensors)} have moved")
    return "the model comes back"


def equal_devices_count_as_one(subject: Subject) -> str:
    """Five devices that send the same are one that sends it, within 1e-7."""
    method, state = subject.built()
    for index, level in enumerate(method.levels()):
        one = method.aggregate(state, [untrained(method, state, index)]).tensors
        five = method.aggregate(state, [untrained(method, state, index) for _ in range(5)]).tensors
        odd = [k for k in one if not np.allclose(one[k], five[k], rtol=0, atol=1e-7)]
        expect(not odd, f"level '{level.name}': {', '.join(odd[:5])} depend on how many devices send the same")
    return f"{len(method.levels())} levels"


def new_state_has_the_old_shapes(subject: Subject) -> str:
    """The next state has the names, shapes and types of the one before."""
    method, state = subject.built()
    after = method.refresh(method.aggregate(state, [untrained(method, state, len(method.levels()) - 1)]))
    old, new = ({k: (v.shape, v.dtype) for k, v in s.tensors.items()} for s in (state, after))
    odd = sorted(name for name in {*old, *new} if old.get(name) != new.get(name))
    expect(not odd, f"{', '.join(odd[:5])} have other shapes or types after a round")
    return f"{len(new)} tensors"


def evaluated_models_run(subject: Subject) -> str:
    """``eval_models`` has ``server``, the state itself, and every model in it runs."""
    method, state = subject.built()
    models = method.eval_models(state)
    expect("server" in models, f"eval_models has {', '.join(models)}: 'server' expected")
    is_state = same_bits(models["server"].tensors, state.tensors)
    expect(is_state, f"server differs from the state in {differing(models['server'].tensors, state.tensors)}")
    for label, submodel in models.items():
        built = apply_cut(subject.module(), submodel.cut, submodel.tensors).eval()
        expect(bool(torch.isfinite(built(subject.batch())).all()), f"outputs of '{label}' are not finite")
    return ", ".join(models)


def whole_state_is_in_the_state(subject: Subject) -> str:
    """Another instance goes on from the checkpoint with the same bits: a round keeps nothing in the object.

    A coordinator that is killed and resumed has nothing else.
    """
    method, other = _mean(subject), _mean(subject)
    state = method.init()
    once = method.refresh(method.aggregate(state, trained_updates(method, state)))
    stored = decode_state(encode_state(once), round_index=once.round)
    for index, level in enumerate(method.levels()):
        one, two = cut(method, once, index).tensors, cut(other, stored, index).tensors
        expect(same_bits(one, two), f"level '{level.name}': a resumed run is sent different {differing(one, two)}")
    one = method.refresh(method.aggregate(once, trained_updates(method, once))).tensors
    two = other.refresh(other.aggregate(stored, trained_updates(other, stored))).tensors
    expect(same_bits(one, two), f"a resumed run ends with different {differing(one, two)}")
    return "two rounds, one of them resumed"
