// An LSTM layer in one direction from zero states, and its gradient. Gates in torch's order i, f, g, o.
// Legend: T steps, B batch, I inputs, H hidden units.
#include <algorithm>
#include <vector>

#include "kernels.h"
#include "products.h"
#include "simd.h"

namespace apportion {
namespace {

const int64_t kNoSegment[] = {0};

// lstm(x [T, B, I], w_ih [4H, I], w_hh [4H, H], bias? [4H]) -> y, cells, i, f, g, o, tanh(cells), each [T, B, H]
void lstm(Call& call) {
  const int64_t T = call.size(0, 0), B = call.size(0, 1), I = call.size(0, 2), H = call.size(2, 1), G = 4 * H;
  for (int k = 4; k < 11; ++k)
    if (!call.resize(k, {T, B, H})) return;
  const float* bias = call.in_or_null(3);
  const int64_t width = padded_columns(G);
  // Kept apart from the scratch buffers, which the products below use.
  std::vector<float> recurrent(H * width), inputs(I * width), gates(B * G);
  pack(call.in(2), 1, H, H, G, recurrent.data());
  pack(call.in(1), 1, I, I, G, inputs.data());
  float *y = call.out(4), *cells = call.out(5), *tanh_cells = call.out(10);
  float* kept[4] = {call.out(6), call.out(7), call.out(8), call.out(9)};
  const std::vector<float> zeros(B * H, 0.0f);
  for (int64_t t = 0; t < T; ++t) {
    if (bias)
      for (int64_t b = 0; b < B; ++b) std::copy_n(bias, G, gates.data() + b * G);
    const int64_t at = t * B * H;
    multiply({call.in(0) + t * B * I, offsets(0, B, I), 1, kNoSegment, 1, I}, B, inputs.data(), width, G, gates.data(),
             offsets(1, B, G), bias != nullptr);
    if (t > 0)
      multiply({y + at - B * H, offsets(2, B, H), 1, kNoSegment, 1, H}, B, recurrent.data(), width, G, gates.data(),
               offsets(1, B, G), true);
    const float* previous = t > 0 ? cells + at - B * H : zeros.data();
    for (int64_t b = 0; b < B; ++b)
      for_vectors(H, [&](int64_t h, int64_t n) {
        const float* gate = gates.data() + b * G + h;
        const int64_t to = at + b * H + h;
        const Vector i = sigmoid(load_n(gate, n)), f = sigmoid(load_n(gate + H, n));
        const Vector g = hyperbolic_tangent(load_n(gate + 2 * H, n)), o = sigmoid(load_n(gate + 3 * H, n));
        const Vector cell = f * load_n(previous + b * H + h, n) + i * g, squashed = hyperbolic_tangent(cell);
        store_n(kept[0] + to, i, n), store_n(kept[1] + to, f, n), store_n(kept[2] + to, g, n), store_n(kept[3] + to, o, n);
        store_n(cells + to, cell, n), store_n(tanh_cells + to, squashed, n), store_n(y + to, o * squashed, n);
      });
  }
}

// lstm_backward(dy [T, B, H], dcells?, cells, i, f, g, o, tanh(cells), w_hh) -> gradient of the gates' inputs [T, B, 4H]
void lstm_backward(Call& call) {
  const int64_t T = call.size(0, 0), B = call.size(0, 1), H = call.size(0, 2), G = 4 * H;
  if (!call.resize(9, {T, B, G})) return;
  const float *dy = call.in(0), *dcells = call.in_or_null(1), *cells = call.in(2), *tanh_cells = call.in(7);
  const float *in_i = call.in(3), *in_f = call.in(4), *in_g = call.in(5), *in_o = call.in(6);
  float* dgates = call.out(9);
  std::vector<float> dh(B * H), dc(B * H, 0.0f), zeros(B * H, 0.0f), weights(G * padded_columns(H));
  pack(call.in(8), H, 1, G, H, weights.data());
  for (int64_t t = T - 1; t >= 0; --t) {
    const int64_t at = t * B * H;
    std::copy_n(dy + at, B * H, dh.data());
    if (t + 1 < T)
      multiply({dgates + (t + 1) * B * G, offsets(0, B, G), 1, kNoSegment, 1, G}, B, weights.data(), padded_columns(H), H,
               dh.data(), offsets(1, B, H), true);
    const float* previous = t > 0 ? cells + at - B * H : zeros.data();
    for (int64_t b = 0; b < B; ++b)
      for_vectors(H, [&](int64_t h, int64_t n) {
        const int64_t local = b * H + h, from = at + local;
        const Vector i = load_n(in_i + from, n), f = load_n(in_f + from, n), g = load_n(in_g + from, n);
        const Vector o = load_n(in_o + from, n), squashed = load_n(tanh_cells + from, n), one = splat(1.0f);
        const Vector back = load_n(dh.data() + local, n);
        Vector cell = load_n(dc.data() + local, n) + back * o * (one - squashed * squashed);
        if (dcells) cell += load_n(dcells + from, n);
        float* to = dgates + t * B * G + b * G + h;
        store_n(to, cell * g * i * (one - i), n);
        store_n(to + H, cell * load_n(previous + local, n) * f * (one - f), n);
        store_n(to + 2 * H, cell * i * (one - g * g), n);
        store_n(to + 3 * H, back * squashed * o * (one - o), n);
        store_n(dc.data() + local, cell * f, n);
      });
  }
}

APPORTION_KERNEL("lstm", lstm);
APPORTION_KERNEL("lstm_backward", lstm_backward);

}  // namespace
}  // namespace apportion
