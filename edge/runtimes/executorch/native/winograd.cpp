// Winograd's F(2 x 2, 3 x 3): 16 products where a convolution has 36, for each tile of 2 x 2 output pixels. Source: Lavin
// and Gray, Fast Algorithms for Convolutional Neural Networks, 2015, section 4.1; the weights' gradient is its transpose.
// Legend: a tile has 16 places; T tiles are worked on at once. y = A' [(G w G') * (B' x B)] A, with * over places and
// sums over channels: one product [T, C] x [C, O] for each place.
#include "winograd.h"

#include <algorithm>
#include <vector>

#include "products.h"
#include "simd.h"
#include "threads.h"

namespace apportion {
namespace {

constexpr int64_t kPlaces = 16;
constexpr int64_t kWeightFloats = 1 << 19;  // of weights that are there at once
constexpr int64_t kTiledFloats = 1 << 20;   // of tiles that are there at once for all threads, where outputs are made
constexpr int64_t kSummedFloats = 1 << 19;  // the same for sums, which go through them once for every place

// ---- the one-dimensional transforms, of vectors that are pixels or taps in a row

struct Four {
  Vector a, b, c, d;
};
inline Four input_of(const Four& x) { return {x.a - x.c, x.b + x.c, x.c - x.b, x.b - x.d}; }
inline Four weights_of(Vector a, Vector b, Vector c) {
  const Vector ends = (a + c) * splat(0.5f), middle = b * splat(0.5f);
  return {a, ends + middle, ends - middle, c};
}
inline Four gradient_of(Vector a, Vector b) { return {a, a + b, a - b, -b}; }

// What turns places into output pixels or, for the weights' gradient, into taps.
inline void output_of(const Four& m, Vector& first, Vector& second) {
  first = m.a + m.b + m.c;
  second = m.b - m.c - m.d;
}
inline void taps_of(const Four& m, Vector& first, Vector& second, Vector& third) {
  const Vector sum = (m.b + m.c) * splat(0.5f);
  first = m.a + sum;
  second = (m.b - m.c) * splat(0.5f);
  third = sum + m.d;
}

// ---- images as tiles

// Tiles follow each other in rows of an image and in images.
struct Tiled {
  int64_t images, height, width, channels;  // of what is read or written
  int64_t pad_h, pad_w;                     // before it, where it is read
  int64_t down, across;                     // tiles of an image

