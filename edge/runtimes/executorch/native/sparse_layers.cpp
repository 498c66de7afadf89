// Layers whose weights are the kept values alone, and the calls of them. A gradient of the values is 0 beyond the last place.
#include "sparse_layers.h"

#include <algorithm>
#include <vector>

#include "batch_last.h"
#include "kernels.h"
#include "products.h"
#include "sparse_windows.h"

namespace apportion {
namespace {

constexpr int64_t kExamples = 32;  // of a linear layer, at a time
constexpr int64_t kImages = 24;    // of a convolution: its planes are to stay in the second-level cache

// Groups of examples of nearly the same size, each at most `most`.
int64_t group_size(int64_t examples, int64_t most) {
  const int64_t groups = std::max<int64_t>(1, (examples + most - 1) / most);
  return (examples + groups - 1) / groups;
}

template <class F>
void for_groups(int64_t examples, int64_t group, F f) {
  for (int64_t n = 0; n < examples; n += group) f(n, std::min(group, examples - n));
}

// Images [count, height, width, channels] into planes with `top` and `left` zeros before and as many after.
class PaddedPlanes {
 public:
  PaddedPlanes(int slot, int64_t height, int64_t width, int64_t channels, int64_t top, int64_t left, int64_t lanes)
      : height_(height), width_(width), channels_(channels), top_(top), left_(left),
        planes_{nullptr, height + 2 * top, width + 2 * left, lanes} {
    data_ = scratch(slot, channels * planes_.size());
    std::fill_n(data_, channels * planes_.size(), 0.0f);
    planes_.data = data_;
  }
  const Planes& of(const float* images, int64_t count) {
    for (int64_t h = 0; h < height_; ++h)
      for (int64_t w = 0; w < width_; ++w)
        to_lanes(images + (h * width_ + w) * channels_, count, height_ * width_ * channels_, channels_,
                 data_ + (h + top_) * planes_.row() + (w + left_) * planes_.lanes, planes_.size(), planes_.lanes);
    return planes_;
  }
  const Planes& shape() const { return planes_; }

