// An LSTM layer in one direction from zero states, and its gradient. Gates in torch's order i, f, g, o.
// Legend: T steps, B batch, I inputs, H hidden units.
#include <algorithm>
#include <vector>

#include "kernels.h"
#include "products.h"
#include "simd.h"
#include "threads.h"

namespace apportion {
namespace {

const int64_t kNoSegment[] = {0};

// Examples of a batch go through all steps without the others: so many are a chunk.
constexpr int64_t kExamples = 16;

// lstm(x [T, B, I], w_ih [4H, I], w_hh [4H, H], bias? [4H]) -> y, cells, i, f, g, o, tanh(cells), each [T, B, H]
void lstm(Call& call) {
  const int64_t T = call.size(0, 0), B = call.size(0, 1), I = call.size(0, 2), H = call.size(2, 1), G = 4 * H;
  for (int k = 4; k < 11; ++k)
    if (!call.resize(k, {T, B, H})) return;
  const float *x = call.in(0), *bias = call.in_or_null(3);
  const int64_t width = padded_columns(G);
  std::vector<float> recurrent(H * width), inputs(I * width);
  const Right by_state = pack_all(call.in(2), 1, H, H, G, recurrent.data());
  const Right by_input = pack_all(call.in(1), 1, I, I, G, inputs.data());
  float *y = call.out(4), *cells = call.out(5), *tanh_cells = call.out(10);
  float* kept[4] = {call.out(6), call.out(7), call.out(8), call.out(9)};
  const int64_t *x_rows = offsets(0, B, I), *gate_rows = offsets(1, B, G), *y_rows = offsets(2, B, H);
  for_ranges(B, kExamples, [&](int64_t begin, int64_t end) {
    const int64_t count = end - begin;
    float* gates = scratch(0, count * G);
    for (int64_t t = 0; t < T; ++t) {
      const int64_t at = (t * B + begin) * H;
      if (bias)
        for (int64_t b = 0; b < count; ++b) std::copy_n(bias, G, gates + b * G);
      multiply({x + (t * B + begin) * I, x_rows, 1, kNoSegment, 1, I}, count, by_input, G, gates, gate_rows, bias != nullptr);
      if (t > 0)
        multiply({y + at - B * H, y_rows, 1, kNoSegment, 1, H}, count, by_state, G, gates, gate_rows, true);
      for (int64_t b = 0; b < count; ++b)
        for_vectors(H, [&](int64_t h, int64_t n) {
          const float* gate = gates + b * G + h;
          const int64_t to = at + b * H + h;
          const Vector i = sigmoid(load_n(gate, n)), f = sigmoid(load_n(gate + H, n));
          const Vector g = hyperbolic_tangent(load_n(gate + 2 * H, n)), o = sigmoid(load_n(gate + 3 * H, n));
          const Vector previous = t > 0 ? load_n(cells + to - B * H, n) : Vector{};
          const Vector cell = f * previous + i * g, squashed = hyperbolic_tangent(cell);
          store_n(kept[0] + to, i, n), store_n(kept[1] + to, f, n), store_n(kept[2] + to, g, n), store_n(kept[3] + to, o, n);
          store_n(cells + to, cell, n), store_n(tanh_cells + to, squashed, n), store_n(y + to, o * squashed, n);
        });
    }
  });
}

// lstm_backward(dy [T, B, H], dcells?, cells, i, f, g, o, tanh(cells), w_hh) -> gradient of the gates' inputs [T, B, 4H]
void lstm_backward(Call& call) {
  const int64_t T = call.size(0, 0), B = call.size(0, 1), H = call.size(0, 2), G = 4 * H;
  if (!call.resize(9, {T, B, G})) return;
  const float *dy = call.in(0), *dcells = call.in_or_null(1), *cells = call.in(2), *tanh_cells = call.in(7);
  const float *in_i = call.in(3), *in_f = call.in(4), *in_g = call.in(5), *in_o = call.in(6);
  float* dgates = call.out(9);
  std::vector<float> weights(G * padded_columns(H));
  const Right by_gate = pack_all(call.in(8), H, 1, G, H, weights.data());
  const int64_t *gate_rows = offsets(0, B, G), *state_rows = offsets(1, B, H);
  for_ranges(B, kExamples, [&](int64_t begin, int64_t end) {
    const int64_t count = end - begin;
    float *dh = scratch(0, 2 * count * H), *dc = dh + count * H;
    std::fill_n(dc, count * H, 0.0f);
    for (int64_t t = T - 1; t >= 0; --t) {
      const int64_t at = (t * B + begin) * H;
      std::copy_n(dy + at, count * H, dh);
      if (t + 1 < T)
        multiply({dgates + ((t + 1) * B + begin) * G, gate_rows, 1, kNoSegment, 1, G}, count, by_gate, H, dh, state_rows,
                 true);
      for (int64_t b = 0; b < count; ++b)
        for_vectors(H, [&](int64_t h, int64_t n) {
          const int64_t local = b * H + h, from = at + local;
          const Vector i = load_n(in_i + from, n), f = load_n(in_f + from, n), g = load_n(in_g + from, n);
          const Vector o = load_n(in_o + from, n), squashed = load_n(tanh_cells + from, n), one = splat(1.0f);
          const Vector back = load_n(dh + local, n), previous = t > 0 ? load_n(cells + from - B * H, n) : Vector{};
          Vector cell = load_n(dc + local, n) + back * o * (one - squashed * squashed);
          if (dcells) cell += load_n(dcells + from, n);
          float* to = dgates + (t * B + begin + b) * G + h;
          store_n(to, cell * g * i * (one - i), n);
          store_n(to + H, cell * previous * f * (one - f), n);
          store_n(to + 2 * H, cell * i * (one - g * g), n);
          store_n(to + 3 * H, back * squashed * o * (one - o), n);
          store_n(dc + local, cell * f, n);
        });
    }
  });
}

APPORTION_KERNEL("lstm", lstm);
APPORTION_KERNEL("lstm_backward", lstm_backward);

}  // namespace
}  // namespace apportion