  int64_t count() const { return images * down * across; }
};

struct Tile {
  int64_t image, row, column;
};
inline Tile tile_at(const Tiled& tiled, int64_t index) {
  return {index / (tiled.down * tiled.across), index / tiled.across % tiled.down, index % tiled.across};
}

// Where the pixels of a square of `Size` by `Size` are from (row, column) on; `outside` for those that are not there.
template <int Size, class Float>
inline void pixels_of(const Tiled& tiled, Float* images, int64_t image, int64_t row, int64_t column, Float* outside,
                      Float* (&found)[Size * Size]) {
  const int64_t line = tiled.width * tiled.channels;
  Float* corner = images + (image * tiled.height + row) * line + column * tiled.channels;
  const bool whole = row >= 0 && column >= 0 && row + Size <= tiled.height && column + Size <= tiled.width;
  for (int i = 0; i < Size; ++i)
    for (int j = 0; j < Size; ++j) {
      const bool is_there = whole || (row + i >= 0 && row + i < tiled.height && column + j >= 0 && column + j < tiled.width);
      found[i * Size + j] = is_there ? corner + i * line + j * tiled.channels : outside;
    }
}

// The four rows of a tile's places, from its columns.
inline void store_places(float* to, int64_t place, const Four (&columns)[4], int64_t n) {
  for (int64_t j = 0; j < 4; ++j) {
    store_n(to + j * place, columns[j].a, n);
    store_n(to + (4 + j) * place, columns[j].b, n);
    store_n(to + (8 + j) * place, columns[j].c, n);
    store_n(to + (12 + j) * place, columns[j].d, n);
  }
}

// Tiles `first` .. `first + count - 1`, of which one call turns begin .. end - 1.
struct Block {
  int64_t first, count;
};

// to [16, tiles, C] = B' x B.
void read_inputs(const Tiled& tiled, const float* x, Block block, int64_t begin, int64_t end, const float* zeros, float* to) {
  const int64_t channels = tiled.channels, place = block.count * channels;
  to += begin * channels;
  for (int64_t t = begin; t < end; ++t, to += channels) {
    const Tile at = tile_at(tiled, block.first + t);
    const float* pixel[16];
    pixels_of<4>(tiled, x, at.image, at.row * 2 - tiled.pad_h, at.column * 2 - tiled.pad_w, zeros, pixel);
    for_vectors(channels, [&](int64_t c, int64_t n) {
      Four rows[4];
      for (int i = 0; i < 4; ++i)
        rows[i] = input_of({load_n(pixel[i * 4] + c, n), load_n(pixel[i * 4 + 1] + c, n), load_n(pixel[i * 4 + 2] + c, n),
                            load_n(pixel[i * 4 + 3] + c, n)});
      store_places(to + c, place,
                   {input_of({rows[0].a, rows[1].a, rows[2].a, rows[3].a}), input_of({rows[0].b, rows[1].b, rows[2].b, rows[3].b}),
                    input_of({rows[0].c, rows[1].c, rows[2].c, rows[3].c}), input_of({rows[0].d, rows[1].d, rows[2].d, rows[3].d})},
                   n);
    });
  }
}

// y = A' m A (+ bias) of m [16, tiles, columns]: columns `from` .. of y's.
void write_outputs(const Tiled& tiled, const float* m, Block block, int64_t begin, int64_t end, int64_t from, int64_t columns,
                   const float* bias, float* y) {
  const int64_t place = block.count * columns;
  m += begin * columns;
  for (int64_t t = begin; t < end; ++t, m += columns) {
    const Tile at = tile_at(tiled, block.first + t);
    float* pixel[4];
    pixels_of<2>(tiled, y + from, at.image, at.row * 2, at.column * 2, static_cast<float*>(nullptr), pixel);
    for_vectors(columns, [&](int64_t o, int64_t n) {
      Vector above[4], below[4], out[4];
      for (int j = 0; j < 4; ++j) {
        const float* p = m + j * place + o;
        output_of({load_n(p, n), load_n(p + 4 * place, n), load_n(p + 8 * place, n), load_n(p + 12 * place, n)}, above[j],
                  below[j]);
      }
      output_of({above[0], above[1], above[2], above[3]}, out[0], out[1]);
      output_of({below[0], below[1], below[2], below[3]}, out[2], out[3]);
      const Vector added = bias ? load_n(bias + from + o, n) : Vector{};
      for (int i = 0; i < 4; ++i)
        if (pixel[i]) store_n(pixel[i] + o, bias ? out[i] + added : out[i], n);
    });
  }
}

// to [16] of panels [tiles, O]: A dy A'.
void read_gradients(const Tiled& tiled, const float* dy, Block block, int64_t begin, int64_t end, const float* zeros, float* to) {
  const int64_t columns = tiled.channels, width = padded_columns(columns), place = block.count * width;
  for (int64_t t = begin; t < end; ++t) {
    const Tile at = tile_at(tiled, block.first + t);
    const float* pixel[4];
    pixels_of<2>(tiled, dy, at.image, at.row * 2, at.column * 2, zeros, pixel);
    for_vectors(columns, [&](int64_t o, int64_t n) {
      const Four upper = gradient_of(load_n(pixel[0] + o, n), load_n(pixel[1] + o, n));
      const Four lower = gradient_of(load_n(pixel[2] + o, n), load_n(pixel[3] + o, n));
      store_places(to + packed_at(t, o, block.count, width), place,
                   {gradient_of(upper.a, lower.a), gradient_of(upper.b, lower.b), gradient_of(upper.c, lower.c),
                    gradient_of(upper.d, lower.d)},
                   VL);
    });
  }
}

// ---- weights

// Where weights lie that lead from input channel c to output channel o: w + c * from + o * to, taps after each other.
struct Weights {
  const float* data;
  int64_t from, to;
  bool turned;  // by half a turn, as the gradient of an input sees them
};

// to [16] of panels: G w G' of output channels begin .. begin + columns - 1.
void pack_weights(const Weights& w, int64_t depth, int64_t begin, int64_t columns, float* to) {
  const int64_t width = padded_columns(columns), place = depth * width;
  for_rows(depth, kPlaces * width, [&](int64_t from_row, int64_t to_row) {
    for (int64_t c = from_row; c < to_row; ++c)
      for (int64_t o = 0; o < width; o += VL) {
        float taps[9][VL] = {};
        for (int64_t l = 0; l < std::min<int64_t>(VL, columns - o); ++l) {
          const float* p = w.data + c * w.from + (begin + o + l) * w.to;
          for (int k = 0; k < 9; ++k) taps[k][l] = p[w.turned ? 8 - k : k];
        }
        Four rows[3];
        for (int i = 0; i < 3; ++i) rows[i] = weights_of(load(taps[i * 3]), load(taps[i * 3 + 1]), load(taps[i * 3 + 2]));
        store_places(to + packed_at(c, o, depth, width), place,
                     {weights_of(rows[0].a, rows[1].a, rows[2].a), weights_of(rows[0].b, rows[1].b, rows[2].b),
                      weights_of(rows[0].c, rows[1].c, rows[2].c), weights_of(rows[0].d, rows[1].d, rows[2].d)},
                     VL);
      }
  });
}

// ---- blocks of tiles

// Tiles of a block, a multiple of every processor's rows of a tile of a product.
constexpr int64_t kTilesOfOutputs = 24;  // what they are turned into stays near the processor
// Sums are read and written again for every block, so blocks of few channels have more of them.
int64_t tiles_of_sums(int64_t channels) {
  constexpr int64_t kRows = 12, kFewest = 72, kMost = 192, kFloats = 1 << 16;
  return std::clamp<int64_t>(kFloats / (kPlaces * channels) / kRows * kRows, kFewest, kMost);
}

constexpr int64_t kTilesPerChunk = 8;

// f(block) for all tiles: on a thread each where there are many, else one after the other, and f shares its own work out.
template <class F>
void in_blocks(int64_t tiles, int64_t together, const F& f) {
  constexpr int64_t kMany = 8;
  const auto one = [&](int64_t first, int64_t last) { f(Block{first, last - first}); };
  if (tiles >= kMany * together) return for_ranges(tiles, together, one);
  for (int64_t first = 0; first < tiles; first += together) one(first, std::min(tiles, first + together));
}

const float* some_zeros(int64_t count) {
  float* zeros = scratch(3, count);
  std::fill_n(zeros, count, 0.0f);
  return zeros;
}

// Few tiles of many channels: they are turned once, and each thread has some columns of y from weights to pixels.
void correlate_columns(const Tiled& in, const Tiled& out, const float* x, const Weights& w, const float* bias, float* y) {
  constexpr int64_t kColumns = 32;  // a multiple of every processor's panel
  const int64_t depth = in.channels, count = in.count();
  const Block all{0, count};
  const float* zeros = some_zeros(depth);
  float* inputs = scratch(1, kPlaces * count * depth);
  for_ranges(count, kTilesPerChunk, [&](int64_t begin, int64_t end) { read_inputs(in, x, all, begin, end, zeros, inputs); });
  for_ranges(out.channels, kColumns, [&](int64_t from, int64_t last) {
    const int64_t columns = last - from, place = depth * padded_columns(columns), none = 0;
    float* weights = scratch(0, kPlaces * place);
    float* outputs = scratch(2, kPlaces * count * columns);
    pack_weights(w, depth, from, columns, weights);
    const int64_t *rows = offsets(0, count, depth), *targets = offsets(1, count, columns);
    for (int64_t p = 0; p < kPlaces; ++p)
      multiply_in_parts({inputs + p * count * depth, rows, 1, &none, 1, depth}, count, packed(weights + p * place, depth, columns),
                        columns, outputs + p * count * columns, targets, false);
    write_outputs(out, outputs, all, 0, count, from, columns, bias, y);
  });
}

void correlate(const Tiled& in, const Tiled& out, const float* x, const Weights& w, const float* bias, float* y) {
  if (kPlaces * in.channels * out.channels > kWeightFloats && kPlaces * in.channels * in.count() <= kTiledFloats)
    return correlate_columns(in, out, x, w, bias, y);
  constexpr int64_t kColumns = 64;  // columns of y at once are a multiple of every processor's panel
  const int64_t depth = in.channels, each = std::max(kColumns, kWeightFloats / (kPlaces * depth) / kColumns * kColumns);
  const int64_t none = 0;
  for (int64_t from = 0; from < out.channels; from += each) {
    const int64_t columns = std::min(each, out.channels - from), place = depth * padded_columns(columns);
    float* weights = scratch(0, kPlaces * place);
    pack_weights(w, depth, from, columns, weights);
    in_blocks(in.count(), kTilesOfOutputs, [&](Block block) {
      const int64_t count = block.count;
      const float* zeros = some_zeros(depth);
      float* inputs = scratch(1, kPlaces * count * depth);
      float* outputs = scratch(2, kPlaces * count * columns);
      const int64_t *rows = offsets(0, count, depth), *targets = offsets(1, count, columns);
      for_ranges(count, kTilesPerChunk, [&](int64_t begin, int64_t end) { read_inputs(in, x, block, begin, end, zeros, inputs); });
      for_chunks(kPlaces, [&](int64_t p) {
        multiply_in_parts({inputs + p * count * depth, rows, 1, &none, 1, depth}, count, packed(weights + p * place, depth, columns),
                          columns, outputs + p * count * columns, targets, false);
      });
      for_ranges(count, kTilesPerChunk,
                 [&](int64_t begin, int64_t end) { write_outputs(out, outputs, block, begin, end, from, columns, bias, y); });
    });
  }
}

// ---- the weights' gradient

// Tiles of a block as both sides of its products have them: [16, tiles, C], and [16] of panels [tiles, O].
struct Sides {
  Block block;
  float *inputs, *gradients;

