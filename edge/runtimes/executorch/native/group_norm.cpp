// Group norm over images [N, ..., C]: each image's channels in groups, of which each has a mean and a variance of its own.
// Legend: N images, P pixels of one, C channels, G groups.
#include <algorithm>
#include <cmath>
#include <vector>

#include "channel_sums.h"
#include "kernels.h"
#include "simd.h"
#include "threads.h"

namespace apportion {
namespace {

// What each group's channels sum up to, weighted.
template <class F>
double group_sum(int64_t group, int64_t size, const F& of_channel) {
  double sum = 0;
  for (int64_t c = group * size; c < (group + 1) * size; ++c) sum += of_channel(c);
  return sum;
}

struct Sizes {
  int64_t N, P, C, G;

  Sizes(const Call& call, int x, int64_t groups)
      : N(call.size(x, 0)), P(0), C(call.size(x, call.rank(x) - 1)), G(groups) {
    P = N * C > 0 ? call.count(x) / (N * C) : 0;
  }
  int64_t channels() const { return C / G; }
  double values() const { return static_cast<double>(P * channels()); }
  bool fit() const { return G > 0 && C % G == 0 && P > 0; }
};

// group_norm(x, w?, b?, groups, eps) -> y, mean [N, G], rstd [N, G]
void group_norm(Call& call) {
  const Sizes s(call, 0, call.integer(3));
  if (!call.require(s.fit()) || !call.resize_like(5, 0) || !call.resize(6, {s.N, s.G}) || !call.resize(7, {s.N, s.G})) return;
  const float *w = call.in_or_null(1), *b = call.in_or_null(2);
  const double eps = call.number(4);
  for_chunks(s.N, [&](int64_t n) {
    const float* x = call.in(0) + n * s.P * s.C;
    float *y = call.out(5) + n * s.P * s.C, *mean = call.out(6) + n * s.G, *rstd = call.out(7) + n * s.G;
    std::vector<double> totals(static_cast<size_t>(s.C));
    PerChannel centre(s.C), scale(s.C), shift(s.C);
    add_rows<1, true>(0, s.P, s.C, totals.data(), [&](int64_t at, int64_t, int64_t count, Vector* sum) { sum[0] += load_n(x + at, count); });
    for (int64_t c = 0; c < s.C; ++c) {
      const int64_t g = c / s.channels();
      if (c % s.channels() == 0)
        mean[g] = static_cast<float>(group_sum(g, s.channels(), [&](int64_t i) { return totals[static_cast<size_t>(i)]; }) / s.values());
      centre[c] = mean[g];
    }
    centre.repeat();
    std::fill(totals.begin(), totals.end(), 0.0);
    add_rows<1, true>(0, s.P, s.C, totals.data(), [&](int64_t at, int64_t c, int64_t count, Vector* sum) {
      const Vector d = load_n(x + at, count) - centre.at(c, count);
      sum[0] += d * d;
    });
    for (int64_t c = 0; c < s.C; ++c) {
      const int64_t g = c / s.channels();
      if (c % s.channels() == 0) {
        const double sum = group_sum(g, s.channels(), [&](int64_t i) { return totals[static_cast<size_t>(i)]; });
        rstd[g] = static_cast<float>(1.0 / std::sqrt(sum / s.values() + eps));
      }
      scale[c] = (w ? w[c] : 1.0f) * rstd[g];
      shift[c] = b ? b[c] : 0.0f;
    }
    scale.repeat(), shift.repeat();
    each_row_vector(s.P, s.C, [&](int64_t at, int64_t c, int64_t count) {
      store_n(y + at, (load_n(x + at, count) - centre.at(c, count)) * scale.at(c, count) + shift.at(c, count), count);
    });
  });
}

// group_norm_backward(dy, x, w?, mean [N, G], rstd [N, G]) -> dx, dw [C], db [C]
void group_norm_backward(Call& call) {
  const Sizes s(call, 1, call.size(3, 1));
  if (!call.require(s.fit() && call.count(0) == call.count(1)) || !call.resize_like(5, 1) || !call.resize(6, {s.C}) ||
      !call.resize(7, {s.C}))
    return;
  const float* w = call.in_or_null(2);
  const auto width = static_cast<size_t>(2 * s.C);
  std::vector<double> all(static_cast<size_t>(s.N) * width);  // of each image: sums of dy, and of dy (x - mean)
  for_chunks(s.N, [&](int64_t n) {
    const float *dy = call.in(0) + n * s.P * s.C, *x = call.in(1) + n * s.P * s.C;
    const float *mean = call.in(3) + n * s.G, *rstd = call.in(4) + n * s.G;
    float* dx = call.out(5) + n * s.P * s.C;
    double *first = all.data() + static_cast<size_t>(n) * width, *second = first + s.C;
    PerChannel centre(s.C), k(s.C), of_x(s.C), constant(s.C);
    for (int64_t c = 0; c < s.C; ++c) centre[c] = mean[c / s.channels()];
    centre.repeat();
    add_rows<2, true>(0, s.P, s.C, first, [&](int64_t at, int64_t c, int64_t count, Vector* sum) {
      const Vector g = load_n(dy + at, count);
      sum[0] += g;
      sum[1] += g * (load_n(x + at, count) - centre.at(c, count));
    });
    const auto weight = [&](int64_t c) { return w ? static_cast<double>(w[c]) : 1.0; };
    for (int64_t g = 0; g < s.G; ++g) {
      const double a = group_sum(g, s.channels(), [&](int64_t c) { return weight(c) * first[c]; });
      const double b = group_sum(g, s.channels(), [&](int64_t c) { return weight(c) * second[c]; });
      const double r = rstd[g];
      for (int64_t c = g * s.channels(); c < (g + 1) * s.channels(); ++c) {
        k[c] = static_cast<float>(weight(c) * r);
        of_x[c] = static_cast<float>(-b * r * r * r / s.values());
        constant[c] = static_cast<float>(-a * r / s.values());
      }
    }
    k.repeat(), of_x.repeat(), constant.repeat();
    each_row_vector(s.P, s.C, [&](int64_t at, int64_t c, int64_t count) {
      const Vector centred = load_n(x + at, count) - centre.at(c, count);
      store_n(dx + at, multiply_add(load_n(dy + at, count), k.at(c, count), centred * of_x.at(c, count)) + constant.at(c, count),
              count);
    });
  });
  for (int64_t c = 0; c < s.C; ++c) {
    double dw = 0, db = 0;
    for (int64_t n = 0; n < s.N; ++n) {
      const double* own = all.data() + static_cast<size_t>(n) * width;
      db += own[c];
      dw += own[s.C + c] * call.in(4)[n * s.G + c / s.channels()];
    }
    call.out(6)[c] = static_cast<float>(dw);
    call.out(7)[c] = static_cast<float>(db);
  }
}

APPORTION_KERNEL("group_norm", group_norm);
APPORTION_KERNEL("group_norm_backward", group_norm_backward);

}  // namespace
}  // namespace apportion
