// Layer norm over the rows of [M, N], and its gradients.
#include <cmath>
#include <vector>

#include "channel_sums.h"
#include "kernels.h"
#include "rows.h"
#include "simd.h"
#include "threads.h"

namespace apportion {
namespace {

// layer_norm(x [M, N], w? [N], b? [N], eps) -> y, mean [M], rstd [M]
void layer_norm(Call& call) {
  const int64_t M = call.size(0, 0), N = call.size(0, 1);
  if (!call.resize_like(4, 0) || !call.resize(5, {M}) || !call.resize(6, {M})) return;
  const float *x = call.in(0), *w = call.in_or_null(1), *b = call.in_or_null(2);
  const double eps = call.number(3);
  float *y = call.out(4), *means = call.out(5), *rstds = call.out(6);
  for_rows(M, N, [&](int64_t begin, int64_t end) {
    for (int64_t m = begin; m < end; ++m) {
      const float* row = x + m * N;
      float* to = y + m * N;
      const float mean = row_sum(row, N) / static_cast<float>(N);
      for_vectors(N, [&](int64_t i, int64_t n) { store_n(to + i, load_n(row + i, n) - mean, n); });
      RowLanes squares{};
      for (int64_t i = 0; i < N; i += kRowLanes) {
        const RowLanes part = load_lanes(to + i, N - i);
        squares += part * part;
      }
      const float rstd = static_cast<float>(1.0 / std::sqrt(static_cast<double>(total(squares)) / static_cast<double>(N) + eps));
      for_vectors(N, [&](int64_t i, int64_t n) {
        Vector value = load_n(to + i, n) * rstd;
        if (w) value *= load_n(w + i, n);
        if (b) value += load_n(b + i, n);
        store_n(to + i, value, n);
      });
      means[m] = mean, rstds[m] = rstd;
    }
  });
}

// dx of a layer norm, to argument `out`, with the M N values of `addend` where it is not null.
void input_gradient(Call& call, const float* addend, int out) {
  const int64_t M = call.size(0, 0), N = call.size(0, 1);
  if (!call.resize_like(out, 0)) return;
  const float *dy = call.in(0), *x = call.in(1), *means = call.in(2), *rstds = call.in(3), *w = call.in_or_null(4);
  float* dx = call.out(out);
  for_rows(M, N, [&](int64_t begin, int64_t end) {
    for (int64_t m = begin; m < end; ++m) {
      const int64_t at = m * N;
      const float mean = means[m], rstd = rstds[m], share = 1.0f / static_cast<float>(N);
      RowLanes gradients{}, products{};
      for (int64_t i = 0; i < N; i += kRowLanes) {
        RowLanes g = load_lanes(dy + at + i, N - i);
        if (w) g *= load_lanes(w + i, N - i);
        gradients += g;
        products += g * (load_lanes(x + at + i, N - i) - mean);
      }
      // dx = rstd (g - mean(g) - (x - mean) rstd^2 mean(g (x - mean))), g = dy w
      const float of_all = -rstd * total(gradients) * share, of_x = -rstd * rstd * rstd * total(products) * share;
      for_vectors(N, [&](int64_t i, int64_t n) {
        Vector g = load_n(dy + at + i, n) * rstd;
        if (w) g *= load_n(w + i, n);
        Vector value = g + (load_n(x + at + i, n) - mean) * of_x + of_all;
        if (addend) value += load_n(addend + at + i, n);
        store_n(dx + at + i, value, n);
      });
    }
  });
}

// layer_norm_backward(dy [M, N], x, mean [M], rstd [M], w? [N]) -> dx
void layer_norm_backward(Call& call) { input_gradient(call, nullptr, 5); }

// layer_norm_backward_add(dy [M, N], x, mean [M], rstd [M], w? [N], addend: M N of them) -> dx + addend
void layer_norm_backward_add(Call& call) {
  if (call.require(call.count(5) == call.size(0, 0) * call.size(0, 1))) input_gradient(call, call.in(5), 6);
}

// layer_norm_weight_gradient(dy [M, N], x, mean [M], rstd [M]) -> dw [N], db [N]
void layer_norm_weight_gradient(Call& call) {
  const int64_t M = call.size(0, 0), N = call.size(0, 1);
  if (!call.resize(4, {N}) || !call.resize(5, {N})) return;
  const float *dy = call.in(0), *x = call.in(1), *means = call.in(2), *rstds = call.in(3);
  float *dw = call.out(4), *db = call.out(5);
  std::vector<double> totals(static_cast<size_t>(2 * N));
  channel_sums<2>(M, N, totals.data(), [&](int64_t at, int64_t c, int64_t n, Vector* s) {
    const int64_t m = (at - c) / N;
    const Vector g = load_n(dy + at, n);
    s[0] += g * ((load_n(x + at, n) - means[m]) * rstds[m]);
    s[1] += g;
  });
  for (int64_t i = 0; i < N; ++i) {
    dw[i] = static_cast<float>(totals[static_cast<size_t>(i)]);
    db[i] = static_cast<float>(totals[static_cast<size_t>(N + i)]);
  }
}

APPORTION_KERNEL("layer_norm", layer_norm);
APPORTION_KERNEL("layer_norm_backward", layer_norm_backward);
APPORTION_KERNEL("layer_norm_backward_add", layer_norm_backward_add);
APPORTION_KERNEL("layer_norm_weight_gradient", layer_norm_weight_gradient);

}  // namespace
}  // namespace apportion
