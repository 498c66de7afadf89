// Convolution and its two gradients without im2col: pixels are read where they lie in one padded image at a time.
// Legend: N images, H W input pixels, P Q output pixels, C input and O output channels, R S kernel; weights [O, C/g, R, S].
#include <algorithm>
#include <vector>

#include "crossover.h"
#include "kernels.h"
#include "products.h"
#include "simd.h"

namespace apportion {
namespace {

struct Geometry {
  int64_t N, H, W, C, P, Q, O, R, S, groups;
  int64_t stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w;

  int64_t group_in() const { return C / groups; }
  int64_t group_out() const { return O / groups; }
  bool is_depthwise() const { return groups == C && groups == O && groups > 1; }
};

void set_window(Geometry& g, Ints stride, Ints padding, Ints dilation, int64_t groups) {
  g.stride_h = stride[0], g.stride_w = stride[1], g.pad_h = padding[0], g.pad_w = padding[1];
  g.dilation_h = dilation[0], g.dilation_w = dilation[1], g.groups = groups;
}

int64_t output_size(int64_t size, int64_t kernel, int64_t stride, int64_t pad, int64_t dilation) {
  return (size + 2 * pad - dilation * (kernel - 1) - 1) / stride + 1;
}

// A few images with zeros around them; the images themselves where there are none to add.
class PaddedImages {
 public:
  PaddedImages(int64_t count, int64_t height, int64_t width, int64_t channels, int64_t top, int64_t bottom, int64_t left,
               int64_t right)
      : height_(height), line_(width * channels), top_(top), left_(left * channels), row_((left + width + right) * channels),
        size_((top + height + bottom) * row_), is_padded_(top + bottom + left + right > 0) {
    if (!is_padded_) return;
    buffer_ = scratch(1, count * size_);
    std::fill_n(buffer_, count * size_, 0.0f);
  }
  int64_t row() const { return row_; }
  int64_t size() const { return size_; }
  // `count` images that follow each other in memory.
  const float* of(const float* images, int64_t count) {
    if (!is_padded_) return images;
    for (int64_t n = 0; n < count; ++n)
      for (int64_t h = 0; h < height_; ++h)
        std::copy_n(images + (n * height_ + h) * line_, line_, buffer_ + n * size_ + (top_ + h) * row_ + left_);
    return buffer_;
  }

