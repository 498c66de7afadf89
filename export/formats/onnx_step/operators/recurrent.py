"""The loop of an LSTM layer, unrolled: per time step one Gemm and a few small nodes, the rest once for all steps.

A hidden matrix of two factors takes two products per step instead.

Legend: T steps, B batch, H hidden units, N = T * B rows, row t * B + b.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import fx

from export.formats.onnx_step.translation import Translation, translates


@translates("apportion.lstm_layer")
def lstm_layer(
    t: Translation, node: fx.Node, x: fx.Node, w_ih: fx.Node, w_hh: fx.Node, bias: fx.Node | None
) -> tuple[str, ...]:
    hidden = t.fixed_shape(w_hh)[0]
    recurrent_HG = t.make.node("Transpose", _sigmoids_first(t, t.value(w_hh), hidden), perm=[1, 0])
    return _forward(
        t, x, w_ih, bias, hidden, lambda output, projected: t.make.node("Gemm", output, recurrent_HG, projected)
    )


@translates("apportion.lstm_factor_layer")
def lstm_factor_layer(
    t: Translation, node: fx.Node, x: fx.Node, w_ih: fx.Node, u_hh: fx.Node, v_hh: fx.Node, bias: fx.Node | None
) -> tuple[str, ...]:
    make, hidden = t.make.node, t.fixed_shape(v_hh)[0]
    u_RG = make("Transpose", _sigmoids_first(t, t.value(u_hh), hidden), perm=[1, 0])
    v_HR = make("Transpose", t.value(v_hh), perm=[1, 0])
    return _forward(
        t, x, w_ih, bias, hidden, lambda output, projected: make("Gemm", make("MatMul", output, v_HR), u_RG, projected)
    )


def _forward(
    t: Translation, x: fx.Node, w_ih: fx.Node, bias: fx.Node | None, hidden: int, recur: Callable[[str, str], str]
) -> tuple[str, ...]:
    """``recur`` adds to a step's projected inputs, [B, 4H], what the output before it, [B, H], brings."""
    make, steps = t.make.node, t.shape(x)[0]
    inputs = make("Reshape", t.value(x), [-1, t.fixed_shape(w_ih)[0]])
    # The three sigmoid gates side by side: i, f, o, g.
    operands = [inputs, _sigmoids_first(t, t.value(w_ih), hidden)]
    if bias is not None:
        operands.append(_sigmoids_first(t, t.value(bias), hidden))
    projected_NG = make("Gemm", *operands, transB=1)
    cell = output = ""
    kept: list[list[str]] = [[] for _ in range(7)]
    for projected in step_rows(t, projected_NG, steps):
        gates = recur(output, projected) if output else projected
        before, candidate = t.make.node_with_outputs("Split", 2, gates, [3 * hidden, hidden], axis=1)
        gate_i, gate_f, gate_o = t.make.node_with_outputs("Split", 3, make("Sigmoid", before), axis=1, num_outputs=3)
        gate_g = make("Tanh", candidate)
        fresh = make("Mul", gate_i, gate_g)
        cell = make("Add", make("Mul", gate_f, cell), fresh) if cell else fresh
        tanh_cell = make("Tanh", cell)
        output = make("Mul", gate_o, tanh_cell)
        for column, value in zip(kept, (output, cell, gate_i, gate_f, gate_g, gate_o, tanh_cell), strict=True):
            column.append(value)
    return tuple(joined(t, column, steps, hidden) for column in kept)


@translates("apportion.lstm_layer_backward")
def lstm_layer_backward(
    t: Translation,
    node: fx.Node,
    dy: fx.Node,
    dcells: fx.Node | None,
    cells: fx.Node,
    gate_i: fx.Node,
    gate_f: fx.Node,
    gate_g: fx.Node,
    gate_o: fx.Node,
    tanh_cells: fx.Node,
    w_hh: fx.Node,
) -> str:
    saved = (cells, gate_i, gate_f, gate_g, gate_o, tanh_cells)
    return _backward(t, dy, dcells, saved, lambda later, dy_step: t.make.node("Gemm", later, t.value(w_hh), dy_step))