  static int64_t floats(const Tiled& in, const Tiled& out) { return kPlaces * (in.channels + padded_columns(out.channels)); }
  Sides(const Tiled& in, const Tiled& out, int64_t first, int64_t together, float* room)
      : block{first, std::min(together, in.count() - first)}, inputs(room), gradients(room + kPlaces * block.count * in.channels) {}

  void read(const Tiled& in, const Tiled& out, const float* x, const float* dy, int64_t begin, int64_t end, const float* zeros) const {
    read_inputs(in, x, block, begin, end, zeros, inputs);
    read_gradients(out, dy, block, begin, end, zeros, gradients);
  }
  // sums [16, C, padded O]: those of place p become or, accumulated, join its products.
  void multiply_place(int64_t p, int64_t depth, int64_t columns, float* sums, bool accumulate) const {
    const int64_t width = padded_columns(columns), count = block.count, none = 0;
    multiply_in_parts({inputs + p * count * depth, nullptr, depth, &none, 1, count}, depth,
                      packed(gradients + p * count * width, count, columns), columns, sums + p * depth * width,
                      offsets(1, depth, width), accumulate);
  }
};

// Sums too large to hold more than once: tiles of some blocks are turned, then each thread has some places of all of them.
void sum_by_places(const Tiled& in, const Tiled& out, const float* x, const float* dy, int64_t together, float* sums) {
  const int64_t blocks = (in.count() + together - 1) / together, size = Sides::floats(in, out) * together;
  const int64_t at_once = std::clamp<int64_t>(kSummedFloats / size, 1, blocks), chunks = (together + kTilesPerChunk - 1) / kTilesPerChunk;
  const float* zeros = some_zeros(std::max(in.channels, out.channels));
  float* room = scratch(1, at_once * size);
  for (int64_t first = 0; first < blocks; first += at_once) {
    std::vector<Sides> some;
    for (int64_t i = first; i < std::min(blocks, first + at_once); ++i)
      some.emplace_back(in, out, i * together, together, room + (i - first) * size);
    for_chunks(static_cast<int64_t>(some.size()) * chunks, [&](int64_t i) {
      const Sides& sides = some[static_cast<size_t>(i / chunks)];
      const int64_t begin = i % chunks * kTilesPerChunk;
      if (begin < sides.block.count) sides.read(in, out, x, dy, begin, std::min(sides.block.count, begin + kTilesPerChunk), zeros);
    });
    for_chunks(kPlaces, [&](int64_t p) {
      for (const Sides& sides : some) sides.multiply_place(p, in.channels, out.channels, sums, sides.block.first > 0);
    });
  }
}

// dw [O, C, 3, 3] = G' sums G.
void write_taps(const float* sums, int64_t depth, int64_t columns, float* dw) {
  const int64_t width = padded_columns(columns), place = depth * width;
  for_rows(depth, kPlaces * width, [&](int64_t begin, int64_t end) {
    for (int64_t c = begin; c < end; ++c)
      for (int64_t o = 0; o < columns; o += VL) {
        const float* p = sums + c * width + o;
        Vector rows[4][3], taps[9];
        for (int64_t i = 0; i < 4; ++i, p += 4 * place)
          taps_of({load(p), load(p + place), load(p + 2 * place), load(p + 3 * place)}, rows[i][0], rows[i][1], rows[i][2]);
        for (int s = 0; s < 3; ++s)
          taps_of({rows[0][s], rows[1][s], rows[2][s], rows[3][s]}, taps[s], taps[3 + s], taps[6 + s]);
        for (int64_t l = 0; l < std::min<int64_t>(VL, columns - o); ++l)
          for (int k = 0; k < 9; ++k) dw[((o + l) * depth + c) * 9 + k] = taps[k][l];
      }
  });
}

}  // namespace

bool suits_winograd(const Geometry& g) {
  // Of 16 channels, turning pixels into tiles takes what is saved. The same on every processor, and so are the bits.
  constexpr int64_t kFewest = 32, kChannels = 16, kTiles = 32;
  const bool is_plain = g.R == 3 && g.S == 3 && g.stride_h == 1 && g.stride_w == 1 && g.dilation_h == 1 && g.dilation_w == 1 &&
                        g.groups == 1 && g.pad_h <= 2 && g.pad_w <= 2;
  return is_plain && g.C >= kFewest && g.O >= kFewest && g.C % kChannels == 0 && g.O % kChannels == 0 && g.P > 1 && g.Q > 1 &&
         g.N * ((g.P + 1) / 2) * ((g.Q + 1) / 2) >= kTiles;
}

void winograd_forward(const Geometry& g, const float* x, const float* w, const float* bias, float* y) {
  const int64_t down = (g.P + 1) / 2, across = (g.Q + 1) / 2;
  correlate({g.N, g.H, g.W, g.C, g.pad_h, g.pad_w, down, across}, {g.N, g.P, g.Q, g.O, 0, 0, down, across}, x,
            {w, 9, g.C * 9, false}, bias, y);
}

void winograd_input_gradient(const Geometry& g, const float* dy, const float* w, float* dx) {
  const int64_t down = (g.H + 1) / 2, across = (g.W + 1) / 2;
  correlate({g.N, g.P, g.Q, g.O, 2 - g.pad_h, 2 - g.pad_w, down, across}, {g.N, g.H, g.W, g.C, 0, 0, down, across}, dy,
            {w, g.C * 9, 9, true}, nullptr, dx);
}

void winograd_weight_gradient(const Geometry& g, const float* x, const float* dy, float* dw) {
  const int64_t down = (g.P + 1) / 2, across = (g.Q + 1) / 2, size = kPlaces * g.C * padded_columns(g.O);
  const Tiled in{g.N, g.H, g.W, g.C, g.pad_h, g.pad_w, down, across}, out{g.N, g.P, g.Q, g.O, 0, 0, down, across};
  const int64_t together = std::min(tiles_of_sums(g.C + g.O), in.count());
  const int64_t blocks = (in.count() + together - 1) / together, shares = shares_of(blocks, kPlaces * g.C * g.O);
  float* sums = scratch(0, shares * size);
  if (shares == 1) {
    sum_by_places(in, out, x, dy, together, sums);
  } else {
    for_shares(blocks, shares, sums, size, [&](int64_t i, float* own) {
      const Sides sides(in, out, i * together, together, scratch(1, Sides::floats(in, out) * together));
      sides.read(in, out, x, dy, 0, sides.block.count, some_zeros(std::max(g.C, g.O)));
      for (int64_t p = 0; p < kPlaces; ++p) sides.multiply_place(p, g.C, g.O, own, true);
    });
  }
  write_taps(sums, g.C, g.O, dw);
}

}  // namespace apportion
