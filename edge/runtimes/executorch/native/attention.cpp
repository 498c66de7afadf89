// Attention of every head on its own, and its gradient: a head's scores stay near the processor from their first product
// to their last. Heads lie as the one linear layer before them leaves them. Legend: B images, T tokens, H heads, D
// channels of a head.
#include <algorithm>

#include "kernels.h"
#include "products.h"
#include "row_softmax.h"
#include "threads.h"

namespace apportion {
namespace {

constexpr int64_t kNone = 0;

// One head's queries, keys, values or their gradients: [T, D], `row` apart.
struct Head {
  const float* data;
  int64_t row;
};

// C [T, columns] (+)= op(A) B of one head's matrices; sums begin at 0.
void product(const float* a, const int64_t* a_rows, int64_t a_step, int64_t T, int64_t depth, const Right& b, int64_t columns,
             float* c, const int64_t* c_rows) {
  multiply({a, a_rows, a_step, &kNone, 1, depth}, T, b, columns, c, c_rows, false);
}

// [T, D] as the right side of a product, where it lies if a vector has no end within it.
Right of_tokens(const Head& head, int64_t T, int64_t D, float* room) {
  if (D % VL == 0) return as_it_lies(head.data, head.row);
  pack(head.data, head.row, 1, T, D, room, T, 0);
  return packed(room, T, D);
}

// The same transposed: [D, T].
Right of_channels(const Head& head, int64_t T, int64_t D, float* room) {
  pack(head.data, 1, head.row, D, T, room, D, 0);
  return packed(room, D, T);
}

struct Sizes {
  int64_t B, T, H, D;
  int64_t row() const { return 3 * H * D; }
  int64_t room() const { return T * padded_columns(D) + D * padded_columns(T); }
};

// f(offset of queries, offset of outputs, offset of scores) for every head.
template <class F>
void each_head(const Sizes& s, const F& f) {
  constexpr int64_t kWorkPerFloat = 16;  // multiply-adds that take as long as a float of a loop over memory
  for_rows(s.B * s.H, 2 * s.T * s.T * s.D / kWorkPerFloat, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t b = i / s.H, h = i % s.H;
      f(b * s.T * s.row() + h * s.D, (b * s.T * s.H + h) * s.D, i * s.T * s.T);
    }
  });
}

bool sizes_of(Call& call, int qkv, Sizes& s) {
  if (!call.require(call.rank(qkv) == 5 && call.size(qkv, 2) == 3)) return false;
  s = {call.size(qkv, 0), call.size(qkv, 1), call.size(qkv, 3), call.size(qkv, 4)};
  return call.require(s.T > 0 && s.D > 0);
}

// y = softmax(q k^T scale) v, and the softmax.
void forward(const Sizes& s, const float* qkv, float scale, float* y, float* weights) {
  each_head(s, [&](int64_t at, int64_t to, int64_t of_scores) {
    const int64_t *qkv_rows = offsets(0, s.T, s.row()), *rows = offsets(1, s.T, s.T);
    float *room = scratch(0, s.room()), *p = weights + of_scores;
    const Head k{qkv + at + s.H * s.D, s.row()}, v{k.data + s.H * s.D, s.row()};
    product(qkv + at, qkv_rows, 1, s.T, s.D, of_channels(k, s.T, s.D, room), s.T, p, rows);
    for (int64_t t = 0; t < s.T; ++t) softmax_row(p + t * s.T, s.T, scale, p + t * s.T);
    product(p, rows, 1, s.T, s.T, of_tokens(v, s.T, s.D, room), s.D, y + to, offsets(2, s.T, s.H * s.D));
  });
}

void backward(const Sizes& s, const float* dy, const float* qkv, const float* weights, float scale, float* dqkv) {
  each_head(s, [&](int64_t at, int64_t to, int64_t of_scores) {
    const int64_t *qkv_rows = offsets(0, s.T, s.row()), *rows = offsets(1, s.T, s.T);
    const int64_t* y_rows = offsets(2, s.T, s.H * s.D);
    float *room = scratch(0, s.room()), *ds = scratch(1, s.T * s.T);
    const float* p = weights + of_scores;
    const Head q{qkv + at, s.row()}, k{q.data + s.H * s.D, s.row()}, v{k.data + s.H * s.D, s.row()}, g{dy + to, s.H * s.D};
    float *dq = dqkv + at, *dk = dq + s.H * s.D, *dv = dk + s.H * s.D;
    product(p, nullptr, s.T, s.T, s.T, of_tokens(g, s.T, s.D, room), s.D, dv, qkv_rows);
    product(g.data, y_rows, 1, s.T, s.D, of_channels(v, s.T, s.D, room), s.T, ds, rows);
    for (int64_t t = 0; t < s.T; ++t) softmax_row_backward(ds + t * s.T, p + t * s.T, s.T, scale, ds + t * s.T);
    product(ds, rows, 1, s.T, s.T, of_tokens(k, s.T, s.D, room), s.D, dq, qkv_rows);
    product(ds, nullptr, s.T, s.T, s.T, of_tokens(q, s.T, s.D, room), s.D, dk, qkv_rows);
  });
}

// attention(qkv [B, T, 3, H, D], scale) -> y [B, T, H, D], weights [B, H, T, T] = softmax(q k^T scale); y = weights v
void attention(Call& call) {
  Sizes s{};
  if (!sizes_of(call, 0, s) || !call.resize(2, {s.B, s.T, s.H, s.D}) || !call.resize(3, {s.B, s.H, s.T, s.T})) return;
  forward(s, call.in(0), static_cast<float>(call.number(1)), call.out(2), call.out(3));
}

// attention_backward(dy [B, T, H, D], qkv [B, T, 3, H, D], weights [B, H, T, T], scale) -> dqkv
void attention_backward(Call& call) {
  Sizes s{};
  if (!sizes_of(call, 1, s) || !call.require(call.count(0) * 3 == call.count(1)) || !call.resize_like(4, 1)) return;
  if (!call.require(call.count(2) == s.B * s.H * s.T * s.T)) return;
  backward(s, call.in(0), call.in(1), call.in(2), static_cast<float>(call.number(3)), call.out(4));
}

APPORTION_KERNEL("attention", attention);
APPORTION_KERNEL("attention_backward", attention_backward);

}  // namespace
}  // namespace apportion
