// Convolution and its two gradients without im2col: pixels are read where they lie in a padded piece of the batch.
// Legend: N images, H W input pixels, P Q output pixels, C input and O output channels, R S kernel; weights [O, C/g, R, S].
#include <algorithm>
#include <vector>

#include "convolution.h"
#include "crossover.h"
#include "kernels.h"
#include "products.h"
#include "simd.h"
#include "threads.h"
#include "winograd.h"

namespace apportion {
namespace {

void set_window(Geometry& g, Ints stride, Ints padding, Ints dilation, int64_t groups) {
  g.stride_h = stride[0], g.stride_w = stride[1], g.pad_h = padding[0], g.pad_w = padding[1];
  g.dilation_h = dilation[0], g.dilation_w = dilation[1], g.groups = groups;
}

int64_t output_size(int64_t size, int64_t kernel, int64_t stride, int64_t pad, int64_t dilation) {
  return (size + 2 * pad - dilation * (kernel - 1) - 1) / stride + 1;
}

void fill_rows(float* y, int64_t rows, int64_t columns, const float* bias) {
  for (int64_t i = 0; i < rows; ++i) std::copy_n(bias, columns, y + i * columns);
}

// ---- forward

void forward(const Geometry& g, const float* x, const float* w, const float* bias, float* y) {
  if (g.is_depthwise()) return depthwise_forward(g, x, w, bias, y);
  if (suits_winograd(g)) return winograd_forward(g, x, w, bias, y);
  const int64_t depth = g.group_in(), columns = g.group_out(), width = padded_columns(columns), taps = g.R * g.S;
  float* weights = scratch(0, g.groups * taps * depth * width);  // [g][R, S, C/g, O/g]
  for_rows(g.groups * taps, depth * width, [&](int64_t begin, int64_t end) {
    for (int64_t k = begin; k < end; ++k)
      pack(w + k / taps * columns * depth * taps + k % taps, taps, depth * taps, depth, columns,
           weights + k / taps * taps * depth * width, taps * depth, k % taps * depth);
  });
  const Padding padding{g.H, g.W, g.C, g.pad_h, g.pad_h, g.pad_w, g.pad_w};
  const Pieces pieces(g.N, g.P, g.Q);
  const int64_t reach = g.reach_h() + 1, image_rows = (pieces.band - 1) * g.stride_h + reach;
  // A whole kernel row is one stretch of memory when its taps are neighbours.
  const bool joined = g.dilation_w == 1 && g.groups == 1;
  std::vector<int64_t> segments, pixels;
  for (int64_t r = 0; r < g.R; ++r)
    for (int64_t s = 0; s < (joined ? 1 : g.S); ++s)
      segments.push_back(r * g.dilation_h * padding.row() + s * g.dilation_w * g.C);
  // Images lie as far from each other as padding leaves them, or as they are.
  const int64_t image_size = padding.is_none() ? g.H * g.W * g.C : image_rows * padding.row();
  for (int64_t n = 0; n < pieces.together; ++n)
    for (int64_t p = 0; p < pieces.band; ++p)
      for (int64_t q = 0; q < g.Q; ++q)
        pixels.push_back(n * image_size + p * g.stride_h * padding.row() + q * g.stride_w * g.C);
  const int64_t* targets = offsets(0, static_cast<int64_t>(pixels.size()), g.O);
  for_chunks(pieces.count(), [&](int64_t i) {
    const auto piece = pieces.at(i);
    const float* images = padding.of(x + piece.image * g.H * g.W * g.C, piece.images, piece.row * g.stride_h,
                                     (piece.rows - 1) * g.stride_h + reach);
    const int64_t count = piece.images * piece.rows * g.Q;
    float* to = y + (piece.image * g.P + piece.row) * g.Q * g.O;
    if (bias) fill_rows(to, count, g.O, bias);
    for (int64_t k = 0; k < g.groups; ++k)
      multiply_in_parts({images + k * depth, pixels.data(), 1, segments.data(), static_cast<int64_t>(segments.size()),
                         joined ? g.S * g.C : depth},
                        count, packed(weights + k * taps * depth * width, taps * depth, columns), columns, to + k * columns, targets,
                        bias != nullptr);
  });
}

// ---- gradient of the input

void input_gradient(const Geometry& g, const float* dy, const float* w, float* dx) {
  if (g.is_depthwise()) return depthwise_input_gradient(g, dy, w, dx);
  if (suits_winograd(g)) return winograd_input_gradient(g, dy, w, dx);
  const int64_t columns = g.group_in(), depth = g.group_out(), width = padded_columns(columns), area = g.R * g.S;
  const int64_t top = std::max<int64_t>(0, -down(g.pad_h - g.reach_h(), g.stride_h));
  const int64_t left = std::max<int64_t>(0, -down(g.pad_w - g.reach_w(), g.stride_w));
  const int64_t bottom = std::max<int64_t>(0, down(g.H - 1 + g.pad_h, g.stride_h) - (g.P - 1));
  const int64_t right = std::max<int64_t>(0, down(g.W - 1 + g.pad_w, g.stride_w) - (g.Q - 1));
  const Padding padding{g.P, g.Q, g.O, top, bottom, left, right};
  // Rows counted in strides: row i of a piece stands for the input rows phase + stride * i of every phase.
  const int64_t strides_h = (g.H + g.stride_h - 1) / g.stride_h, strides_w = (g.W + g.stride_w - 1) / g.stride_w;
  const Pieces pieces(g.N, strides_h, strides_w * g.stride_h * g.stride_w);
  // Padded rows that a band needs beside its own: as far as any tap reads.
  const int64_t reach = top + std::max<int64_t>(0, down(g.stride_h - 1 + g.pad_h, g.stride_h));
  const int64_t image_size = padding.is_none() ? g.P * g.Q * g.O : (pieces.band + reach) * padding.row();
  float* packed_weights = scratch(0, g.groups * area * depth * width);

  struct Phase {
    std::vector<int64_t> segments, pixels, targets;
    int64_t row, rows, across;
    const float* weights;
  };
  std::vector<Phase> phases;
  bool all_reached = true;
  for (int64_t ph = 0; ph < std::min(g.stride_h, g.H); ++ph)
    for (int64_t pw = 0; pw < std::min(g.stride_w, g.W); ++pw) {
      Phase phase{{}, {}, {}, ph, (g.H - ph + g.stride_h - 1) / g.stride_h, (g.W - pw + g.stride_w - 1) / g.stride_w, packed_weights};
      const auto rows = reaching(ph, g.R, g.stride_h, g.pad_h, g.dilation_h);
      const auto cols = reaching(pw, g.S, g.stride_w, g.pad_w, g.dilation_w);
      for (const Reach& r : rows)
        for (const Reach& s : cols) phase.segments.push_back((top + r.first) * padding.row() + (left + s.first) * g.O);
      std::vector<int64_t> places;  // of the phase's taps in the weights
      for (const Reach& r : rows)
        for (const Reach& s : cols) places.push_back(r.tap * g.S + s.tap);
      const auto count = static_cast<int64_t>(places.size());
      for_rows(g.groups * count, depth * width, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i)
          pack(w + i / count * depth * columns * area + places[static_cast<size_t>(i % count)], columns * area, area, depth,
               columns, packed_weights + i / count * count * depth * width, count * depth, i % count * depth);
      });
      packed_weights += g.groups * count * depth * width;
      for (int64_t n = 0; n < pieces.together; ++n)
        for (int64_t i = 0; i < std::min(pieces.band, phase.rows); ++i)
          for (int64_t j = 0; j < phase.across; ++j) {
            phase.pixels.push_back(n * image_size + i * padding.row() + j * g.O);
            phase.targets.push_back(((n * g.H + ph + i * g.stride_h) * g.W + pw + j * g.stride_w) * g.C);
          }
      all_reached = all_reached && !phase.segments.empty();
      phases.push_back(std::move(phase));
    }
  if (!all_reached)
    for_floats(g.N * g.H * g.W * g.C, [&](int64_t begin, int64_t end) { std::fill(dx + begin, dx + end, 0.0f); });
  for_chunks(pieces.count(), [&](int64_t i) {
    const auto piece = pieces.at(i);
    const float* images = padding.of(dy + piece.image * g.P * g.Q * g.O, piece.images, piece.row, piece.rows + reach);
    for (const Phase& phase : phases) {
      const int64_t taps = static_cast<int64_t>(phase.segments.size());
      const int64_t rows = std::min(piece.rows, phase.rows - piece.row), pixels = piece.images * rows * phase.across;
      for (int64_t k = 0; taps > 0 && rows > 0 && k < g.groups; ++k)
        multiply_in_parts({images + k * depth, phase.pixels.data(), 1, phase.segments.data(), taps, depth}, pixels,
                          packed(phase.weights + k * taps * depth * width, taps * depth, columns), columns,
                          dx + (piece.image * g.H + piece.row * g.stride_h) * g.W * g.C + k * columns, phase.targets.data(),
                          false);
    }
  });
}

