// Sums over the rows of [M, C], one per channel: in float32 over a few rows, in float64 over all.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "simd.h"
#include "threads.h"

namespace apportion {

constexpr int64_t kSummedRows = 64;  // in float32, before they join the float64 total
constexpr int64_t kSumLanes = 4;     // of a sum over rows: independent ones hide the latency of addition

// Where channels do not fill a vector, rows are worked on VL at a time, so that vectors are full; a constant of each channel
// then lies as often behind itself.
inline bool is_narrow(int64_t C) { return C < VL; }
class PerChannel {
 public:
  explicit PerChannel(int64_t C) : C_(C), values_(static_cast<size_t>(is_narrow(C) ? VL * C : C)) {}
  PerChannel(const float* values, int64_t C) : PerChannel(C) {
    std::copy_n(values, C, values_.data());
    repeat();
  }
  float& operator[](int64_t c) { return values_[static_cast<size_t>(c)]; }
  void repeat() {
    for (size_t i = static_cast<size_t>(C_); i < values_.size(); ++i) values_[i] = values_[i - static_cast<size_t>(C_)];
  }
  Vector at(int64_t c, int64_t n) const { return load_n(values_.data() + c, n); }

 private:
  int64_t C_;
  std::vector<float> values_;
};

// f(offset, c, count) for the vectors of [M, C]; lane i is of channel (c + i) % C.
template <class F>
void each_row_vector(int64_t M, int64_t C, F f) {
  for_rows(M, C, [&](int64_t begin, int64_t end) {
    int64_t m = begin;
    if (is_narrow(C))
      for (; m + VL <= end; m += VL)
        for (int64_t c = 0; c < VL * C; c += VL) f(m * C + c, c, static_cast<int64_t>(VL));
    for (; m < end; ++m)
      for_vectors(C, [&](int64_t c, int64_t count) { f(m * C + c, c, count); });
  });
}

// Sums over rows begin .. end - 1, added to own: kSumLanes of them in turn, each over every kSumLanes-th row, what is left
// over in the first.
template <int kSums, class F>
void sum_rows(int64_t begin, int64_t end, int64_t C, double* own, const F& f) {
  for_vectors(C, [&](int64_t c, int64_t count) {
    Vector sums[kSumLanes][kSums] = {};
    int64_t m = begin;
    for (; m + kSumLanes <= end; m += kSumLanes)
      for (int lane = 0; lane < kSumLanes; ++lane) f((m + lane) * C + c, c, count, sums[lane]);
    for (; m < end; ++m) f(m * C + c, c, count, sums[0]);
    for (int s = 0; s < kSums; ++s) {
      const Vector all = (sums[0][s] + sums[1][s]) + (sums[2][s] + sums[3][s]);
      for (int64_t i = 0; i < count; ++i) own[s * C + c + i] += all[i];
    }
  });
}

// The same sums, lanes beside each other in one stretch of memory.
template <int kSums, class F>
void sum_narrow_rows(int64_t begin, int64_t end, int64_t C, double* own, const F& f) {
  float lanes[kSums][kSumLanes * VL];
  const int64_t whole = begin + (end - begin) / kSumLanes * kSumLanes;
  for_vectors(kSumLanes * C, [&](int64_t c, int64_t count) {
    Vector sums[kSums] = {};
    for (int64_t m = begin; m < whole; m += kSumLanes) f(m * C + c, c, count, sums);
    for (int s = 0; s < kSums; ++s) store_n(lanes[s] + c, sums[s], count);
  });
  for (int64_t m = whole; m < end; ++m) {
    Vector sums[kSums];
    for (int s = 0; s < kSums; ++s) sums[s] = load_n(lanes[s], C);
    f(m * C, 0, C, sums);
    for (int s = 0; s < kSums; ++s) store_n(lanes[s], sums[s], C);
  }
  for (int s = 0; s < kSums; ++s)
    for (int64_t c = 0; c < C; ++c) {
      const float* lane = lanes[s] + c;
      own[s * C + c] += (lane[0] + lane[C]) + (lane[2 * C] + lane[3 * C]);
    }
}

// The one or the other. kTogether: f takes vectors over several rows, as of each_row_vector().
template <int kSums, bool kTogether, class F>
void add_rows(int64_t begin, int64_t end, int64_t C, double* own, const F& f) {
  for (int64_t m = begin; m < end; m += kSummedRows) {
    const int64_t last = std::min(end, m + kSummedRows);
    if (kTogether && is_narrow(C)) {
      sum_narrow_rows<kSums>(m, last, C, own, f);
    } else {
      sum_rows<kSums>(m, last, C, own, f);
    }
  }
}

// totals[c] = sum over rows of f(offset, c, count, sums) for vectors at offset row * C + c. Chunks of rows have totals of their
// own, which are added up in their order. kTogether: f takes vectors over several rows, as of each_row_vector().
template <int kSums, bool kTogether = false, class F>
void channel_sums(int64_t M, int64_t C, double* totals, F f) {
  const int64_t rows = std::max<int64_t>(1, kFloatsPerChunk / C / kSummedRows) * kSummedRows, chunks = (M + rows - 1) / rows;
  std::vector<double> parts(static_cast<size_t>(chunks * kSums * C), 0.0);
  for_ranges(M, rows, [&](int64_t begin, int64_t end_of_chunk) {
    add_rows<kSums, kTogether>(begin, end_of_chunk, C, parts.data() + begin / rows * kSums * C, f);
  });
  std::fill_n(totals, kSums * C, 0.0);
  for (int64_t chunk = 0; chunk < chunks; ++chunk)
    for (int64_t i = 0; i < kSums * C; ++i) totals[i] += parts[static_cast<size_t>(chunk * kSums * C + i)];
}

}  // namespace apportion
