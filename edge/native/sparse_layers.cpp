// Layers whose weights are the kept values alone: values [capacity] and their places, starts [rows + 1] and columns
// [capacity] in C order of the whole weights. A gradient of the values is 0 beyond the last place.
// Legend: N examples, I inputs, O outputs; images [N, H, W, C], output pixels P Q, kernel R S.
#include <algorithm>
#include <vector>

#include "batch_last.h"
#include "kernels.h"
#include "products.h"
#include "sparse_products.h"
#include "sparse_windows.h"

namespace apportion {
namespace {

constexpr int64_t kExamples = 32;  // of a linear layer, at a time
constexpr int64_t kImages = 24;    // of a convolution: its planes are to stay in the second-level cache

const int32_t* places(Call& call, int i) { return static_cast<const int32_t*>(call.tensor(i).const_data_ptr()); }

// Whether arguments i .. i + 2 are values, starts and columns that fit each other.
bool fit(Call& call, int values, int starts, int columns) {
  const int64_t rows = call.count(starts) - 1;
  return call.require(rows >= 0 && call.count(values) == call.count(columns) && places(call, starts)[0] == 0 &&
                      places(call, starts)[rows] <= call.count(values));
}

// Groups of examples of nearly the same size, each at most `most`.
int64_t group_size(int64_t examples, int64_t most) {
  const int64_t groups = std::max<int64_t>(1, (examples + most - 1) / most);
  return (examples + groups - 1) / groups;
}

template <class F>
void for_groups(int64_t examples, int64_t group, F f) {
  for (int64_t n = 0; n < examples; n += group) f(n, std::min(group, examples - n));
}

void clear_padding(float* dw, int64_t used, int64_t capacity) { std::fill(dw + used, dw + capacity, 0.0f); }

// ---- linear

// sparse_linear(x [N, I], values, starts, columns, bias?) -> y [N, O]
void sparse_linear(Call& call) {
  const int64_t N = call.size(0, 0), I = call.size(0, 1), O = call.count(2) - 1;
  if (!fit(call, 1, 2, 3) || !call.resize(5, {N, O})) return;
  const int64_t group = group_size(N, kExamples), lanes = lanes_of(group);
  float *x = scratch(0, I * lanes), *y = scratch(1, O * lanes);
  const SparseRows w{call.in(1), places(call, 2), places(call, 3), O};
  for_groups(N, group, [&](int64_t n, int64_t count) {
    to_lanes(call.in(0) + n * I, count, I, I, x, lanes, lanes);
    sparse_product(w, x, call.in_or_null(4), y, lanes);
    from_lanes(y, lanes, count, O, O, call.out(5) + n * O);
  });
}

// sparse_linear_input_gradient(dy [N, O], values, starts, columns, int inputs) -> dx [N, I]
void sparse_linear_input_gradient(Call& call) {
  const int64_t N = call.size(0, 0), O = call.size(0, 1), I = call.integer(4);
  if (!fit(call, 1, 2, 3) || !call.require(O == call.count(2) - 1) || !call.resize(5, {N, I})) return;
  const int64_t group = group_size(N, kExamples), lanes = lanes_of(group);
  float *dx = scratch(0, I * lanes), *dy = scratch(1, O * lanes);
  const SparseRows w{call.in(1), places(call, 2), places(call, 3), O};
  for_groups(N, group, [&](int64_t n, int64_t count) {
    to_lanes(call.in(0) + n * O, count, O, O, dy, lanes, lanes);
    std::fill_n(dx, I * lanes, 0.0f);
    sparse_transposed_product(w, dy, dx, lanes);
    from_lanes(dx, lanes, count, I, I, call.out(5) + n * I);
  });
}

// sparse_linear_weight_gradient(dy [N, O], x [N, I], starts, columns) -> dw [capacity]
void sparse_linear_weight_gradient(Call& call) {
  const int64_t N = call.size(0, 0), O = call.size(0, 1), I = call.size(1, 1), capacity = call.count(3);
  if (!fit(call, 3, 2, 3) || !call.require(O == call.count(2) - 1 && call.size(1, 0) == N) || !call.resize(4, {capacity})) return;
  const int64_t group = group_size(N, kExamples), lanes = lanes_of(group);
  float *x = scratch(0, I * lanes), *dy = scratch(1, O * lanes);
  const SparseRows w{nullptr, places(call, 2), places(call, 3), O};
  for_groups(N, group, [&](int64_t n, int64_t count) {
    to_lanes(call.in(1) + n * I, count, I, I, x, lanes, lanes);
    to_lanes(call.in(0) + n * O, count, O, O, dy, lanes, lanes);
    sampled_product(w, dy, x, call.out(4), lanes, n > 0);
  });
  clear_padding(call.out(4), w.starts[O], capacity);
}

// ---- convolution of stride 1, one group

struct Window {
  int64_t R, S, pad_h, pad_w, dilation_h, dilation_w;

