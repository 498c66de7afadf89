// Activations and their gradients.
#include "activation_loops.h"
#include "channel_sums.h"
#include "float16.h"
#include "gelu.h"
#include "kernels.h"
#include "simd.h"
#include "threads.h"

namespace apportion {
namespace {

// relu(x) -> max(x, 0); a NaN stays one
void relu(Call& call) {
  if (!call.resize_like(1, 0)) return;
  const float* x = call.in(0);
  float* y = call.out(1);
  each_vector(call.count(0), [&](int64_t i, int64_t n) {
    const Vector v = load_n(x + i, n);
    store_n(y + i, select(v <= Vector{}, Vector{}, v), n);
  });
}

// relu_backward(dy, y) -> dx; y may have waited in float16
void relu_backward(Call& call) {
  if (!call.resize_like(2, 0)) return;
  const float* dy = call.in(0);
  float* dx = call.out(2);
  with_values(call, 1, [&](const auto& y) {
    each_vector(call.count(0), [&](int64_t i, int64_t n) {
      store_n(dx + i, select(y(i, n) > Vector{}, load_n(dy + i, n), Vector{}), n);
    });
  });
}

// add_relu_backward(a, b, y) -> a + b where y > 0; y may have waited in float16
void add_relu_backward(Call& call) {
  if (!call.require(call.count(0) == call.count(1)) || !call.resize_like(3, 0)) return;
  const float *a = call.in(0), *b = call.in(1);
  float* dx = call.out(3);
  with_values(call, 2, [&](const auto& y) {
    each_vector(call.count(0), [&](int64_t i, int64_t n) {
      store_n(dx + i, select(y(i, n) > Vector{}, load_n(a + i, n) + load_n(b + i, n), Vector{}), n);
    });
  });
}

// gelu(x) -> x * Phi(x)
void gelu(Call& call) {
  if (!call.resize_like(1, 0)) return;
  const float* x = call.in(0);
  float* y = call.out(1);
  each_vector(call.count(0), [&](int64_t i, int64_t n) { store_n(y + i, gelu_of(load_n(x + i, n)), n); });
}

// gelu_backward(dy, x) -> dy * (Phi(x) + x phi(x))
void gelu_backward(Call& call) {
  if (!call.resize_like(2, 0)) return;
  const float *dy = call.in(0), *x = call.in(1);
  float* dx = call.out(2);
  each_vector(call.count(0), [&](int64_t i, int64_t n) { store_n(dx + i, load_n(dy + i, n) * gelu_slope(load_n(x + i, n)), n); });
}

// min(max(x / 6 + 1/2, 0), 1)
inline Vector hard_gate(Vector x) { return minimum(maximum((x + 3.0f) * (1.0f / 6.0f), Vector{}), splat(1.0f)); }

// hardswish(x) -> x gate(x)
void hardswish(Call& call) {
  if (!call.resize_like(1, 0)) return;
  const float* x = call.in(0);
  float* y = call.out(1);
  each_vector(call.count(0), [&](int64_t i, int64_t n) {
    const Vector v = load_n(x + i, n);
    store_n(y + i, v * hard_gate(v), n);
  });
}

// hardswish_backward(dy, x) -> 0 up to -3, dy (x / 3 + 1/2) up to 3, dy beyond
void hardswish_backward(Call& call) {
  if (!call.resize_like(2, 0)) return;
  const float *dy = call.in(0), *x = call.in(1);
  float* dx = call.out(2);
  each_vector(call.count(0), [&](int64_t i, int64_t n) {
    const Vector v = load_n(x + i, n), g = load_n(dy + i, n);
    const Vector inside = select(v < splat(3.0f), g * (v * (1.0f / 3.0f) + 0.5f), g);
    store_n(dx + i, select(v <= splat(-3.0f), Vector{}, inside), n);
  });
}

// hardsigmoid(x) -> gate(x)
void hardsigmoid(Call& call) {
  if (!call.resize_like(1, 0)) return;
  const float* x = call.in(0);
  float* y = call.out(1);
  each_vector(call.count(0), [&](int64_t i, int64_t n) { store_n(y + i, hard_gate(load_n(x + i, n)), n); });
}

// hardsigmoid_backward(dy, x) -> dy / 6 between -3 and 3
void hardsigmoid_backward(Call& call) {
  if (!call.resize_like(2, 0)) return;
  const float *dy = call.in(0), *x = call.in(1);
  float* dx = call.out(2);
  each_vector(call.count(0), [&](int64_t i, int64_t n) {
    const Vector v = load_n(x + i, n);
    const IntVector inside = (v > splat(-3.0f)) & (v < splat(3.0f));
    store_n(dx + i, select(inside, load_n(dy + i, n) * (1.0f / 6.0f), Vector{}), n);
  });
}

// hardtanh(x, low, high) -> x between them; a NaN stays one
void hardtanh(Call& call) {
  const Vector low = number(call, 1), high = number(call, 2);
  each_of_one(call, 2, [&](Vector x) { return select(x < low, low, select(x > high, high, x)); });
}

// hardtanh_backward(dy, x, low, high) -> dy between them
void hardtanh_backward(Call& call) {
  const Vector low = number(call, 2), high = number(call, 3);
  each_of_two(call, 2, [&](Vector dy, Vector x) { return select((x <= low) | (x >= high), Vector{}, dy); });
}

// leaky_relu(x, slope) -> x above 0, slope x elsewhere
void leaky_relu(Call& call) {
  const Vector slope = number(call, 1);
  each_of_one(call, 1, [&](Vector x) { return select(x > Vector{}, x, x * slope); });
}

// leaky_relu_backward(dy, x, slope) -> dx
void leaky_relu_backward(Call& call) {
  const Vector slope = number(call, 2);
  each_of_two(call, 1, [&](Vector dy, Vector x) { return select(x > Vector{}, dy, dy * slope); });
}

// f(offset, slopes, count) for the vectors of x [..., C] with slopes [C], or one slope of all.
template <class F>
void each_sloped(Call& call, int x, int slopes, const F& f) {
  const int64_t C = call.size(x, call.rank(x) - 1), total = call.count(x);
  if (call.count(slopes) == 1) {
    const Vector slope = splat(call.in(slopes)[0]);
    each_vector(total, [&](int64_t at, int64_t n) { f(at, slope, n); });
    return;
  }
  if (!call.require(call.count(slopes) == C)) return;
  const PerChannel of_channel(call.in(slopes), C);
  each_row_vector(total / C, C, [&](int64_t at, int64_t c, int64_t n) { f(at, of_channel.at(c, n), n); });
}

// prelu(x, slopes) -> x above 0, its channel's slope times x elsewhere
void prelu(Call& call) {
  if (!call.resize_like(2, 0)) return;
  const float* x = call.in(0);
  float* y = call.out(2);
  each_sloped(call, 0, 1, [&](int64_t at, Vector slope, int64_t n) {
    const Vector v = load_n(x + at, n);
    store_n(y + at, select(v > Vector{}, v, v * slope), n);
  });
}

// prelu_backward(dy, x, slopes) -> dx, what each value gives to the gradient of its slope
void prelu_backward(Call& call) {
  if (!call.require(call.count(0) == call.count(1)) || !call.resize_like(3, 0) || !call.resize_like(4, 1)) return;
  const float *dy = call.in(0), *x = call.in(1);
  float *dx = call.out(3), *terms = call.out(4);
  each_sloped(call, 1, 2, [&](int64_t at, Vector slope, int64_t n) {
    const Vector v = load_n(x + at, n), g = load_n(dy + at, n);
    store_n(dx + at, select(v > Vector{}, g, g * slope), n);
    store_n(terms + at, select(v > Vector{}, Vector{}, g * v), n);
  });
}

APPORTION_KERNEL("hardtanh", hardtanh);
APPORTION_KERNEL("hardtanh_backward", hardtanh_backward);
APPORTION_KERNEL("leaky_relu", leaky_relu);
APPORTION_KERNEL("leaky_relu_backward", leaky_relu_backward);
APPORTION_KERNEL("prelu", prelu);
APPORTION_KERNEL("prelu_backward", prelu_backward);
APPORTION_KERNEL("relu", relu);
APPORTION_KERNEL("relu_backward", relu_backward);
APPORTION_KERNEL("add_relu_backward", add_relu_backward);
APPORTION_KERNEL("gelu", gelu);
APPORTION_KERNEL("gelu_backward", gelu_backward);
APPORTION_KERNEL("hardswish", hardswish);
APPORTION_KERNEL("hardswish_backward", hardswish_backward);
APPORTION_KERNEL("hardsigmoid", hardsigmoid);
APPORTION_KERNEL("hardsigmoid_backward", hardsigmoid_backward);

}  // namespace
}  // namespace apportion
