"""The loop of a GRU layer, unrolled like that of the LSTM: one Gemm and a few small nodes per time step.

Legend: T steps, B batch, H hidden units, N = T * B rows, row t * B + b; r, z, n, c as in :mod:`export.gated_recurrent`.
"""

from __future__ import annotations

from torch import fx

from export.formats.onnx_step.operators.recurrent import joined, sigmoid_slope, step_rows, tanh_slope
from export.formats.onnx_step.translation import Translation, translates


@translates("apportion.gru_layer")
def gru_layer(
    t: Translation,
    node: fx.Node,
    x: fx.Node,
    w_ih: fx.Node,
    w_hh: fx.Node,
    b_ih: fx.Node | None,
    b_hh: fx.Node | None,
) -> tuple[str, ...]:
    make = t.make.node
    steps, hidden = t.shape(x)[0], t.fixed_shape(w_hh)[0]
    operands = [make("Reshape", t.value(x), [-1, t.fixed_shape(w_ih)[0]]), t.value(w_ih)]
    projected_NG = make("Gemm", *operands, *([] if b_ih is None else [t.value(b_ih)]), transB=1)
    gates_N2H, candidates = t.make.node_with_outputs("Split", 2, projected_NG, [2 * hidden, hidden], axis=1)
    recurrent_HG = make("Transpose", t.value(w_hh), perm=[1, 0])
    bias = [] if b_hh is None else [t.value(b_hh)]
    output = _zero_state(t, t.value(x), hidden)
    kept: list[list[str]] = [[] for _ in range(5)]
    columns = zip(step_rows(t, gates_N2H, steps), step_rows(t, candidates, steps), strict=True)
    for gates, candidate in columns:
        state = make("Gemm", output, recurrent_HG, *bias)
        before, c = t.make.node_with_outputs("Split", 2, state, [2 * hidden, hidden], axis=1)
        both = make("Sigmoid", make("Add", gates, before))
        gate_r, gate_z = t.make.node_with_outputs("Split", 2, both, axis=1, num_outputs=2)
        gate_n = make("Tanh", make("Add", candidate, make("Mul", gate_r, c)))
        output = make("Add", gate_n, make("Mul", gate_z, make("Sub", output, gate_n)))
        for column, value in zip(kept, (output, gate_r, gate_z, gate_n, c), strict=True):
            column.append(value)
    return tuple(joined(t, column, steps, hidden) for column in kept)


@translates("apportion.gru_layer_backward")
def gru_layer_backward(
    t: Translation,
    node: fx.Node,
    dy: fx.Node,
    y: fx.Node,
    gate_r: fx.Node,
    gate_z: fx.Node,
    gate_n: fx.Node,
    c: fx.Node,
    w_hh: fx.Node,
) -> tuple[str, ...]:
    """Every gate's gradient is dh, the gradient of the step's output, times a slope known for all steps at once."""
    make = t.make.node
    steps, _, hidden = t.shape(y)
    r, z, n, pre, out = (make("Reshape", t.value(v), [-1, hidden]) for v in (gate_r, gate_z, gate_n, c, y))
    start = _zero_state(t, t.value(y), hidden)
    previous = start
    if steps > 1:
        rows = make("Mul", make("Shape", t.value(y), start=1, end=2), [steps - 1])
        previous = make("Concat", start, make("Slice", out, [0], rows, [0]), axis=0)
    slope_n = make("Mul", make("Sub", t.scalar(1.0), z), tanh_slope(t, n))
    slope_r = make("Mul", make("Mul", slope_n, pre), sigmoid_slope(t, r))
    slope_z = make("Mul", make("Sub", previous, n), sigmoid_slope(t, z))
    to_state = [make("Unsqueeze", s, [1]) for s in (slope_r, slope_z, make("Mul", slope_n, r))]
    slopes = step_rows(t, make("Concat", *to_state, axis=1), steps)
    keeps, given = step_rows(t, z, steps), step_rows(t, make("Reshape", t.value(dy), [-1, hidden]), steps)
    state_rows, dh_rows = [""] * steps, [""] * steps
    dh = ""
    for step in reversed(range(steps)):
        if step + 1 < steps:
            through_gates = make("Gemm", state_rows[step + 1], t.value(w_hh), given[step])
            dh = make("Add", through_gates, make("Mul", dh, keeps[step + 1]))
        else:
            dh = given[step]
        dh_rows[step] = dh
        product = make("Mul", make("Unsqueeze", dh, [1]), slopes[step])
        state_rows[step] = make("Reshape", product, [-1, 3 * hidden])
    dh_N = make("Concat", *dh_rows, axis=0) if steps > 1 else dh_rows[0]
    from_input = make("Concat", *[make("Mul", dh_N, s) for s in (slope_r, slope_z, slope_n)], axis=1)
    return make("Reshape", from_input, [steps, -1, 3 * hidden]), joined(t, state_rows, steps, 3 * hidden)


def _zero_state(t: Translation, sequence_TB: str, hidden: int) -> str:
    """Zeros [B, H]."""
    batch = t.make.node("Shape", sequence_TB, start=1, end=2)
    return t.make.node("Expand", t.scalar(0.0), t.make.node("Concat", batch, [hidden], axis=0))
