// Convolutions of every channel by itself, and their gradients: vectors run over channels. Legend as in convolution.h.
#include "convolution.h"
#include "simd.h"

namespace apportion {
namespace {

// [R, S, C] of depthwise weights [C, R, S].
const float* taps_first(const Geometry& g, const float* w) {
  float* taps = scratch(0, g.R * g.S * g.C);
  for (int64_t c = 0; c < g.C; ++c)
    for (int64_t t = 0; t < g.R * g.S; ++t) taps[t * g.C + c] = w[c * g.R * g.S + t];
  return taps;
}

}  // namespace

void depthwise_forward(const Geometry& g, const float* x, const float* w, const float* bias, float* y) {
  const float* taps = taps_first(g, w);
  const Padding padding{g.H, g.W, g.C, g.pad_h, g.pad_h, g.pad_w, g.pad_w};
  const Pieces pieces(g.N, g.P, g.Q);
  for_chunks(pieces.count(), [&](int64_t i) {
    const auto piece = pieces.at(i);
    const int64_t rows = (piece.rows - 1) * g.stride_h + g.reach_h() + 1;
    for (int64_t n = piece.image; n < piece.image + piece.images; ++n) {
      const float* image = padding.of(x + n * g.H * g.W * g.C, 1, piece.row * g.stride_h, rows);
      for (int64_t p = 0; p < piece.rows; ++p)
        for (int64_t q = 0; q < g.Q; ++q) {
          float* pixel = y + ((n * g.P + piece.row + p) * g.Q + q) * g.C;
          const float* corner = image + p * g.stride_h * padding.row() + q * g.stride_w * g.C;
          for_vectors(g.C, [&](int64_t c, int64_t count) {
            Vector sum = bias ? load_n(bias + c, count) : Vector{};
            for (int64_t r = 0; r < g.R; ++r)
              for (int64_t s = 0; s < g.S; ++s)
                sum += load_n(corner + r * g.dilation_h * padding.row() + s * g.dilation_w * g.C + c, count) *
                       load_n(taps + (r * g.S + s) * g.C + c, count);
            store_n(pixel + c, sum, count);
          });
        }
    }
  });
}

void depthwise_input_gradient(const Geometry& g, const float* dy, const float* w, float* dx) {
  const float* taps = taps_first(g, w);
  // The taps that reach each input row and column, and the output row or column that each comes from.
  const auto all = [](int64_t size, int64_t kernel, int64_t stride, int64_t pad, int64_t dilation, int64_t limit) {
    std::vector<std::vector<Reach>> found;
    for (int64_t pixel = 0; pixel < size; ++pixel) {
      found.push_back(reaching(pixel % stride, kernel, stride, pad, dilation));
      for (Reach& reach : found.back()) reach.first += pixel / stride;
      std::erase_if(found.back(), [&](const Reach& reach) { return reach.first < 0 || reach.first >= limit; });
    }
    return found;
  };
  const auto down_taps = all(g.H, g.R, g.stride_h, g.pad_h, g.dilation_h, g.P);
  const auto across_taps = all(g.W, g.S, g.stride_w, g.pad_w, g.dilation_w, g.Q);
  for_rows(g.N * g.H, g.W * g.C, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row)
      for (int64_t v = 0; v < g.W; ++v)
        for_vectors(g.C, [&](int64_t c, int64_t count) {
          Vector sum{};
          for (const Reach& r : down_taps[static_cast<size_t>(row % g.H)])
            for (const Reach& s : across_taps[static_cast<size_t>(v)])
              sum += load_n(dy + ((row / g.H * g.P + r.first) * g.Q + s.first) * g.C + c, count) *
                     load_n(taps + (r.tap * g.S + s.tap) * g.C + c, count);
          store_n(dx + (row * g.W + v) * g.C + c, sum, count);
        });
  });
}

void depthwise_weight_gradient(const Geometry& g, const float* x, const float* dy, float* dw) {
  const Padding padding{g.H, g.W, g.C, g.pad_h, g.pad_h, g.pad_w, g.pad_w};
  const Pieces pieces(g.N, g.P, g.Q);
  const int64_t size = g.R * g.S * g.C, shares = shares_of(pieces.count(), size);
  float* sums = scratch(0, shares * size);
  in_shares(pieces, shares, sums, size, [&](const Pieces::Piece& piece, float* own) {
    const int64_t rows = (piece.rows - 1) * g.stride_h + g.reach_h() + 1;
    for (int64_t n = piece.image; n < piece.image + piece.images; ++n) {
      const float* image = padding.of(x + n * g.H * g.W * g.C, 1, piece.row * g.stride_h, rows);
      for (int64_t t = 0; t < g.R * g.S; ++t) {
        const float* origin = image + t / g.S * g.dilation_h * padding.row() + t % g.S * g.dilation_w * g.C;
        for_vectors(g.C, [&](int64_t c, int64_t count) {
          Vector sum = load_n(own + t * g.C + c, count);
          for (int64_t p = 0; p < piece.rows; ++p)
            for (int64_t q = 0; q < g.Q; ++q)
              sum += load_n(origin + p * g.stride_h * padding.row() + q * g.stride_w * g.C + c, count) *
                     load_n(dy + ((n * g.P + piece.row + p) * g.Q + q) * g.C + c, count);
          store_n(own + t * g.C + c, sum, count);
        });
      }
    }
  });
  for (int64_t c = 0; c < g.C; ++c)
    for (int64_t t = 0; t < g.R * g.S; ++t) dw[c * g.R * g.S + t] = sums[t * g.C + c];
}

}  // namespace apportion