// ---- gradient of the weights

void weight_gradient(const Geometry& g, const float* x, const float* dy, float* dw) {
  if (g.is_depthwise()) return depthwise_weight_gradient(g, x, dy, dw);
  if (suits_winograd(g)) return winograd_weight_gradient(g, x, dy, dw);
  const int64_t depth = g.group_in(), columns = g.group_out(), taps = g.R * g.S, size = taps * depth * columns;
  const Padding padding{g.H, g.W, g.C, g.pad_h, g.pad_h, g.pad_w, g.pad_w};
  const Pieces pieces(g.N, g.P, g.Q);
  const int64_t shares = shares_of(pieces.count(), g.groups * size);
  float* sums = scratch(0, shares * g.groups * size);  // each [g, R, S, C/g, O/g]
  const int64_t reach = g.reach_h() + 1, image_rows = (pieces.band - 1) * g.stride_h + reach;
  const int64_t image_size = padding.is_none() ? g.H * g.W * g.C : image_rows * padding.row();
  std::vector<int64_t> lines;
  for (int64_t n = 0; n < pieces.together; ++n)
    for (int64_t p = 0; p < pieces.band; ++p) lines.push_back(n * image_size + p * g.stride_h * padding.row());
  const bool joined = g.dilation_w == 1 && g.groups == 1;
  const int64_t width = padded_columns(columns), rows = joined ? g.S * g.C : depth;
  const int64_t* targets = offsets(0, rows, columns);
  const auto padded = [&](const Pieces::Piece& piece) {
    return padding.of(x + piece.image * g.H * g.W * g.C, piece.images, piece.row * g.stride_h,
                      (piece.rows - 1) * g.stride_h + reach);
  };
  // The piece's part of dy for group k.
  const auto gradients = [&](const Pieces::Piece& piece, int64_t k) {
    const float* right = dy + (piece.image * g.P + piece.row) * g.Q * g.O + k * columns;
    const int64_t pixels = piece.images * piece.rows * g.Q;
    if (columns == width && columns <= VL) return as_it_lies(right, g.O);
    float* room = scratch(2, pixels * width);
    pack(right, g.O, 1, pixels, columns, room, pixels, 0);
    return packed(room, pixels, columns);
  };
  // Rows begin .. end - 1 of the sums of kernel place t and those joined with it.
  const auto add = [&](const Pieces::Piece& piece, const float* images, const Right& right, int64_t k, int64_t t, int64_t begin,
                       int64_t end, float* own) {
    const float* origin = images + t / g.S * g.dilation_h * padding.row() + t % g.S * g.dilation_w * g.C + k * depth + begin;
    multiply_in_parts({origin, nullptr, g.stride_w * g.C, lines.data(), piece.images * piece.rows, g.Q}, end - begin, right,
                      columns, own + k * size + t * depth * columns + begin * columns, targets, true);
  };
  const int64_t together = joined ? g.S : 1;
  if (shares > 1) {
    in_shares(pieces, shares, sums, g.groups * size, [&](const Pieces::Piece& piece, float* own) {
      const float* images = padded(piece);
      for (int64_t k = 0; k < g.groups; ++k) {
        const Right right = gradients(piece, k);
        for (int64_t t = 0; t < taps; t += together) add(piece, images, right, k, t, 0, rows, own);
      }
    });
  } else {
    // Sums too large to hold more than once: each chunk has some rows of them, and goes through all pieces.
    constexpr int64_t kRows = 96;
    const int64_t parts = (rows + kRows - 1) / kRows;
    std::fill_n(sums, g.groups * size, 0.0f);
    for (int64_t i = 0; i < pieces.count(); ++i) {
      const auto piece = pieces.at(i);
      const float* images = padded(piece);
      for (int64_t k = 0; k < g.groups; ++k) {
        const Right right = gradients(piece, k);
        for_chunks(taps / together * parts, [&](int64_t chunk) {
          const int64_t begin = chunk % parts * kRows;
          add(piece, images, right, k, chunk / parts * together, begin, std::min(rows, begin + kRows), sums);
        });
      }
    }
  }
  for_rows(g.O, depth * taps, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t k = row / columns, o = row % columns;
      for (int64_t c = 0; c < depth; ++c)
        for (int64_t t = 0; t < taps; ++t) dw[(row * depth + c) * taps + t] = sums[k * size + (t * depth + c) * columns + o];
    }
  });
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
  input_gradient(g, call.in(0), call.in(1), call.out(7));
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
