#include "sparse_products.h"

#include <algorithm>

#include "batch_last.h"

namespace apportion {
namespace {

// Sums of neighbouring entries go to four places in turn, so that none waits for the one before.
constexpr int kTurns = 4;

constexpr int kNarrow = 8 / kWidth<Narrow>;  // vectors of eight lanes

// ((0 + 4) + (2 + 6)) + ((1 + 5) + (3 + 7)) of eight times eight lanes, one float each.
inline Eight folded(const Narrow sums[][kNarrow]) {
  Eight v[8];
  std::memcpy(v, sums, sizeof v);
  const auto halves = [](Eight a, Eight b) {
    return __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11) + __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15);
  };
  const auto quarters = [](Eight a, Eight b) {
    return __builtin_shufflevector(a, b, 0, 1, 8, 9, 4, 5, 12, 13) + __builtin_shufflevector(a, b, 2, 3, 10, 11, 6, 7, 14, 15);
  };
  const auto pairs = [](Eight a, Eight b) {
    return __builtin_shufflevector(a, b, 0, 2, 8, 10, 4, 6, 12, 14) + __builtin_shufflevector(a, b, 1, 3, 9, 11, 5, 7, 13, 15);
  };
  const Eight ab = halves(v[0], v[1]), cd = halves(v[2], v[3]), ef = halves(v[4], v[5]), gh = halves(v[6], v[7]);
  const Eight all = pairs(quarters(ab, cd), quarters(ef, gh));
  // Lanes now hold vectors 0 2 4 6 1 3 5 7.
  return __builtin_shufflevector(all, all, 0, 4, 1, 5, 2, 6, 3, 7);
}

}  // namespace

void sparse_product(const SparseRows& w, const float* x, const float* bias, float* y, int64_t lanes) {
  for_lanes(lanes, [&]<class V, int kCount>(int64_t n) {
    for (int64_t o = 0; o < w.rows; ++o) {
      V sums[kTurns][kCount] = {};
      const auto add = [&](int turn, int64_t i) {
        const float* from = x + static_cast<int64_t>(w.columns[i]) * lanes + n;
        for (int k = 0; k < kCount; ++k) sums[turn][k] += w.values[i] * load_as<V>(from + k * kWidth<V>);
      };
      int64_t i = w.starts[o];
      const int64_t end = w.starts[o + 1];
      for (; i + kTurns <= end; i += kTurns)
#pragma GCC unroll 4
        for (int t = 0; t < kTurns; ++t) add(t, i + t);
      for (; i < end; ++i) add(0, i);
      for (int k = 0; k < kCount; ++k) {
        const V sum = (sums[0][k] + sums[1][k]) + (sums[2][k] + sums[3][k]);
        store_as(y + o * lanes + n + k * kWidth<V>, bias ? sum + bias[o] : sum);
      }
    }
  });
}

void sparse_transposed_product(const SparseRows& w, const float* dy, float* dx, int64_t lanes) {
  for_lanes(lanes, [&]<class V, int kCount>(int64_t n) {
    for (int64_t o = 0; o < w.rows; ++o) {
      V factors[kCount];
      for (int k = 0; k < kCount; ++k) factors[k] = load_as<V>(dy + o * lanes + n + k * kWidth<V>);
      for (int64_t i = w.starts[o]; i < w.starts[o + 1]; ++i) {
        float* to = dx + static_cast<int64_t>(w.columns[i]) * lanes + n;
        for (int k = 0; k < kCount; ++k)
          store_as(to + k * kWidth<V>, load_as<V>(to + k * kWidth<V>) + w.values[i] * factors[k]);
      }
    }
  });
}

void sampled_product(const SparseRows& w, const float* dy, const float* x, float* dw, int64_t lanes, bool accumulate) {
  constexpr int64_t kAtOnce = 8, kPart = 32;
  for (int64_t n = 0; n < lanes; n += kPart) {
    const int64_t parts = std::min(kPart, lanes - n) / 8;
    for (int64_t o = 0; o < w.rows; ++o) {
      Narrow factors[kPart / 8][kNarrow];
      for (int64_t k = 0; k < parts; ++k)
        for (int h = 0; h < kNarrow; ++h) factors[k][h] = load_as<Narrow>(dy + o * lanes + n + k * 8 + h * kWidth<Narrow>);
      const auto several = [&]<int kParts>(int64_t i, int64_t count) {
        Narrow sums[kAtOnce][kNarrow];
#pragma GCC unroll 8
        for (int64_t j = 0; j < kAtOnce; ++j) {
          const float* from = x + static_cast<int64_t>(w.columns[i + std::min(j, count - 1)]) * lanes + n;
          for (int h = 0; h < kNarrow; ++h) {
            Narrow sum = load_as<Narrow>(from + h * kWidth<Narrow>) * factors[0][h];
            for (int k = 1; k < kParts; ++k) sum += load_as<Narrow>(from + k * 8 + h * kWidth<Narrow>) * factors[k][h];
            sums[j][h] = sum;
          }
        }
        const Eight result = folded(sums);
        for (int64_t j = 0; j < count; ++j) dw[i + j] = n == 0 && !accumulate ? result[j] : dw[i + j] + result[j];
      };
      const auto row = [&]<int kParts>() {
        int64_t i = w.starts[o];
        const int64_t end = w.starts[o + 1];
        for (; i + kAtOnce <= end; i += kAtOnce) several.template operator()<kParts>(i, kAtOnce);
        if (i < end) several.template operator()<kParts>(i, end - i);
      };
      if (parts == 4) row.template operator()<4>();
      else if (parts == 3) row.template operator()<3>();
      else if (parts == 2) row.template operator()<2>();
      else row.template operator()<1>();
    }
  }
}

}  // namespace apportion
