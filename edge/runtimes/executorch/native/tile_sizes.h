// Sizes of the tiles of C that products hold in registers, and of what they read meanwhile.
#pragma once

#include <cstdint>

#include "simd.h"

namespace apportion {

#if defined(__aarch64__) || defined(APPORTION_LIKE_ARM)
constexpr int kWide = 4, kTall1 = 8, kTall2 = 6;  // 32 registers; see arm_tile.h
#elif defined(__AVX512F__)
constexpr int kWide = 2, kTall1 = 14, kTall2 = 12;  // 32 registers
#elif defined(__AVX__)
constexpr int kWide = 2, kTall1 = 8, kTall2 = 6;  // 16 registers
#else
constexpr int kWide = 2, kTall1 = 4, kTall2 = 4;
#endif
constexpr int64_t kPanel = kWide * VL;  // columns that a tile has
constexpr int64_t kDepthBlock = 256;    // of a panel that stays in the first-level cache
#if defined(__aarch64__) || defined(APPORTION_LIKE_ARM)
// Of 32 KB, a panel is half. Rows that are neighbours bring a line of memory per k, which tiles after them use too: the
// lines stay there while k goes half as far. Sums wait in memory meanwhile, and are the same.
constexpr int64_t kDepthAtOnce = 64;
#else
constexpr int64_t kDepthAtOnce = kDepthBlock;
#endif

}  // namespace apportion
