// Batch norm over the rows of [M, C] (an image batch with M = N * H * W), with the ReLU that follows it folded in.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <type_traits>
#include <vector>

#include "channel_sums.h"
#include "float16.h"
#include "kernels.h"
#include "simd.h"
#include "threads.h"

namespace apportion {
namespace {

// Centred before it is scaled: one sum x * scale + shift loses digits where the mean is large.
void normalise(const float* x, int64_t M, int64_t C, const PerChannel& mean, const PerChannel& scale, const PerChannel& shift,
               bool relu, const float* addend, float* y) {
  const auto run = [&](auto with_relu, auto with_addend) {
    each_row_vector(M, C, [&](int64_t at, int64_t c, int64_t n) {
      Vector value = (load_n(x + at, n) - mean.at(c, n)) * scale.at(c, n) + shift.at(c, n);
      if constexpr (decltype(with_addend)::value) value += load_n(addend + at, n);
      store_n(y + at, with_relu.value ? maximum(value, Vector{}) : value, n);
    });
  };
  if (addend) {
    relu ? run(std::true_type{}, std::true_type{}) : run(std::false_type{}, std::true_type{});
  } else {
    relu ? run(std::true_type{}, std::false_type{}) : run(std::false_type{}, std::false_type{});
  }
}

// batch_norm(x, w?, b?, addend?, eps, relu) -> y, mean, rstd; y = [relu](w (x - mean) rstd + b [+ addend])
void batch_norm(Call& call) {
  const int64_t C = call.size(0, call.rank(0) - 1), M = call.count(0) / C;
  if (!call.resize_like(6, 0) || !call.resize(7, {C}) || !call.resize(8, {C})) return;
  const float *x = call.in(0), *w = call.in_or_null(1), *b = call.in_or_null(2);
  float *mean = call.out(7), *rstd = call.out(8);
  std::vector<double> totals(C);
  channel_sums<1, true>(M, C, totals.data(), [&](int64_t at, int64_t, int64_t n, Vector* s) { s[0] += load_n(x + at, n); });
  for (int64_t c = 0; c < C; ++c) mean[c] = static_cast<float>(totals[c] / M);
  const PerChannel centre(mean, C);
  channel_sums<1, true>(M, C, totals.data(), [&](int64_t at, int64_t c, int64_t n, Vector* s) {
    const Vector d = load_n(x + at, n) - centre.at(c, n);
    s[0] += d * d;
  });
  PerChannel scale(C), shift(C);
  for (int64_t c = 0; c < C; ++c) {
    rstd[c] = static_cast<float>(1.0 / std::sqrt(totals[c] / M + call.number(4)));
    scale[c] = (w ? w[c] : 1.0f) * rstd[c];
    shift[c] = b ? b[c] : 0.0f;
  }
  scale.repeat(), shift.repeat();
  normalise(x, M, C, centre, scale, shift, call.flag(5), call.in_or_null(3), call.out(6));
}

// fixed_norm(x, w?, b?, mean, variance, addend?, eps, relu) -> y: with given statistics
void fixed_norm(Call& call) {
  const int64_t C = call.size(0, call.rank(0) - 1), M = call.count(0) / C;
  if (!call.resize_like(8, 0)) return;
  const float *w = call.in_or_null(1), *b = call.in_or_null(2), *mean = call.in(3), *variance = call.in(4);
  PerChannel scale(C), shift(C);
  for (int64_t c = 0; c < C; ++c) {
    scale[c] = (w ? w[c] : 1.0f) / std::sqrt(variance[c] + static_cast<float>(call.number(6)));
    shift[c] = b ? b[c] : 0.0f;
  }
  scale.repeat(), shift.repeat();
  normalise(call.in(0), M, C, PerChannel(mean, C), scale, shift, call.flag(7), call.in_or_null(5), call.out(8));
}

// batch_norm_backward(dy, x, w?, mean, rstd, y?) -> dx, dw, db; with y, dy counts only where y > 0 (a folded ReLU); x and
// y may have waited in float16
template <class X, class Y>
void batch_norm_backward_from(Call& call, const X& x, const Y& y) {
  const int64_t C = call.size(1, call.rank(1) - 1), M = call.count(1) / C;
  if (!call.resize_like(6, 1) || !call.resize(7, {C}) || !call.resize(8, {C})) return;
  const float *dy = call.in(0), *w = call.in_or_null(2), *mean = call.in(3), *rstd = call.in(4);
  std::vector<double> totals(2 * C);
  const auto gradient = [&](int64_t at, int64_t n) {
    const Vector g = load_n(dy + at, n);
    if constexpr (std::is_same_v<Y, std::nullptr_t>)
      return g;
    else
      return select(y(at, n) > Vector{}, g, Vector{});
  };
  const PerChannel centre(mean, C);
  channel_sums<2, true>(M, C, totals.data(), [&](int64_t at, int64_t c, int64_t n, Vector* s) {
    const Vector g = gradient(at, n);
    s[0] += g;
    s[1] += g * (x(at, n) - centre.at(c, n));
  });
  PerChannel k(C), of_x(C), constant(C);
  float *dw = call.out(7), *db = call.out(8);
  for (int64_t c = 0; c < C; ++c) {
    const double r = rstd[c];
    dw[c] = static_cast<float>(totals[C + c] * r);
    db[c] = static_cast<float>(totals[c]);
    k[c] = (w ? w[c] : 1.0f) * rstd[c];
    of_x[c] = static_cast<float>(-k[c] * totals[C + c] * r * r / M);
    constant[c] = static_cast<float>(-k[c] * totals[c] / M);
  }
  k.repeat(), of_x.repeat(), constant.repeat();
  float* dx = call.out(6);
  each_row_vector(M, C, [&](int64_t at, int64_t c, int64_t n) {
    const Vector centred = x(at, n) - centre.at(c, n);
    store_n(dx + at, multiply_add(gradient(at, n), k.at(c, n), centred * of_x.at(c, n)) + constant.at(c, n), n);
  });
}

void batch_norm_backward(Call& call) {
  with_values(call, 1, [&](const auto& x) {
    if (call.in_or_null(5) == nullptr) return batch_norm_backward_from(call, x, nullptr);
    with_values(call, 5, [&](const auto& y) { batch_norm_backward_from(call, x, y); });
  });
}

// running_statistics(x, mean, rstd, running_mean, running_var, momentum, eps) -> moved mean, moved variance (unbiased)
void running_statistics(Call& call) {
  const int64_t C = call.count(1), M = call.count(0) / C;
  if (!call.resize(7, {C}) || !call.resize(8, {C})) return;
  const float *mean = call.in(1), *rstd = call.in(2), *old_mean = call.in(3), *old_var = call.in(4);
  const double momentum = call.number(5), eps = call.number(6);
  for (int64_t c = 0; c < C; ++c) {
    const double variance = (1.0 / (static_cast<double>(rstd[c]) * rstd[c]) - eps) * M / std::max<int64_t>(M - 1, 1);
    call.out(7)[c] = static_cast<float>(old_mean[c] + momentum * (mean[c] - old_mean[c]));
    call.out(8)[c] = static_cast<float>(old_var[c] + momentum * (variance - old_var[c]));
  }
}

// channel_sum(x) -> [C]: the gradient of a bias
void channel_sum(Call& call) {
  const int64_t C = call.size(0, call.rank(0) - 1), M = call.count(0) / C;
  if (!call.resize(1, {C})) return;
  const float* x = call.in(0);
  float* sums = call.out(1);
  std::vector<double> totals(C);
  channel_sums<1, true>(M, C, totals.data(), [&](int64_t at, int64_t, int64_t n, Vector* s) { s[0] += load_n(x + at, n); });
  for (int64_t c = 0; c < C; ++c) sums[c] = static_cast<float>(totals[c]);
}

APPORTION_KERNEL("batch_norm", batch_norm);
APPORTION_KERNEL("fixed_norm", fixed_norm);
APPORTION_KERNEL("batch_norm_backward", batch_norm_backward);
APPORTION_KERNEL("running_statistics", running_statistics);
APPORTION_KERNEL("channel_sum", channel_sum);

}  // namespace
}  // namespace apportion
