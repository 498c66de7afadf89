// Sums of products: the one inner loop of convolutions and matrix products. See products.cpp.
#pragma once

#include <cstddef>
#include <cstdint>

namespace apportion {

// C[c_rows[i] + j] (+)= sum over segments s and k of A[a_rows[i] + segments[s] + k * step] * B[(s * depth + k) * b_row + j].
// A is read where it lies, so the same loop serves a convolution (rows are pixels, segments are kernel rows), its weight
// gradient (rows are kernel positions, segments are image rows) and every matrix product.
struct Operand {
  const float* data;
  const int64_t* rows;      // offset of each row; null: rows are neighbours in memory
  int64_t step;             // from one k to the next
  const int64_t* segments;  // offset of each segment
  int64_t segment_count;
  int64_t depth;            // k per segment
};

// b: rows of b_row floats, columns readable up to a multiple of VL. c: columns written exactly. A sum begins at 0 and joins
// C at its end, so that a long sum split into several calls keeps its digits.
void multiply(const Operand& a, int64_t rows, const float* b, int64_t b_row, int64_t columns, float* c,
              const int64_t* c_rows, bool accumulate);

// C [m, n] (+)= op(A) op(B), row-major; A is [m, k] or, transposed, [k, m]; B is [k, n] or, transposed, [n, k].
void matrix_product(const float* a, bool transpose_a, const float* b, bool transpose_b, float* c, int64_t m, int64_t n,
                    int64_t k, bool accumulate = false);

// Columns rounded up to whole vectors.
int64_t padded_columns(int64_t columns);

// packed [k, padded_columns(n)] from elements b[i * k_stride + j * n_stride]; padding is 0.
void pack(const float* b, int64_t k_stride, int64_t n_stride, int64_t k, int64_t n, float* packed);

// 0, stride, 2 * stride, ... (count of them); in one of a few tables of this thread.
const int64_t* offsets(int slot, int64_t count, int64_t stride);

// Memory that a kernel may use until it returns: `slot` names one of a few independent, growing buffers of this thread.
float* scratch(int slot, int64_t floats);

}  // namespace apportion
