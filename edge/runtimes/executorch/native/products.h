// Sums of products: the one inner loop of convolutions and matrix products. See products.cpp and matrix_product.cpp.
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
  int64_t step;             // from one k to the next; 1 where rows are given
  const int64_t* segments;  // offset of each segment
  int64_t segment_count;
  int64_t depth;            // k per segment
};

// B in panels of as many columns as a tile of C has; made by one of the functions below.
struct Right {
  const float* data;
  int64_t row;       // from one row to the next within a panel
  int64_t panel;     // from one panel to the next
  int64_t last_row;  // as row, of a last panel that is narrower
  int64_t first = 0;  // row that the product begins with
};
Right as_it_lies(const float* b, int64_t row);  // readable up to a multiple of VL columns
Right packed(const float* data, int64_t depth, int64_t columns);  // by pack(), of depth rows in all

// c: columns written exactly. A sum begins at 0 and joins C (accumulate) or the bias of its column at its end, so that a
// long sum split into several calls keeps its digits.
void multiply(const Operand& a, int64_t rows, const Right& b, int64_t columns, float* c, const int64_t* c_rows,
              bool accumulate, const float* bias = nullptr);
// The same with sums so long that their rows of B stay in the cache.
void multiply_in_parts(Operand a, int64_t rows, Right b, int64_t columns, float* c, const int64_t* c_rows, bool accumulate);

// Rows and columns of C.
struct Part {
  int64_t row, end_row, column, end_column;
};
// What is done with a part of C once it is written, soon after: a function of the part that outlives the product.
class Ending {
 public:
  Ending() = default;
  template <class F>
  explicit Ending(const F& f) : work_(&f), run_([](const void* work, const Part& part) { (*static_cast<const F*>(work))(part); }) {}
  void operator()(const Part& part) const {
    if (run_) run_(work_, part);
  }

 private:
  const void* work_ = nullptr;
  void (*run_)(const void* work, const Part& part) = nullptr;
};

// C [m, n] = op(A) op(B) (+ bias [n]), row-major; A is [m, k] or, transposed, [k, m]; B is [k, n] or, transposed, [n, k].
// is_one_of_many: of small products, whose B is near the processor.
void matrix_product(const float* a, bool transpose_a, const float* b, bool transpose_b, float* c, int64_t m, int64_t n,
                    int64_t k, const float* bias = nullptr, bool is_one_of_many = false, Ending ending = {});

// Columns rounded up to whole vectors.
int64_t padded_columns(int64_t columns);

// Rows first .. first + k - 1 of a matrix of depth rows and n columns, in panels one after the other, from elements
// b[i * k_stride + j * n_stride]. All take depth * padded_columns(n) floats; padding is 0.
void pack(const float* b, int64_t k_stride, int64_t n_stride, int64_t k, int64_t n, float* to, int64_t depth, int64_t first);
// Where pack() puts row k and column j, a multiple of VL, of a matrix of `depth` rows and padded_columns(n) = width columns.
int64_t packed_at(int64_t k, int64_t j, int64_t depth, int64_t width);
// All of it, on all threads.
Right pack_all(const float* b, int64_t k_stride, int64_t n_stride, int64_t k, int64_t n, float* to);

// 0, stride, 2 * stride, ... (count of them); in one of a few tables of this thread.
const int64_t* offsets(int slot, int64_t count, int64_t stride);

// Memory that a kernel may use until it returns: `slot` names one of a few independent, growing buffers of this thread.
float* scratch(int slot, int64_t floats);

}  // namespace apportion