 private:
  int64_t height_, line_, top_, left_, row_, size_;
  bool is_padded_;
  float* buffer_ = nullptr;
};

// Images worked on together: enough pixels that weights are worth fetching once for all of them.
int64_t images_at_once(int64_t images, int64_t pixels) {
  constexpr int64_t kPixels = 256;
  return std::clamp<int64_t>((kPixels + pixels - 1) / pixels, 1, images);
}

// Sums longer than this are made in parts, for their digits and for the cache.
constexpr int64_t kDepth = 768;

// multiply() with the segments in parts.
void multiply_in_parts(Operand a, int64_t rows, const float* b, int64_t b_row, int64_t columns, float* c,
                       const int64_t* c_rows, bool accumulate) {
  const int64_t part = std::max<int64_t>(1, kDepth / a.depth), all = a.segment_count;
  const int64_t* segments = a.segments;
  for (int64_t s = 0; s < all; s += part) {
    a.segments = segments + s;
    a.segment_count = std::min(part, all - s);
    multiply(a, rows, b + s * a.depth * b_row, b_row, columns, c, c_rows, accumulate || s > 0);
  }
}

void fill_rows(float* y, int64_t rows, int64_t columns, const float* bias) {
  for (int64_t i = 0; i < rows; ++i) std::copy_n(bias, columns, y + i * columns);
}

// ---- forward

void depthwise_forward(const Geometry& g, const float* x, const float* w, const float* bias, float* y) {
  float* taps = scratch(0, g.R * g.S * g.C);  // [R, S, C]
  for (int64_t c = 0; c < g.C; ++c)
    for (int64_t t = 0; t < g.R * g.S; ++t) taps[t * g.C + c] = w[c * g.R * g.S + t];
  PaddedImages padded(1, g.H, g.W, g.C, g.pad_h, g.pad_h, g.pad_w, g.pad_w);
  for (int64_t n = 0; n < g.N; ++n) {
    const float* image = padded.of(x + n * g.H * g.W * g.C, 1);
    for (int64_t p = 0; p < g.P; ++p)
      for (int64_t q = 0; q < g.Q; ++q) {
        float* pixel = y + ((n * g.P + p) * g.Q + q) * g.C;
        const float* corner = image + p * g.stride_h * padded.row() + q * g.stride_w * g.C;
        for_vectors(g.C, [&](int64_t c, int64_t count) {
          Vector sum = bias ? load_n(bias + c, count) : Vector{};
          for (int64_t r = 0; r < g.R; ++r)
            for (int64_t s = 0; s < g.S; ++s)
              sum += load_n(corner + r * g.dilation_h * padded.row() + s * g.dilation_w * g.C + c, count) *
                     load_n(taps + (r * g.S + s) * g.C + c, count);
          store_n(pixel + c, sum, count);
        });
      }
  }
}

void forward(const Geometry& g, const float* x, const float* w, const float* bias, float* y) {
  if (g.is_depthwise()) return depthwise_forward(g, x, w, bias, y);
  const int64_t depth = g.group_in(), columns = g.group_out(), width = padded_columns(columns), taps = g.R * g.S;
  float* packed = scratch(0, g.groups * taps * depth * width);  // [g, R, S, C/g, O/g]
  for (int64_t k = 0; k < g.groups * taps; ++k)
    pack(w + k / taps * columns * depth * taps + k % taps, taps, depth * taps, depth, columns, packed + k * depth * width);
  if (bias) fill_rows(y, g.N * g.P * g.Q, g.O, bias);
  const int64_t together = images_at_once(g.N, g.P * g.Q);
  PaddedImages padded(together, g.H, g.W, g.C, g.pad_h, g.pad_h, g.pad_w, g.pad_w);
  // A whole kernel row is one stretch of memory when its taps are neighbours.
  const bool joined = g.dilation_w == 1 && g.groups == 1 && g.S * g.C <= kDepth;
  std::vector<int64_t> segments, pixels;
  for (int64_t r = 0; r < g.R; ++r)
    for (int64_t s = 0; s < (joined ? 1 : g.S); ++s)
      segments.push_back(r * g.dilation_h * padded.row() + s * g.dilation_w * g.C);
  for (int64_t n = 0; n < together; ++n)
    for (int64_t p = 0; p < g.P; ++p)
      for (int64_t q = 0; q < g.Q; ++q)
        pixels.push_back(n * padded.size() + p * g.stride_h * padded.row() + q * g.stride_w * g.C);
  const int64_t* targets = offsets(0, together * g.P * g.Q, g.O);
  for (int64_t n = 0; n < g.N; n += together) {
    const int64_t count = std::min(together, g.N - n);
    const float* images = padded.of(x + n * g.H * g.W * g.C, count);
    for (int64_t k = 0; k < g.groups; ++k)
      multiply_in_parts({images + k * depth, pixels.data(), 1, segments.data(), static_cast<int64_t>(segments.size()),
                         joined ? g.S * g.C : depth},
                        count * g.P * g.Q, packed + k * taps * depth * width, width, columns,
                        y + n * g.P * g.Q * g.O + k * columns, targets, bias != nullptr);
  }
}

// ---- gradient of the input

// Floor division.
int64_t down(int64_t a, int64_t b) { return a >= 0 ? a / b : -((-a + b - 1) / b); }

// Input pixels h = phase + stride * i, all of which the same kernel taps reach: output pixel i + first for each tap.
struct Reach {
  int64_t tap, first;
};
std::vector<Reach> reaching(int64_t phase, int64_t kernel, int64_t stride, int64_t pad, int64_t dilation) {
  std::vector<Reach> taps;
  for (int64_t k = 0; k < kernel; ++k) {
    const int64_t shifted = phase + pad - k * dilation;
    if (shifted - down(shifted, stride) * stride == 0) taps.push_back({k, down(shifted, stride)});
  }
  return taps;
}

void input_gradient(const Geometry& g, const float* dy, const float* w, float* dx) {
  const int64_t columns = g.group_in(), depth = g.group_out(), width = padded_columns(columns), area = g.R * g.S;
  const int64_t top = std::max<int64_t>(0, -down(g.pad_h - (g.R - 1) * g.dilation_h, g.stride_h));
  const int64_t left = std::max<int64_t>(0, -down(g.pad_w - (g.S - 1) * g.dilation_w, g.stride_w));
  const int64_t bottom = std::max<int64_t>(0, down(g.H - 1 + g.pad_h, g.stride_h) - (g.P - 1));
  const int64_t right = std::max<int64_t>(0, down(g.W - 1 + g.pad_w, g.stride_w) - (g.Q - 1));
  const int64_t together = images_at_once(g.N, g.H * g.W);
  PaddedImages padded(together, g.P, g.Q, g.O, top, bottom, left, right);
  float* packed = scratch(0, g.groups * area * depth * width);

  struct Phase {
    std::vector<int64_t> segments, pixels, targets;
    float* weights;
  };
  std::vector<Phase> phases;
  for (int64_t ph = 0; ph < std::min(g.stride_h, g.H); ++ph)
    for (int64_t pw = 0; pw < std::min(g.stride_w, g.W); ++pw) {
      Phase phase{{}, {}, {}, packed};
      const auto rows = reaching(ph, g.R, g.stride_h, g.pad_h, g.dilation_h);
      const auto cols = reaching(pw, g.S, g.stride_w, g.pad_w, g.dilation_w);
      for (const Reach& r : rows)
        for (const Reach& s : cols) phase.segments.push_back((top + r.first) * padded.row() + (left + s.first) * g.O);
      for (int64_t k = 0; k < g.groups; ++k)
        for (const Reach& r : rows)
          for (const Reach& s : cols) {
            pack(w + k * depth * columns * area + r.tap * g.S + s.tap, columns * area, area, depth, columns, packed);
            packed += depth * width;
          }
      for (int64_t n = 0; n < together; ++n)
        for (int64_t i = 0, h = ph; h < g.H; ++i, h += g.stride_h)
          for (int64_t j = 0, v = pw; v < g.W; ++j, v += g.stride_w) {
            phase.pixels.push_back(n * padded.size() + i * padded.row() + j * g.O);
            phase.targets.push_back(((n * g.H + h) * g.W + v) * g.C);
          }
      if (phase.segments.empty()) std::fill_n(dx, g.N * g.H * g.W * g.C, 0.0f);
      phases.push_back(std::move(phase));
    }
  for (int64_t n = 0; n < g.N; n += together) {
    const int64_t count = std::min(together, g.N - n);
    const float* images = padded.of(dy + n * g.P * g.Q * g.O, count);
    for (const Phase& phase : phases) {
      const int64_t taps = static_cast<int64_t>(phase.segments.size());
      const int64_t pixels = static_cast<int64_t>(phase.pixels.size()) / together * count;
      for (int64_t k = 0; taps > 0 && k < g.groups; ++k)
        multiply_in_parts({images + k * depth, phase.pixels.data(), 1, phase.segments.data(), taps, depth}, pixels,
                          phase.weights + k * taps * depth * width, width, columns,
                          dx + n * g.H * g.W * g.C + k * columns, phase.targets.data(), false);
    }
  }
}

void depthwise_input_gradient(const Geometry& g, const float* dy, const float* w, float* dx) {
  float* taps = scratch(0, g.R * g.S * g.C);
  for (int64_t c = 0; c < g.C; ++c)
    for (int64_t t = 0; t < g.R * g.S; ++t) taps[t * g.C + c] = w[c * g.R * g.S + t];
  for (int64_t h = 0; h < g.H; ++h) {
    for (int64_t v = 0; v < g.W; ++v) {
      const auto rows = [&](int64_t pixel, int64_t kernel, int64_t stride, int64_t pad, int64_t dilation, int64_t limit) {
        std::vector<Reach> found = reaching(pixel % stride, kernel, stride, pad, dilation);
        for (Reach& reach : found) reach.first += pixel / stride;
        std::erase_if(found, [&](const Reach& reach) { return reach.first < 0 || reach.first >= limit; });
        return found;
      };
      const auto down_taps = rows(h, g.R, g.stride_h, g.pad_h, g.dilation_h, g.P);
      const auto across = rows(v, g.S, g.stride_w, g.pad_w, g.dilation_w, g.Q);
      for (int64_t n = 0; n < g.N; ++n)
        for_vectors(g.C, [&](int64_t c, int64_t count) {
          Vector sum{};
          for (const Reach& r : down_taps)
            for (const Reach& s : across)
              sum += load_n(dy + ((n * g.P + r.first) * g.Q + s.first) * g.C + c, count) *
                     load_n(taps + (r.tap * g.S + s.tap) * g.C + c, count);
          store_n(dx + ((n * g.H + h) * g.W + v) * g.C + c, sum, count);
        });
    }
  }
}

// ---- gradient of the weights

void depthwise_weight_gradient(const Geometry& g, const float* x, const float* dy, float* dw) {
  float* sums = scratch(0, g.R * g.S * g.C);
  std::fill_n(sums, g.R * g.S * g.C, 0.0f);
  PaddedImages padded(1, g.H, g.W, g.C, g.pad_h, g.pad_h, g.pad_w, g.pad_w);
  for (int64_t n = 0; n < g.N; ++n) {
    const float* image = padded.of(x + n * g.H * g.W * g.C, 1);
    for (int64_t t = 0; t < g.R * g.S; ++t) {
      const float* origin = image + t / g.S * g.dilation_h * padded.row() + t % g.S * g.dilation_w * g.C;
      for_vectors(g.C, [&](int64_t c, int64_t count) {
        Vector sum = load_n(sums + t * g.C + c, count);
        for (int64_t p = 0; p < g.P; ++p)
          for (int64_t q = 0; q < g.Q; ++q)
            sum += load_n(origin + p * g.stride_h * padded.row() + q * g.stride_w * g.C + c, count) *
                   load_n(dy + ((n * g.P + p) * g.Q + q) * g.C + c, count);
        store_n(sums + t * g.C + c, sum, count);
      });
    }
  }
  for (int64_t c = 0; c < g.C; ++c)
    for (int64_t t = 0; t < g.R * g.S; ++t) dw[c * g.R * g.S + t] = sums[t * g.C + c];
}

void weight_gradient(const Geometry& g, const float* x, const float* dy, float* dw) {
  if (g.is_depthwise()) return depthwise_weight_gradient(g, x, dy, dw);
  const int64_t depth = g.group_in(), columns = g.group_out(), taps = g.R * g.S, size = taps * depth * columns;
  float* sums = scratch(0, g.groups * size);  // [g, R, S, C/g, O/g]
  std::fill_n(sums, g.groups * size, 0.0f);
  const int64_t together = images_at_once(g.N, g.P * g.Q);
  PaddedImages padded(together, g.H, g.W, g.C, g.pad_h, g.pad_h, g.pad_w, g.pad_w);
  std::vector<int64_t> lines;
  for (int64_t n = 0; n < together; ++n)
    for (int64_t p = 0; p < g.P; ++p) lines.push_back(n * padded.size() + p * g.stride_h * padded.row());
  const bool joined = g.dilation_w == 1 && g.groups == 1, packs = columns % VL != 0;
  const int64_t width = padded_columns(columns), rows = joined ? g.S * g.C : depth;
  const int64_t* targets = offsets(0, rows, columns);
  for (int64_t n = 0; n < g.N; n += together) {
    const int64_t count = std::min(together, g.N - n), pixels = count * g.P * g.Q;
    const float* images = padded.of(x + n * g.H * g.W * g.C, count);
    const float* gradient = dy + n * g.P * g.Q * g.O;
    for (int64_t k = 0; k < g.groups; ++k) {
      const float* right = gradient + k * columns;
      if (packs) {
        float* packed = scratch(2, pixels * width);
        for (int64_t i = 0; i < pixels; ++i) {
          std::copy_n(right + i * g.O, columns, packed + i * width);
          std::fill_n(packed + i * width + columns, width - columns, 0.0f);
        }
        right = packed;
      }
      for (int64_t t = 0; t < taps; t += joined ? g.S : 1) {
        const float* origin = images + t / g.S * g.dilation_h * padded.row() + t % g.S * g.dilation_w * g.C + k * depth;
        multiply({origin, nullptr, g.stride_w * g.C, lines.data(), count * g.P, g.Q}, rows, right, packs ? width : g.O,
                 columns, sums + k * size + t * depth * columns, targets, true);
      }
    }
  }
  for (int64_t k = 0; k < g.groups; ++k)
    for (int64_t o = 0; o < columns; ++o)
      for (int64_t c = 0; c < depth; ++c)
        for (int64_t t = 0; t < taps; ++t)
          dw[((k * columns + o) * depth + c) * taps + t] = sums[k * size + (t * depth + c) * columns + o];
}

// ---- calls

// convolution(x, w, bias?, stride, padding, dilation, groups) -> y
void convolution(Call& call) {
  Geometry g{};
  g.N = call.size(0, 0), g.H = call.size(0, 1), g.W = call.size(0, 2), g.C = call.size(0, 3);
  g.O = call.size(1, 0), g.R = call.size(1, 2), g.S = call.size(1, 3);
  set_window(g, call.ints(3), call.ints(4), call.ints(5), call.integer(6));
  g.P = output_size(g.H, g.R, g.stride_h, g.pad_h, g.dilation_h);
  g.Q = output_size(g.W, g.S, g.stride_w, g.pad_w, g.dilation_w);
  if (!call.require(g.P > 0 && g.Q > 0 && call.size(1, 1) * g.groups == g.C) || !call.resize(7, {g.N, g.P, g.Q, g.O}))
    return;
  forward(g, call.in(0), call.in(1), call.in_or_null(2), call.out(7));
}

// convolution_input_gradient(dy, w, size [H, W], stride, padding, dilation, groups) -> dx
void convolution_input_gradient(Call& call) {
  Geometry g{};
  g.N = call.size(0, 0), g.P = call.size(0, 1), g.Q = call.size(0, 2), g.O = call.size(0, 3);
  g.R = call.size(1, 2), g.S = call.size(1, 3), g.H = call.ints(2)[0], g.W = call.ints(2)[1];
  set_window(g, call.ints(3), call.ints(4), call.ints(5), call.integer(6));
  g.C = call.size(1, 1) * g.groups;
  if (!call.require(call.size(1, 0) == g.O) || !call.resize(7, {g.N, g.H, g.W, g.C})) return;
  if (g.is_depthwise()) {
    depthwise_input_gradient(g, call.in(0), call.in(1), call.out(7));
  } else {
    input_gradient(g, call.in(0), call.in(1), call.out(7));
  }
}

// convolution_weight_gradient(x, dy, kernel [R, S], stride, padding, dilation, groups) -> dw
void convolution_weight_gradient(Call& call) {
  Geometry g{};
  g.N = call.size(0, 0), g.H = call.size(0, 1), g.W = call.size(0, 2), g.C = call.size(0, 3);
  g.P = call.size(1, 1), g.Q = call.size(1, 2), g.O = call.size(1, 3), g.R = call.ints(2)[0], g.S = call.ints(2)[1];
  set_window(g, call.ints(3), call.ints(4), call.ints(5), call.integer(6));
  if (!call.require(call.size(1, 0) == g.N) || !call.resize(7, {g.O, g.group_in(), g.R, g.S})) return;
  weight_gradient(g, call.in(0), call.in(1), call.out(7));
}

APPORTION_KERNEL("convolution", convolution);
APPORTION_KERNEL("convolution_input_gradient", convolution_input_gradient);
APPORTION_KERNEL("convolution_weight_gradient", convolution_weight_gradient);

}  // namespace

void whole_convolution(int64_t images, int64_t size, int64_t channels, int64_t kernel, const float* x, const float* w,
                       const float* dy, float* y, float* dx, float* dw) {
  const int64_t pad = kernel / 2;
  const Geometry g{images, size, size, channels, size, size, channels, kernel, kernel, 1, 1, 1, pad, pad, 1, 1};
  forward(g, x, w, nullptr, y);
  input_gradient(g, dy, w, dx);
  weight_gradient(g, x, dy, dw);
}

}  // namespace apportion