  int64_t reach_h() const { return (R - 1) * dilation_h; }
  int64_t reach_w() const { return (S - 1) * dilation_w; }
};

Window window_of(Ints kernel, Ints padding, Ints dilation) {
  return {kernel[0], kernel[1], padding[0], padding[1], dilation[0], dilation[1]};
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

// sparse_convolution(x, values, starts, columns, bias?, kernel, padding, dilation) -> y
void sparse_convolution(Call& call) {
  const Window g = window_of(call.ints(5), call.ints(6), call.ints(7));
  const int64_t N = call.size(0, 0), H = call.size(0, 1), W = call.size(0, 2), C = call.size(0, 3), O = call.count(2) - 1;
  const int64_t P = H + 2 * g.pad_h - g.reach_h(), Q = W + 2 * g.pad_w - g.reach_w();
  if (!call.require(P > 0 && Q > 0) || !fit(call, 1, 2, 3) || !call.resize(8, {N, P, Q, O})) return;
  const int64_t group = group_size(N, kImages), lanes = lanes_of(group);
  PaddedPlanes planes(0, H, W, C, g.pad_h, g.pad_w, lanes);
  float* y = scratch(1, O * P * Q * lanes);
  const std::vector<Tap> taps = taps_of(call.in(1), places(call, 2), places(call, 3), O, g, planes.shape());
  for_groups(N, group, [&](int64_t n, int64_t count) {
    const Planes& x = planes.of(call.in(0) + n * H * W * C, count);
    sum_of_taps(taps.data(), places(call, 2), O, x, call.in_or_null(4), P, Q, y);
    images_from(y, lanes, count, P * Q, O, call.out(8) + n * P * Q * O);
  });
}

// sparse_convolution_input_gradient(dy, values, starts, columns, size [H, W, C], kernel, padding, dilation) -> dx
void sparse_convolution_input_gradient(Call& call) {
  const Window g = window_of(call.ints(5), call.ints(6), call.ints(7));
  const int64_t N = call.size(0, 0), P = call.size(0, 1), Q = call.size(0, 2), O = call.size(0, 3);
  const int64_t H = call.ints(4)[0], W = call.ints(4)[1], C = call.ints(4)[2];
  const int64_t top = g.reach_h() - g.pad_h, left = g.reach_w() - g.pad_w;
  if (!call.require(top >= 0 && left >= 0 && O == call.count(2) - 1) || !fit(call, 1, 2, 3) || !call.resize(8, {N, H, W, C})) return;
  const int64_t group = group_size(N, kImages), lanes = lanes_of(group);
  PaddedPlanes planes(0, P, Q, O, top, left, lanes);
  float* dx = scratch(1, C * H * W * lanes);
  // The same sums with the weights by their input, each read where the window mirrored has it.
  const float* values = call.in(1);
  const int32_t *starts = places(call, 2), *columns = places(call, 3);
  const int64_t area = g.R * g.S;
  std::vector<int32_t> ends(static_cast<size_t>(C) + 1, 0);
  for (int32_t i = 0; i < starts[O]; ++i) ++ends[static_cast<size_t>(columns[i] / area) + 1];
  for (int64_t c = 0; c < C; ++c) ends[c + 1] += ends[c];
  std::vector<int32_t> next(ends.begin(), ends.end() - 1);
  std::vector<Tap> taps(static_cast<size_t>(starts[O]));
  for (int64_t o = 0; o < O; ++o)
    for (int32_t i = starts[o]; i < starts[o + 1]; ++i) {
      const int64_t r = columns[i] / g.S % g.R, s = columns[i] % g.S;
      const int64_t offset = (g.R - 1 - r) * g.dilation_h * planes.shape().row() + (g.S - 1 - s) * g.dilation_w * lanes;
      taps[static_cast<size_t>(next[static_cast<size_t>(columns[i] / area)]++)] = {values[i], o * planes.shape().size() + offset};
    }
  for_groups(N, group, [&](int64_t n, int64_t count) {
    const Planes& dy = planes.of(call.in(0) + n * P * Q * O, count);
    sum_of_taps(taps.data(), ends.data(), C, dy, nullptr, H, W, dx);
    images_from(dx, lanes, count, H * W, C, call.out(8) + n * H * W * C);
  });
}

// sparse_convolution_weight_gradient(x, dy, starts, columns, kernel, padding, dilation) -> dw [capacity]
void sparse_convolution_weight_gradient(Call& call) {
  const Window g = window_of(call.ints(4), call.ints(5), call.ints(6));
  const int64_t N = call.size(0, 0), H = call.size(0, 1), W = call.size(0, 2), C = call.size(0, 3);
  const int64_t P = call.size(1, 1), Q = call.size(1, 2), O = call.size(1, 3), capacity = call.count(3);
  if (!call.require(call.size(1, 0) == N && O == call.count(2) - 1 && P + g.reach_h() == H + 2 * g.pad_h &&
                    Q + g.reach_w() == W + 2 * g.pad_w) ||
      !fit(call, 3, 2, 3) || !call.resize(7, {capacity}))
    return;
  const int64_t group = group_size(N, kImages), lanes = lanes_of(group);
  PaddedPlanes planes(0, H, W, C, g.pad_h, g.pad_w, lanes), gradients(1, P, Q, O, 0, 0, lanes);
  const std::vector<Tap> taps = taps_of(nullptr, places(call, 2), places(call, 3), O, g, planes.shape());
  for_groups(N, group, [&](int64_t n, int64_t count) {
    const Planes& x = planes.of(call.in(0) + n * H * W * C, count);
    const Planes& dy = gradients.of(call.in(1) + n * P * Q * O, count);
    gradient_of_taps(taps.data(), places(call, 2), O, x, dy.data, P, Q, call.out(7), n > 0);
  });
  clear_padding(call.out(7), static_cast<int64_t>(taps.size()), capacity);
}

APPORTION_KERNEL("sparse_linear", sparse_linear);
APPORTION_KERNEL("sparse_linear_input_gradient", sparse_linear_input_gradient);
APPORTION_KERNEL("sparse_linear_weight_gradient", sparse_linear_weight_gradient);
APPORTION_KERNEL("sparse_convolution", sparse_convolution);
APPORTION_KERNEL("sparse_convolution_input_gradient", sparse_convolution_input_gradient);
APPORTION_KERNEL("sparse_convolution_weight_gradient", sparse_convolution_weight_gradient);

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
