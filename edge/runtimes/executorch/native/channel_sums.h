// Sums over the rows of [M, C], one per channel: in float32 over a few rows, in float64 over all.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "simd.h"
#include "threads.h"

namespace apportion {

constexpr int64_t kSummedRows = 64;  // in float32, before they join the float64 total

// totals[c] = sum over rows of f(offset, count) for vectors at offset row * C + c. Chunks of rows have totals of their own,
// which are added up in their order.
template <int kSums, class F>
void channel_sums(int64_t M, int64_t C, double* totals, F f) {
  const int64_t rows = std::max<int64_t>(1, kFloatsPerChunk / C / kSummedRows) * kSummedRows, chunks = (M + rows - 1) / rows;
  std::vector<double> parts(static_cast<size_t>(chunks * kSums * C), 0.0);
  for_ranges(M, rows, [&](int64_t begin, int64_t end_of_chunk) {
    double* own = parts.data() + begin / rows * kSums * C;
    for (int64_t m0 = begin; m0 < end_of_chunk; m0 += kSummedRows) {
      const int64_t end = std::min(end_of_chunk, m0 + kSummedRows);
      for_vectors(C, [&](int64_t c, int64_t count) {
        constexpr int kLanes = 4;  // independent sums hide the latency of addition
        Vector sums[kLanes][kSums] = {};
        int64_t m = m0;
        for (; m + kLanes <= end; m += kLanes)
          for (int lane = 0; lane < kLanes; ++lane) f((m + lane) * C + c, c, count, sums[lane]);
        for (; m < end; ++m) f(m * C + c, c, count, sums[0]);
        for (int s = 0; s < kSums; ++s) {
          const Vector all = (sums[0][s] + sums[1][s]) + (sums[2][s] + sums[3][s]);
          for (int64_t i = 0; i < count; ++i) own[s * C + c + i] += all[i];
        }
      });
    }
  });
  std::fill_n(totals, kSums * C, 0.0);
  for (int64_t chunk = 0; chunk < chunks; ++chunk)
    for (int64_t i = 0; i < kSums * C; ++i) totals[i] += parts[static_cast<size_t>(chunk * kSums * C + i)];
}

}  // namespace apportion
