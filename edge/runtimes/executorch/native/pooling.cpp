// Pooling over image windows and its gradients. Legend: N images, H W input pixels, P Q output pixels, C channels.
#include <algorithm>
#include <limits>

#include "kernels.h"
#include "simd.h"
#include "threads.h"

namespace apportion {
namespace {

// Windows of one size, or with kernel 0 adaptive ones: position i of `count` covers i * size / count up to
// (i + 1) * size / count, rounded outwards.
struct Window {
  int64_t kernel[2], stride[2], pad[2], dilation[2], count[2];
};

struct Range {
  int64_t begin, end;
};

// Positions of one window along one axis that lie inside the image.
Range inside(const Window& w, int axis, int64_t output, int64_t size) {
  if (w.kernel[axis] == 0)
    return {output * size / w.count[axis], ((output + 1) * size + w.count[axis] - 1) / w.count[axis]};
  const int64_t start = output * w.stride[axis] - w.pad[axis], step = w.dilation[axis];
  int64_t begin = 0, end = w.kernel[axis];
  while (begin < end && start + begin * step < 0) ++begin;
  while (end > begin && start + (end - 1) * step >= size) --end;
  return {begin, end};
}

Window window(Ints kernel, Ints stride, Ints pad, Ints dilation, int64_t P, int64_t Q) {
  return {{kernel[0], kernel[1]}, {stride[0], stride[1]}, {pad[0], pad[1]}, {dilation[0], dilation[1]}, {P, Q}};
}

// Calls f(output offset, input offsets of the window in scan order given by a callable each(g)). Windows of one image are
// on one thread, so those that overlap may write what they share.
template <class F>
void for_windows(const Window& w, int64_t N, int64_t H, int64_t W, int64_t C, int64_t P, int64_t Q, F f) {
  for_rows(N, H * W * C, [&](int64_t first, int64_t last) {
    for (int64_t n = first; n < last; ++n)
      for (int64_t p = 0; p < P; ++p) {
        const Range rows = inside(w, 0, p, H);
        for (int64_t q = 0; q < Q; ++q) {
          const Range columns = inside(w, 1, q, W);
          const auto each = [&](auto g) {
            for (int64_t r = rows.begin; r < rows.end; ++r)
              for (int64_t s = columns.begin; s < columns.end; ++s) {
                const int64_t h = p * w.stride[0] - w.pad[0] + r * w.dilation[0];
                const int64_t v = q * w.stride[1] - w.pad[1] + s * w.dilation[1];
                g(((n * H + h) * W + v) * C);
              }
          };
          f(((n * P + p) * Q + q) * C, each);
        }
      }
  });
}

// Gradients that windows add to begin at 0.
void clear(float* dx, int64_t n) {
  for_floats(n, [&](int64_t begin, int64_t end) { std::fill(dx + begin, dx + end, 0.0f); });
}

// max_pool(x, kernel, stride, padding, dilation, size [P, Q]) -> y
void max_pool(Call& call) {
  const int64_t N = call.size(0, 0), H = call.size(0, 1), W = call.size(0, 2), C = call.size(0, 3);
  const int64_t P = call.ints(5)[0], Q = call.ints(5)[1];
  if (!call.resize(6, {N, P, Q, C})) return;
  const float* x = call.in(0);
  float* y = call.out(6);
  const Window w = window(call.ints(1), call.ints(2), call.ints(3), call.ints(4), P, Q);
  for_windows(w, N, H, W, C, P, Q, [&](int64_t to, auto each) {
    for_vectors(C, [&](int64_t c, int64_t n) {
      Vector best = splat(-std::numeric_limits<float>::infinity());
      each([&](int64_t from) {
        const Vector value = load_n(x + from + c, n);
        // Written so that a NaN wins, as in torch.
        best = select(~(value <= best), value, best);
      });
      store_n(y + to + c, best, n);
    });
  });
}

// max_pool_backward(dy, x, y, kernel, stride, padding, dilation) -> dx: the first maximum of a window in scan order, as
// in torch, gets its gradient
void max_pool_backward(Call& call) {
  const int64_t N = call.size(1, 0), H = call.size(1, 1), W = call.size(1, 2), C = call.size(1, 3);
  if (!call.resize_like(7, 1)) return;
  const float *dy = call.in(0), *x = call.in(1), *y = call.in(2);
  float* dx = call.out(7);
  clear(dx, N * H * W * C);
  const Window w = window(call.ints(3), call.ints(4), call.ints(5), call.ints(6), call.size(0, 1), call.size(0, 2));
  for_windows(w, N, H, W, C, call.size(0, 1), call.size(0, 2), [&](int64_t at, auto each) {
    for_vectors(C, [&](int64_t c, int64_t n) {
      const Vector top = load_n(y + at + c, n);
      Vector left = load_n(dy + at + c, n);
      each([&](int64_t from) {
        const IntVector here = load_n(x + from + c, n) == top;
        store_n(dx + from + c, load_n(dx + from + c, n) + select(here, left, Vector{}), n);
        left = select(here, Vector{}, left);
      });
    });
  });
}

// Elements an average is over. Source: torch.nn.AvgPool2d.
float divisor(const Window& w, int64_t p, int64_t q, int64_t H, int64_t W, bool counts_padding, int64_t fixed) {
  if (fixed > 0) return static_cast<float>(fixed);
  if (!counts_padding) {
    const Range r = inside(w, 0, p, H), s = inside(w, 1, q, W);
    return static_cast<float>((r.end - r.begin) * (s.end - s.begin));
  }
  const auto span = [&](int axis, int64_t output, int64_t size) {
    const int64_t start = output * w.stride[axis] - w.pad[axis];
    return std::min(start + w.kernel[axis], size + w.pad[axis]) - start;
  };
  return static_cast<float>(span(0, p, H) * span(1, q, W));
}

// average_pool(x, kernel, stride, padding, size [P, Q], counts_padding, divisor or 0) -> y
void average_pool(Call& call) {
  const int64_t N = call.size(0, 0), H = call.size(0, 1), W = call.size(0, 2), C = call.size(0, 3);
  const int64_t P = call.ints(4)[0], Q = call.ints(4)[1], ones[] = {1, 1};
  if (!call.resize(7, {N, P, Q, C})) return;
  const float* x = call.in(0);
  float* y = call.out(7);
  const Window w = window(call.ints(1), call.ints(2), call.ints(3), {ones, 2}, P, Q);
  for_windows(w, N, H, W, C, P, Q, [&](int64_t to, auto each) {
    const float share = 1.0f / divisor(w, to / C / Q % P, to / C % Q, H, W, call.flag(5), call.integer(6));
    for_vectors(C, [&](int64_t c, int64_t n) {
      Vector total{};
      each([&](int64_t from) { total += load_n(x + from + c, n); });
      store_n(y + to + c, total * share, n);
    });
  });
}

// average_pool_backward(dy, size [H, W], kernel, stride, padding, counts_padding, divisor or 0) -> dx
void average_pool_backward(Call& call) {
  const int64_t N = call.size(0, 0), P = call.size(0, 1), Q = call.size(0, 2), C = call.size(0, 3), ones[] = {1, 1};
  const int64_t H = call.ints(1)[0], W = call.ints(1)[1];
  if (!call.resize(7, {N, H, W, C})) return;
  const float* dy = call.in(0);
  float* dx = call.out(7);
  clear(dx, N * H * W * C);
  const Window w = window(call.ints(2), call.ints(3), call.ints(4), {ones, 2}, P, Q);
  for_windows(w, N, H, W, C, P, Q, [&](int64_t at, auto each) {
    const float share = 1.0f / divisor(w, at / C / Q % P, at / C % Q, H, W, call.flag(5), call.integer(6));
    for_vectors(C, [&](int64_t c, int64_t n) {
      const Vector part = load_n(dy + at + c, n) * share;
      each([&](int64_t from) { store_n(dx + from + c, load_n(dx + from + c, n) + part, n); });
    });
  });
}

APPORTION_KERNEL("max_pool", max_pool);
APPORTION_KERNEL("max_pool_backward", max_pool_backward);
APPORTION_KERNEL("average_pool", average_pool);
APPORTION_KERNEL("average_pool_backward", average_pool_backward);

}  // namespace
}  // namespace apportion