 private:
  int64_t height_, width_, channels_, top_, left_;
  float* data_;
  Planes planes_;
};

void images_from(const float* planes, int64_t lanes, int64_t count, int64_t pixels, int64_t channels, float* images) {
  for (int64_t p = 0; p < pixels; ++p)
    from_lanes(planes + p * lanes, pixels * lanes, count, pixels * channels, channels, images + p * channels);
}

// Taps in the order of the weights; values may be null.
std::vector<Tap> taps_of(const float* values, const int32_t* starts, const int32_t* columns, int64_t outputs, const Window& g,
                         const Planes& x) {
  std::vector<Tap> taps(static_cast<size_t>(starts[outputs]));
  for (size_t i = 0; i < taps.size(); ++i) {
    const int64_t c = columns[i] / (g.R * g.S), r = columns[i] / g.S % g.R, s = columns[i] % g.S;
    taps[i] = {values ? values[i] : 0.0f, c * x.size() + r * g.dilation_h * x.row() + s * g.dilation_w * x.lanes};
  }
  return taps;
}

}  // namespace

// ---- linear

void sparse_linear(const SparseRows& w, const float* x, const float* bias, int64_t N, int64_t I, float* y) {
  const int64_t O = w.rows, group = group_size(N, kExamples), lanes = lanes_of(group);
  float *x_lanes = scratch(0, I * lanes), *y_lanes = scratch(1, O * lanes);
  for_groups(N, group, [&](int64_t n, int64_t count) {
    to_lanes(x + n * I, count, I, I, x_lanes, lanes, lanes);
    sparse_product(w, x_lanes, bias, y_lanes, lanes);
    from_lanes(y_lanes, lanes, count, O, O, y + n * O);
  });
}

void sparse_linear_input_gradient(const SparseRows& w, const float* dy, int64_t N, int64_t I, float* dx) {
  const int64_t O = w.rows, group = group_size(N, kExamples), lanes = lanes_of(group);
  float *dx_lanes = scratch(0, I * lanes), *dy_lanes = scratch(1, O * lanes);
  for_groups(N, group, [&](int64_t n, int64_t count) {
    to_lanes(dy + n * O, count, O, O, dy_lanes, lanes, lanes);
    std::fill_n(dx_lanes, I * lanes, 0.0f);
    sparse_transposed_product(w, dy_lanes, dx_lanes, lanes);
    from_lanes(dx_lanes, lanes, count, I, I, dx + n * I);
  });
}

void sparse_linear_weight_gradient(const SparseRows& w, const float* dy, const float* x, int64_t N, int64_t I, float* dw) {
  const int64_t O = w.rows, group = group_size(N, kExamples), lanes = lanes_of(group);
  float *x_lanes = scratch(0, I * lanes), *dy_lanes = scratch(1, O * lanes);
  for_groups(N, group, [&](int64_t n, int64_t count) {
    to_lanes(x + n * I, count, I, I, x_lanes, lanes, lanes);
    to_lanes(dy + n * O, count, O, O, dy_lanes, lanes, lanes);
    sampled_product(w, dy_lanes, x_lanes, dw, lanes, n > 0);
  });
}

// ---- convolution

void sparse_convolution(const SparseRows& w, const Window& g, const Images& in, const float* x, const float* bias, float* y) {
  const int64_t O = w.rows, P = g.height(in), Q = g.width(in), group = group_size(in.N, kImages), lanes = lanes_of(group);
  PaddedPlanes planes(0, in.H, in.W, in.C, g.pad_h, g.pad_w, lanes);
  float* y_planes = scratch(1, O * P * Q * lanes);
  const std::vector<Tap> taps = taps_of(w.values, w.starts, w.columns, O, g, planes.shape());
  for_groups(in.N, group, [&](int64_t n, int64_t count) {
    const Planes& padded = planes.of(x + n * in.size(), count);
    sum_of_taps(taps.data(), w.starts, O, padded, bias, P, Q, y_planes);
    images_from(y_planes, lanes, count, P * Q, O, y + n * P * Q * O);
  });
}

void sparse_convolution_input_gradient(const SparseRows& w, const Window& g, const Images& in, const float* dy, float* dx) {
  const int64_t O = w.rows, P = g.height(in), Q = g.width(in), group = group_size(in.N, kImages), lanes = lanes_of(group);
  PaddedPlanes planes(0, P, Q, O, g.reach_h() - g.pad_h, g.reach_w() - g.pad_w, lanes);
  float* dx_planes = scratch(1, in.size() * lanes);
  // The same sums with the weights by their input, each read where the window mirrored has it.
  const int64_t area = g.R * g.S;
  std::vector<int32_t> ends(static_cast<size_t>(in.C) + 1, 0);
  for (int32_t i = 0; i < w.starts[O]; ++i) ++ends[static_cast<size_t>(w.columns[i] / area) + 1];
  for (size_t c = 0; c + 1 < ends.size(); ++c) ends[c + 1] += ends[c];
  std::vector<int32_t> next(ends.begin(), ends.end() - 1);
  std::vector<Tap> taps(static_cast<size_t>(w.starts[O]));
  for (int64_t o = 0; o < O; ++o)
    for (int32_t i = w.starts[o]; i < w.starts[o + 1]; ++i) {
      const int64_t r = w.columns[i] / g.S % g.R, s = w.columns[i] % g.S;
      const int64_t offset = (g.R - 1 - r) * g.dilation_h * planes.shape().row() + (g.S - 1 - s) * g.dilation_w * lanes;
      const int32_t place = next[static_cast<size_t>(w.columns[i] / area)]++;
      taps[static_cast<size_t>(place)] = {w.values[i], o * planes.shape().size() + offset};
    }
  for_groups(in.N, group, [&](int64_t n, int64_t count) {
    const Planes& padded = planes.of(dy + n * P * Q * O, count);
    sum_of_taps(taps.data(), ends.data(), in.C, padded, nullptr, in.H, in.W, dx_planes);
    images_from(dx_planes, lanes, count, in.H * in.W, in.C, dx + n * in.size());
  });
}

void sparse_convolution_weight_gradient(const SparseRows& w, const Window& g, const Images& in, const float* x, const float* dy,
                                        float* dw) {
  const int64_t O = w.rows, P = g.height(in), Q = g.width(in), group = group_size(in.N, kImages), lanes = lanes_of(group);
  PaddedPlanes planes(0, in.H, in.W, in.C, g.pad_h, g.pad_w, lanes), gradients(1, P, Q, O, 0, 0, lanes);
  const std::vector<Tap> taps = taps_of(nullptr, w.starts, w.columns, O, g, planes.shape());
  for_groups(in.N, group, [&](int64_t n, int64_t count) {
    const Planes& padded = planes.of(x + n * in.size(), count);
    const Planes& right = gradients.of(dy + n * P * Q * O, count);
    gradient_of_taps(taps.data(), w.starts, O, padded, right.data, P, Q, dw, n > 0);
  });
}

// ---- calls: values [capacity] and their places, starts [O + 1] and columns [capacity]

namespace {

const int32_t* places(Call& call, int i) { return static_cast<const int32_t*>(call.tensor(i).const_data_ptr()); }

// Rows of arguments values, starts and starts + 1, columns; values may be those of the columns themselves.
SparseRows rows_of(Call& call, const float* values, int starts) {
  return {values, places(call, starts), places(call, starts + 1), call.count(starts) - 1};
}
// Whether the places fit `capacity` values and `outputs` rows.
bool fit(Call& call, int starts, int64_t capacity, int64_t outputs) {
  const int64_t rows = call.count(starts) - 1;
  return call.require(rows >= 0 && rows == outputs && call.count(starts + 1) == capacity && places(call, starts)[rows] <= capacity);
}
Window window_of(Ints kernel, Ints padding, Ints dilation) {
  return {kernel[0], kernel[1], padding[0], padding[1], dilation[0], dilation[1]};
}
void clear_padding(const SparseRows& w, float* dw, int64_t capacity) { std::fill(dw + w.starts[w.rows], dw + capacity, 0.0f); }

// sparse_linear(x [N, I], values, starts, columns, bias?) -> y [N, O]
void call_linear(Call& call) {
  const int64_t N = call.size(0, 0), O = call.count(2) - 1;
  if (!fit(call, 2, call.count(1), O) || !call.resize(5, {N, O})) return;
  sparse_linear(rows_of(call, call.in(1), 2), call.in(0), call.in_or_null(4), N, call.size(0, 1), call.out(5));
}

// sparse_linear_input_gradient(dy [N, O], values, starts, columns, int inputs) -> dx [N, I]
void call_linear_input_gradient(Call& call) {
  const int64_t N = call.size(0, 0), I = call.integer(4);
  if (!fit(call, 2, call.count(1), call.size(0, 1)) || !call.resize(5, {N, I})) return;
  sparse_linear_input_gradient(rows_of(call, call.in(1), 2), call.in(0), N, I, call.out(5));
}

// sparse_linear_weight_gradient(dy [N, O], x [N, I], starts, columns) -> dw [capacity]
void call_linear_weight_gradient(Call& call) {
  const int64_t N = call.size(0, 0), capacity = call.count(3);
  if (!fit(call, 2, capacity, call.size(0, 1)) || !call.require(call.size(1, 0) == N) || !call.resize(4, {capacity})) return;
  const SparseRows w = rows_of(call, nullptr, 2);
  sparse_linear_weight_gradient(w, call.in(0), call.in(1), N, call.size(1, 1), call.out(4));
  clear_padding(w, call.out(4), capacity);
}

// sparse_convolution(x, values, starts, columns, bias?, kernel, padding, dilation) -> y
void call_convolution(Call& call) {
  const Window g = window_of(call.ints(5), call.ints(6), call.ints(7));
  const Images in{call.size(0, 0), call.size(0, 1), call.size(0, 2), call.size(0, 3)};
  const int64_t O = call.count(2) - 1;
  if (!call.require(g.height(in) > 0 && g.width(in) > 0) || !fit(call, 2, call.count(1), O) ||
      !call.resize(8, {in.N, g.height(in), g.width(in), O}))
    return;
  sparse_convolution(rows_of(call, call.in(1), 2), g, in, call.in(0), call.in_or_null(4), call.out(8));
}

// sparse_convolution_input_gradient(dy, values, starts, columns, size [H, W, C], kernel, padding, dilation) -> dx
void call_convolution_input_gradient(Call& call) {
  const Window g = window_of(call.ints(5), call.ints(6), call.ints(7));
  const Images in{call.size(0, 0), call.ints(4)[0], call.ints(4)[1], call.ints(4)[2]};
  if (!call.require(g.reach_h() >= g.pad_h && g.reach_w() >= g.pad_w && call.size(0, 1) == g.height(in) &&
                    call.size(0, 2) == g.width(in)) ||
      !fit(call, 2, call.count(1), call.size(0, 3)) || !call.resize(8, {in.N, in.H, in.W, in.C}))
    return;
  sparse_convolution_input_gradient(rows_of(call, call.in(1), 2), g, in, call.in(0), call.out(8));
}

// sparse_convolution_weight_gradient(x, dy, starts, columns, kernel, padding, dilation) -> dw [capacity]
void call_convolution_weight_gradient(Call& call) {
  const Window g = window_of(call.ints(4), call.ints(5), call.ints(6));
  const Images in{call.size(0, 0), call.size(0, 1), call.size(0, 2), call.size(0, 3)};
  const int64_t capacity = call.count(3);
  if (!call.require(call.size(1, 0) == in.N && call.size(1, 1) == g.height(in) && call.size(1, 2) == g.width(in)) ||
      !fit(call, 2, capacity, call.size(1, 3)) || !call.resize(7, {capacity}))
    return;
  const SparseRows w = rows_of(call, nullptr, 2);
  sparse_convolution_weight_gradient(w, g, in, call.in(0), call.in(1), call.out(7));
  clear_padding(w, call.out(7), capacity);
}

APPORTION_KERNEL("sparse_linear", call_linear);
APPORTION_KERNEL("sparse_linear_input_gradient", call_linear_input_gradient);
APPORTION_KERNEL("sparse_linear_weight_gradient", call_linear_weight_gradient);
APPORTION_KERNEL("sparse_convolution", call_convolution);
APPORTION_KERNEL("sparse_convolution_input_gradient", call_convolution_input_gradient);
APPORTION_KERNEL("sparse_convolution_weight_gradient", call_convolution_weight_gradient);

}  // namespace
}  // namespace apportion

extern "C" {

// Places of the True entries of mask [rows, columns], in C order: starts [rows + 1], places [capacity], 0 beyond the last.
// How many there are; where that is more than capacity nothing is written beyond it.
int64_t apportion_places(const uint8_t* mask, int64_t rows, int64_t columns, int32_t* starts, int32_t* places, int64_t capacity) {
  int64_t count = 0;
  for (int64_t o = 0; o < rows; ++o) {
    starts[o] = static_cast<int32_t>(std::min(count, capacity));
    for (int64_t i = 0; i < columns; ++i)
      if (mask[o * columns + i]) {
        if (count < capacity) places[count] = static_cast<int32_t>(i);
        ++count;
      }
  }
  starts[rows] = static_cast<int32_t>(std::min(count, capacity));
  std::fill(places + std::min(count, capacity), places + capacity, 0);
  return count;
}
}
