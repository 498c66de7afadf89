// The density at which a layer's step takes as long with its kept entries alone as with all of them, measured here and now.
// A sparse step's time is taken to be proportional to the density, from one measured at kDensity.
#include "crossover.h"

#include <algorithm>
#include <chrono>
#include <vector>

#if defined(__GLIBC__)
#include <malloc.h>
#endif

#include "products.h"
#include "sparse_layers.h"

namespace apportion {
namespace {

constexpr double kDensity = 0.2;
constexpr int kRuns = 5;

// The least of a few runs after one that does not count.
template <class F>
double seconds(F f) {
  f();
  double least = 1e9;
  for (int i = 0; i < kRuns; ++i) {
    const auto start = std::chrono::steady_clock::now();
    f();
    least = std::min(least, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return least;
}

// Entries spread over [rows, columns] as a mask has them: by a linear congruence, not in a pattern.
struct Entries {
  std::vector<int32_t> starts{0}, columns;
  std::vector<float> values;

  Entries(int64_t rows, int64_t width) {
    uint32_t state = 1;
    for (int64_t o = 0; o < rows; ++o) {
      for (int64_t i = 0; i < width; ++i) {
        state = state * 1664525u + 1013904223u;
        if (state < static_cast<uint32_t>(kDensity * 4294967296.0)) columns.push_back(static_cast<int32_t>(i));
      }
      starts.push_back(static_cast<int32_t>(columns.size()));
    }
    values.assign(columns.size(), 0.01f);
  }
  SparseRows rows() const { return {values.data(), starts.data(), columns.data(), static_cast<int64_t>(starts.size()) - 1}; }
};

double of_linear() {
  constexpr int64_t N = 32, I = 512, O = 512;
  const std::vector<float> x(N * I, 0.5f), dy(N * O, 0.5f), w(O * I, 0.01f);
  std::vector<float> y(N * O), dx(N * I), dw(O * I);
  const double whole = seconds([&] {
    matrix_product(x.data(), false, w.data(), true, y.data(), N, O, I);
    matrix_product(dy.data(), false, w.data(), false, dx.data(), N, I, O);
    matrix_product(dy.data(), true, x.data(), false, dw.data(), O, I, N);
  });
  const Entries entries(O, I);
  const SparseRows rows = entries.rows();
  const double sparse = seconds([&] {
    sparse_linear(rows, x.data(), nullptr, N, I, y.data());
    sparse_linear_input_gradient(rows, dy.data(), N, I, dx.data());
    sparse_linear_weight_gradient(rows, dy.data(), x.data(), N, I, dw.data());
  });
  return kDensity * whole / sparse;
}

double of_convolution() {
  constexpr int64_t N = 16, H = 14, C = 32, R = 3;
  const std::vector<float> x(N * H * H * C, 0.5f), w(C * C * R * R, 0.01f);
  std::vector<float> y(x.size()), dx(x.size()), dw(w.size());
  const double whole =
      seconds([&] { whole_convolution(N, H, C, R, x.data(), w.data(), x.data(), y.data(), dx.data(), dw.data()); });
  const Entries entries(C, C * R * R);
  const SparseRows rows = entries.rows();
  const Window window{R, R, R / 2, R / 2, 1, 1};
  const Images images{N, H, H, C};
  const double sparse = seconds([&] {
    sparse_convolution(rows, window, images, x.data(), nullptr, y.data());
    sparse_convolution_input_gradient(rows, window, images, x.data(), dx.data());
    sparse_convolution_weight_gradient(rows, window, images, x.data(), x.data(), dw.data());
  });
  return kDensity * whole / sparse;
}

}  // namespace
}  // namespace apportion

extern "C" {

// kind 0: linear layers, 1: convolutions.
double apportion_crossover(int kind) {
  const double density = kind == 0 ? apportion::of_linear() : apportion::of_convolution();
#if defined(__GLIBC__)
  malloc_trim(0);  // an idle trainer is to be as small as before
#endif
  return density;
}
}
