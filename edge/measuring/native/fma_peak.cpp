// What one core of this processor does at most: multiply-adds of float32 that wait for nothing but each other's registers.
#include <time.h>

#include <cstdint>

namespace {

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64, kSums = 24;  // of 32 registers
#elif defined(__AVX__)
constexpr int kVectorBytes = 32, kSums = 12;  // of 16
#else
constexpr int kVectorBytes = 16, kSums = 12;
#endif
typedef float Vector __attribute__((vector_size(kVectorBytes)));

double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

}  // namespace

extern "C" {

// Multiply-adds per second of processor time; `seed` is no number that the compiler knows, and *kept gets the sums.
double apportion_fma_rate(int64_t rounds, float seed, float* kept) {
  Vector sums[kSums], factor = seed + Vector{}, addend = seed * 0.5f + Vector{};
  for (int i = 0; i < kSums; ++i) sums[i] = seed * static_cast<float>(i) + Vector{};
  const double start = cpu_seconds();
  for (int64_t k = 0; k < rounds; ++k) {
#pragma GCC unroll 24
    for (int i = 0; i < kSums; ++i) sums[i] = sums[i] * factor + addend;
  }
  const double seconds = cpu_seconds() - start;
  *kept = 0;
  for (int i = 0; i < kSums; ++i) *kept += sums[i][0];
  return static_cast<double>(rounds) * kSums * (kVectorBytes / 4) / seconds;
}
}
