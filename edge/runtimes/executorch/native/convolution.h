// What convolutions of every kind share: their sizes, padding, and how a batch is cut in pieces and sums in shares.
// Legend: N images, H W input pixels, P Q output pixels, C input and O output channels, R S kernel; weights [O, C/g, R, S].
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "products.h"
#include "threads.h"

namespace apportion {

struct Geometry {
  int64_t N, H, W, C, P, Q, O, R, S, groups;
  int64_t stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w;

  int64_t reach_h() const { return (R - 1) * dilation_h; }
  int64_t reach_w() const { return (S - 1) * dilation_w; }
  int64_t group_in() const { return C / groups; }
  int64_t group_out() const { return O / groups; }
  bool is_depthwise() const { return groups == C && groups == O && groups > 1; }
};

// Images with zeros around them, a few whole ones or a band of rows of one at a time, in this thread's scratch memory; where
// there are no zeros to add, the images themselves.
struct Padding {
  int64_t height, width, channels, top, bottom, left, right;

  bool is_none() const { return top + bottom + left + right == 0; }
  int64_t row() const { return (left + width + right) * channels; }
  // `rows` padded rows from padded row `first` on, of each of `count` images that follow each other in memory.
  const float* of(const float* images, int64_t count, int64_t first, int64_t rows) const {
    const int64_t line = width * channels;
    if (is_none()) return images + first * line;
    float* buffer = scratch(1, count * rows * row());
    float* to = buffer;
    for (int64_t n = 0; n < count; ++n)
      for (int64_t h = first - top; h < first - top + rows; ++h, to += row()) {
        if (h < 0 || h >= height) {
          std::fill_n(to, row(), 0.0f);
          continue;
        }
        std::fill_n(to, left * channels, 0.0f);
        std::copy_n(images + (n * height + h) * line, line, to + left * channels);
        std::fill_n(to + left * channels + line, right * channels, 0.0f);
      }
    return buffer;
  }
};

// How the rows of a batch of images are cut in pieces that are worked on one by one: some whole images, so many that weights
// are worth fetching once for all of them, or a band of rows of one image.
struct Pieces {
  int64_t images, rows, together, band;

  Pieces(int64_t images, int64_t rows, int64_t width) : images(images), rows(rows), together(1), band(rows) {
    constexpr int64_t kFewest = 256, kMost = 1024;  // pixels
    const int64_t pixels = rows * width;
    if (pixels < kFewest) {
      together = std::clamp<int64_t>((kFewest + pixels - 1) / std::max<int64_t>(1, pixels), 1, images);
    } else if (pixels > kMost) {
      band = std::max<int64_t>(1, kMost / width);
    }
  }
  int64_t per_image() const { return (rows + band - 1) / band; }
  int64_t count() const { return (images + together - 1) / together * per_image(); }

  struct Piece {
    int64_t image, images, row, rows;
  };
  Piece at(int64_t i) const {
    const int64_t image = i / per_image() * together, row = i % per_image() * band;
    return {image, std::min(together, images - image), row, std::min(band, rows - row)};
  }
};

// Floor division.
inline int64_t down(int64_t a, int64_t b) { return a >= 0 ? a / b : -((-a + b - 1) / b); }

// Input pixels h = phase + stride * i, all of which the same kernel taps reach: output pixel i + first for each tap.
struct Reach {
  int64_t tap, first;
};
inline std::vector<Reach> reaching(int64_t phase, int64_t kernel, int64_t stride, int64_t pad, int64_t dilation) {
  std::vector<Reach> taps;
  for (int64_t k = 0; k < kernel; ++k) {
    const int64_t shifted = phase + pad - k * dilation;
    if (shifted - down(shifted, stride) * stride == 0) taps.push_back({k, down(shifted, stride)});
  }
  return taps;
}

// Sums over all pieces are made in shares, each in its own memory, which are then added in order: shares are of as many
// pieces whatever the number of threads. No more than so many floats for all shares together; 1 where they are too large.
inline int64_t shares_of(int64_t pieces, int64_t floats) {
  constexpr int64_t kShares = 8, kFloats = 3 << 17;
  int64_t shares = std::min(kShares, pieces);
  while (shares > 1 && shares * floats > kFloats) shares /= 2;
  return shares < 4 ? 1 : shares;
}

// f(piece, sums of its share) for every piece; then the shares are added up in the first one. With one share, pieces follow
// each other on the caller's thread.
template <class F>
void for_shares(int64_t pieces, int64_t shares, float* sums, int64_t floats, const F& f) {
  for_chunks(shares, [&](int64_t share) {
    float* own = sums + share * floats;
    std::fill_n(own, floats, 0.0f);
    for (int64_t i = share * pieces / shares; i < (share + 1) * pieces / shares; ++i) f(i, own);
  });
  if (shares > 1)
    for_floats(floats, [&](int64_t begin, int64_t end) {
      for (int64_t share = 1; share < shares; ++share)
        for (int64_t i = begin; i < end; ++i) sums[i] += sums[share * floats + i];
    });
}

// The same for pieces of a batch.
template <class F>
void in_shares(const Pieces& pieces, int64_t shares, float* sums, int64_t floats, F f) {
  for_shares(pieces.count(), shares, sums, floats, [&](int64_t i, float* own) { f(pieces.at(i), own); });
}

// Every channel by itself; see depthwise.cpp.
void depthwise_forward(const Geometry& g, const float* x, const float* w, const float* bias, float* y);
void depthwise_input_gradient(const Geometry& g, const float* dy, const float* w, float* dx);
void depthwise_weight_gradient(const Geometry& g, const float* x, const float* dy, float* dw);

}  // namespace apportion
