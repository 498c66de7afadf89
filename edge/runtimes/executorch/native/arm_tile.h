// The inner loop of a tile of 6 rows x 4 vectors on aarch64, written out: a compiler spills sums of it, and loads a value
// right before it multiplies with it, where a core that works in order (Cortex-A53) waits. What is loaded for 24
// multiply-adds is loaded together, first what is used first. Sums are those of tile_sums() in products.cpp, bit for bit:
// 24 registers, v(8 + 4 r + v) for row r and vector v, from the first product to the last.
#pragma once

#if defined(__aarch64__) && !defined(__AARCH64EB__)
#define APPORTION_ARM_TILE

#include <cstdint>

#include "products.h"

namespace apportion {

#define APPORTION_FMLA(sum, factor, a, lane) "fmla v" #sum ".4s, v" #factor ".4s, v" #a ".s[" #lane "]\n\t"
// Vector v of all six rows: its factor times a lane of each of three registers, then another lane of each.
#define APPORTION_COLUMN(s0, s1, s2, s3, s4, s5, factor, lane, other)                          \
  APPORTION_FMLA(s0, factor, 0, lane) APPORTION_FMLA(s2, factor, 1, lane)                      \
  APPORTION_FMLA(s4, factor, 2, lane) APPORTION_FMLA(s1, factor, 0, other)                     \
  APPORTION_FMLA(s3, factor, 1, other) APPORTION_FMLA(s5, factor, 2, other)
#define APPORTION_COLUMNS(lane, other)                                                         \
  APPORTION_COLUMN(8, 12, 16, 20, 24, 28, 3, lane, other)                                      \
  APPORTION_COLUMN(9, 13, 17, 21, 25, 29, 4, lane, other)                                      \
  APPORTION_COLUMN(10, 14, 18, 22, 26, 30, 5, lane, other)                                     \
  APPORTION_COLUMN(11, 15, 19, 23, 27, 31, 6, lane, other)
#define APPORTION_ZERO(a, b, c, d) \
  "movi v" #a ".4s, #0\n\tmovi v" #b ".4s, #0\n\tmovi v" #c ".4s, #0\n\tmovi v" #d ".4s, #0\n\t"
#define APPORTION_ZEROS                                                                        \
  APPORTION_ZERO(8, 9, 10, 11) APPORTION_ZERO(12, 13, 14, 15) APPORTION_ZERO(16, 17, 18, 19)   \
  APPORTION_ZERO(20, 21, 22, 23) APPORTION_ZERO(24, 25, 26, 27) APPORTION_ZERO(28, 29, 30, 31)
#define APPORTION_TAKE(a, b, c, d, at) \
  "ldp q" #a ", q" #b ", [%[sums], " #at "]\n\tldp q" #c ", q" #d ", [%[sums], " #at " + 32]\n\t"
// Sums of 0, or those that are there.
#define APPORTION_BEGIN                                                                        \
  APPORTION_ZEROS                                                                              \
  "cbz %w[goes_on], 1f\n\t"                                                                    \
  APPORTION_TAKE(8, 9, 10, 11, 0) APPORTION_TAKE(12, 13, 14, 15, 64) APPORTION_TAKE(16, 17, 18, 19, 128)      \
  APPORTION_TAKE(20, 21, 22, 23, 192) APPORTION_TAKE(24, 25, 26, 27, 256) APPORTION_TAKE(28, 29, 30, 31, 320)
#define APPORTION_KEEP(a, b, c, d, at) \
  "stp q" #a ", q" #b ", [%[sums], " #at "]\n\tstp q" #c ", q" #d ", [%[sums], " #at " + 32]\n\t"
#define APPORTION_SUMS                                                                         \
  APPORTION_KEEP(8, 9, 10, 11, 0) APPORTION_KEEP(12, 13, 14, 15, 64) APPORTION_KEEP(16, 17, 18, 19, 128)      \
  APPORTION_KEEP(20, 21, 22, 23, 192) APPORTION_KEEP(24, 25, 26, 27, 256) APPORTION_KEEP(28, 29, 30, 31, 320)
#define APPORTION_VECTORS                                                                      \
  "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v8", "v9", "v10", "v11", "v12", "v13", "v14", "v15", "v16",      \
      "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v24", "v25", "v26", "v27", "v28", "v29", "v30", "v31"

// sums [6, 16] of rows that lie apart and whose k are neighbours in memory (a.step is 1): 64 bits are two k of a row, and
// a register has those of two rows. At least one segment and one k; goes_on: sums are added to.
inline void arm_tile_of_rows(const Operand& a, const float* b, int64_t b_row, float* sums, bool goes_on) {
  const int64_t *segment = a.segments, *end = a.segments + a.segment_count;
  const float* data;
  int64_t left, place, at;
#define APPORTION_ROW(r) "ldr %[place], [%[rows], " #r " * 8]\n\tadd x" #r ", %[data], %[place], lsl 2\n\t"
  asm volatile(
      APPORTION_BEGIN
      "1:\n\t"  // a segment
      "ldr %[place], [%[segment]], 8\n\tadd %[data], %[origin], %[place], lsl 2\n\t"
      APPORTION_ROW(0) APPORTION_ROW(1) APPORTION_ROW(2) APPORTION_ROW(3) APPORTION_ROW(4) APPORTION_ROW(5)
      "mov %[at], 0\n\tasr %[left], %[depth], 1\n\t"
      "cbz %[left], 3f\n"
      "2:\n\t"  // two k
      "ldr d0, [x0, %[at]]\n\tldr d1, [x2, %[at]]\n\tldr d2, [x4, %[at]]\n\tldr q3, [%[b]]\n\t"
      "ld1 {v0.d}[1], [x1]\n\tld1 {v1.d}[1], [x3]\n\tld1 {v2.d}[1], [x5]\n\t"
      "ldr q4, [%[b], 16]\n\tldr q5, [%[b], 32]\n\tldr q6, [%[b], 48]\n\t"
      "add x1, x1, 8\n\tadd x3, x3, 8\n\tadd x5, x5, 8\n\tadd %[at], %[at], 8\n\tadd %[b], %[b], %[b_row]\n\t"
      APPORTION_COLUMNS(0, 2)
      "ldr q3, [%[b]]\n\tldr q4, [%[b], 16]\n\tldr q5, [%[b], 32]\n\tldr q6, [%[b], 48]\n\t"
      "add %[b], %[b], %[b_row]\n\tsubs %[left], %[left], 1\n\t"
      APPORTION_COLUMNS(1, 3)
      "b.ne 2b\n\t"
      "tbz %[depth], 0, 4f\n"
      "3:\n\t"  // a single k
      "ldr s0, [x0, %[at]]\n\tldr s1, [x2, %[at]]\n\tldr s2, [x4, %[at]]\n\tldr q3, [%[b]]\n\t"
      "ld1 {v0.s}[1], [x1]\n\tld1 {v1.s}[1], [x3]\n\tld1 {v2.s}[1], [x5]\n\t"
      "ldr q4, [%[b], 16]\n\tldr q5, [%[b], 32]\n\tldr q6, [%[b], 48]\n\t"
      "add %[b], %[b], %[b_row]\n\t"
      APPORTION_COLUMNS(0, 1)
      "4:\n\t"
      "cmp %[segment], %[end]\n\tb.ne 1b\n\t"
      APPORTION_SUMS
      : [b] "+r"(b), [segment] "+r"(segment), [left] "=&r"(left), [at] "=&r"(at), [place] "=&r"(place), [data] "=&r"(data)
      : [origin] "r"(a.data), [rows] "r"(a.rows), [end] "r"(end), [depth] "r"(a.depth), [b_row] "r"(b_row * 4), [sums] "r"(sums), [goes_on] "r"(goes_on)
      : "x0", "x1", "x2", "x3", "x4", "x5", "cc", "memory", APPORTION_VECTORS);
#undef APPORTION_ROW
}

// The same of six rows that are neighbours in memory, a.step from one k to the next.
inline void arm_tile_of_neighbours(const Operand& a, const float* b, int64_t b_row, float* sums, bool goes_on) {
  const int64_t *segment = a.segments, *end = a.segments + a.segment_count;
  int64_t left, place;
  asm volatile(
      APPORTION_BEGIN
      "1:\n\t"  // a segment
      "ldr %[place], [%[segment]], 8\n\tadd %[place], %[origin], %[place], lsl 2\n\t"
      "mov %[left], %[depth]\n"
      "2:\n\t"  // a k
      "ldr d0, [%[place]]\n\tldr q3, [%[b]]\n\tldr d1, [%[place], 8]\n\tldr d2, [%[place], 16]\n\t"
      "ldr q4, [%[b], 16]\n\tldr q5, [%[b], 32]\n\tldr q6, [%[b], 48]\n\t"
      "add %[place], %[place], %[step]\n\tadd %[b], %[b], %[b_row]\n\tsubs %[left], %[left], 1\n\t"
      APPORTION_COLUMNS(0, 1)
      "b.ne 2b\n\t"
      "cmp %[segment], %[end]\n\tb.ne 1b\n\t"
      APPORTION_SUMS
      : [b] "+r"(b), [segment] "+r"(segment), [left] "=&r"(left), [place] "=&r"(place)
      : [origin] "r"(a.data), [end] "r"(end), [depth] "r"(a.depth), [step] "r"(a.step * 4), [b_row] "r"(b_row * 4),
        [sums] "r"(sums), [goes_on] "r"(goes_on)
      : "cc", "memory", APPORTION_VECTORS);
}

}  // namespace apportion

#endif