@translates("apportion.lstm_factor_layer_backward")
def lstm_factor_layer_backward(
    t: Translation,
    node: fx.Node,
    dy: fx.Node,
    dcells: fx.Node | None,
    cells: fx.Node,
    gate_i: fx.Node,
    gate_f: fx.Node,
    gate_g: fx.Node,
    gate_o: fx.Node,
    tanh_cells: fx.Node,
    u_hh: fx.Node,
    v_hh: fx.Node,
) -> str:
    make = t.make.node
    return _backward(
        t,
        dy,
        dcells,
        (cells, gate_i, gate_f, gate_g, gate_o, tanh_cells),
        lambda later, dy_step: make("Gemm", make("MatMul", later, t.value(u_hh)), t.value(v_hh), dy_step),
    )


def _backward(
    t: Translation,
    dy: fx.Node,
    dcells: fx.Node | None,
    saved: tuple[fx.Node, ...],
    recur: Callable[[str, str], str],
) -> str:
    """With dh, dc the gradients of one step's output and cell: gates i, f, g get dc times a slope, gate o gets dh.

    ``recur`` adds to a step's dy what the gates' gradients of the step behind it bring.
    """
    make = t.make.node
    cells, gate_i, gate_f, gate_g, gate_o, tanh_cells = saved
    steps, _, hidden = t.shape(cells)
    i, f, g, o, tanh_c, c = (
        make("Reshape", t.value(v), [-1, hidden]) for v in (gate_i, gate_f, gate_g, gate_o, tanh_cells, cells)
    )
    batch = make("Shape", t.value(cells), start=1, end=2)
    first = make("Expand", t.scalar(0.0), make("Concat", batch, [hidden], axis=0))
    all_but_last = make("Slice", c, [0], make("Mul", batch, [steps - 1]), [0])
    previous = make("Concat", first, all_but_last, axis=0) if steps > 1 else first
    slopes = [
        make("Mul", g, sigmoid_slope(t, i)),
        make("Mul", previous, sigmoid_slope(t, f)),
        make("Mul", i, tanh_slope(t, g)),
    ]
    slopes_N3H = make("Concat", *[make("Unsqueeze", s, [1]) for s in slopes], axis=1)
    output_slope = make("Mul", tanh_c, sigmoid_slope(t, o))
    cell_slope = make("Mul", o, tanh_slope(t, tanh_c))
    columns = [step_rows(t, v, steps) for v in (slopes_N3H, output_slope, cell_slope, f)]
    columns.append(step_rows(t, make("Reshape", t.value(dy), [-1, hidden]), steps))
    extra = [] if dcells is None else step_rows(t, make("Reshape", t.value(dcells), [-1, hidden]), steps)
    results: list[str] = [""] * steps
    dh = dc = ""
    for step in reversed(range(steps)):
        slope_B3H, slope_o, slope_c, _, dy_step = (column[step] for column in columns)
        dh = recur(results[step + 1], dy_step) if step + 1 < steps else dy_step
        from_output = make("Mul", dh, slope_c)
        dc = make("Add", make("Mul", dc, columns[3][step + 1]), from_output) if dc else from_output
        if extra:
            dc = make("Add", dc, extra[step])
        first_three = make("Mul", make("Unsqueeze", dc, [1]), slope_B3H)
        last = make("Unsqueeze", make("Mul", dh, slope_o), [1])
        results[step] = make("Reshape", make("Concat", first_three, last, axis=1), [-1, 4 * hidden])
    return joined(t, results, steps, 4 * hidden)


def _sigmoids_first(t: Translation, value: str, hidden: int) -> str:
    """Rows i, f, g, o of a weight or bias in the order i, f, o, g."""
    first, candidate, output = t.make.node_with_outputs("Split", 3, value, [2 * hidden, hidden, hidden], axis=0)
    return t.make.node("Concat", first, output, candidate, axis=0)


def step_rows(t: Translation, value_N: str, steps: int) -> tuple[str, ...]:
    """The rows of each time step, [B, ...]."""
    if steps == 1:
        return (value_N,)
    return t.make.node_with_outputs("Split", steps, value_N, axis=0, num_outputs=steps)


def joined(t: Translation, values: list[str], steps: int, width: int) -> str:
    """[T, B, width] of one [B, width] per step."""
    rows = t.make.node("Concat", *values, axis=0) if steps > 1 else values[0]
    return t.make.node("Reshape", rows, [steps, -1, width])


def sigmoid_slope(t: Translation, s: str) -> str:
    """Derivative of the sigmoid from its value: s (1 - s)."""
    return t.make.node("Mul", s, t.make.node("Sub", t.scalar(1.0), s))


def tanh_slope(t: Translation, value: str) -> str:
    """Derivative of tanh from its value: 1 - v^2."""
    return t.make.node("Sub", t.scalar(1.0), t.make.node("Mul", value, value))
