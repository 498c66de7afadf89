// Convolution and its two gradients without im2col: pixels are read where they lie in one padded image at a time.
// Legend: N images, H W input pixels, P Q output pixels, C input and O output channels, R S kernel; weights [O, C/g, R, S].
#include <algorithm>
#include <vector>

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

// One image with zeros around it; the image itself where there are none to add.
class PaddedImage {
 public:
  PaddedImage(int64_t height, int64_t width, int64_t channels, int64_t top, int64_t bottom, int64_t left, int64_t right)
      : height_(height), width_(width), channels_(channels), top_(top), left_(left), is_padded_(top + bottom + left + right > 0) {
    full_width_ = left + width + right;
    if (is_padded_) {
      const int64_t count = (top + height + bottom) * full_width_ * channels;
      buffer_ = scratch(1, count);
      std::fill_n(buffer_, count, 0.0f);
    }
  }
  int64_t row() const { return full_width_ * channels_; }
  const float* of(const float* image) {
    if (!is_padded_) return image;
    for (int64_t h = 0; h < height_; ++h)
      std::copy_n(image + h * width_ * channels_, width_ * channels_,
                  buffer_ + ((top_ + h) * full_width_ + left_) * channels_);
    return buffer_;
  }

 private:
  int64_t height_, width_, channels_, top_, left_, full_width_;
  bool is_padded_;
  float* buffer_ = nullptr;
};

void fill_rows(float* y, int64_t rows, int64_t columns, const float* bias) {
  for (int64_t i = 0; i < rows; ++i) std::copy_n(bias, columns, y + i * columns);
}

// ---- forward

void depthwise_forward(const Geometry& g, const float* x, const float* w, const float* bias, float* y) {
  float* taps = scratch(0, g.R * g.S * g.C);  // [R, S, C]
  for (int64_t c = 0; c < g.C; ++c)
    for (int64_t t = 0; t < g.R * g.S; ++t) taps[t * g.C + c] = w[c * g.R * g.S + t];
  PaddedImage padded(g.H, g.W, g.C, g.pad_h, g.pad_h, g.pad_w, g.pad_w);
  for (int64_t n = 0; n < g.N; ++n) {
    const float* image = padded.of(x + n * g.H * g.W * g.C);
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
  PaddedImage padded(g.H, g.W, g.C, g.pad_h, g.pad_h, g.pad_w, g.pad_w);
  // A whole kernel row is one stretch of memory when its taps are neighbours.
  const bool joined = g.dilation_w == 1 && g.groups == 1;
  std::vector<int64_t> segments;
  for (int64_t r = 0; r < g.R; ++r)
    for (int64_t s = 0; s < (joined ? 1 : g.S); ++s)
      segments.push_back(r * g.dilation_h * padded.row() + s * g.dilation_w * g.C);
  const bool is_matrix = taps == 1 && g.stride_h == 1 && g.stride_w == 1 && g.pad_h == 0 && g.pad_w == 0;
  const int64_t images = is_matrix ? 1 : g.N, lines = is_matrix ? 1 : g.P, pixels = is_matrix ? g.N * g.H * g.W : g.Q;
  for (int64_t n = 0; n < images; ++n) {
    const float* image = padded.of(x + n * g.H * g.W * g.C);
    for (int64_t p = 0; p < lines; ++p)
      for (int64_t k = 0; k < g.groups; ++k) {
        const Operand a{image + p * g.stride_h * padded.row() + k * depth, g.stride_w * g.C, 1, segments.data(),
                        static_cast<int64_t>(segments.size()), joined ? g.S * g.C : depth};
        multiply(a, pixels, packed + k * taps * depth * width, width, columns,
                 y + (n * g.P + p) * g.Q * g.O + k * columns, g.O, bias != nullptr);
      }
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
  PaddedImage padded(g.P, g.Q, g.O, top, bottom, left, right);
  float* packed = scratch(0, g.groups * area * depth * width);

  struct Phase {
    int64_t h, w;
    std::vector<int64_t> segments;
    float* weights;
  };
  std::vector<Phase> phases;
  for (int64_t ph = 0; ph < std::min(g.stride_h, g.H); ++ph)
    for (int64_t pw = 0; pw < std::min(g.stride_w, g.W); ++pw) {
      Phase phase{ph, pw, {}, packed};
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
      if (phase.segments.empty()) std::fill_n(dx, g.N * g.H * g.W * g.C, 0.0f);
      phases.push_back(std::move(phase));
    }
  for (int64_t n = 0; n < g.N; ++n) {
    const float* image = padded.of(dy + n * g.P * g.Q * g.O);
    for (const Phase& phase : phases) {
      if (phase.segments.empty()) continue;
      const int64_t taps = static_cast<int64_t>(phase.segments.size());
      const int64_t pixels = (g.W - phase.w + g.stride_w - 1) / g.stride_w;
      for (int64_t i = 0, h = phase.h; h < g.H; ++i, h += g.stride_h)
        for (int64_t k = 0; k < g.groups; ++k) {
          const Operand a{image + i * padded.row() + k * depth, g.O, 1, phase.segments.data(), taps, depth};
          multiply(a, pixels, phase.weights + k * taps * depth * width, width, columns,
                   dx + ((n * g.H + h) * g.W + phase.w) * g.C + k * columns, g.stride_w * g.C, false);
        }
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
  PaddedImage padded(g.H, g.W, g.C, g.pad_h, g.pad_h, g.pad_w, g.pad_w);
  for (int64_t n = 0; n < g.N; ++n) {
    const float* image = padded.of(x + n * g.H * g.W * g.C);
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
  PaddedImage padded(g.H, g.W, g.C, g.pad_h, g.pad_h, g.pad_w, g.pad_w);
  std::vector<int64_t> lines;
  for (int64_t p = 0; p < g.P; ++p) lines.push_back(p * g.stride_h * padded.row());
  const bool joined = g.dilation_w == 1 && g.groups == 1, packs = columns % VL != 0;
  const int64_t width = padded_columns(columns), rows = joined ? g.S * g.C : depth;
  for (int64_t n = 0; n < g.N; ++n) {
    const float* image = padded.of(x + n * g.H * g.W * g.C);
    const float* gradient = dy + n * g.P * g.Q * g.O;
    for (int64_t k = 0; k < g.groups; ++k) {
      const float* right = gradient + k * columns;
      if (packs) {
        float* packed = scratch(2, g.P * g.Q * width);
        for (int64_t i = 0; i < g.P * g.Q; ++i) {
          std::copy_n(right + i * g.O, columns, packed + i * width);
          std::fill_n(packed + i * width + columns, width - columns, 0.0f);
        }
        right = packed;
      }
      for (int64_t t = 0; t < taps; t += joined ? g.S : 1) {
        const float* origin = image + t / g.S * g.dilation_h * padded.row() + t % g.S * g.dilation_w * g.C + k * depth;
        multiply({origin, 1, g.stride_w * g.C, lines.data(), g.P, g.Q}, rows, right, packs ? width : g.O, columns,
                 sums + k * size + t * depth * columns, columns, true);
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
}  // namespace apportion
