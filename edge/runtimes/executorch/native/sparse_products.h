// Products with a matrix of which only some entries are there. See sparse_products.cpp.
#pragma once

#include <cstdint>

namespace apportion {

// Entries of W [rows, columns] in C order: those of row o are starts[o] .. starts[o + 1] - 1. Their places within a row do
// not change from step to step, their values do.
struct SparseRows {
  const float* values;
  const int32_t* starts;
  const int32_t* columns;
  int64_t rows;
};

// y [rows, lanes] = bias + W x; x [columns, lanes], bias may be null.
void sparse_product(const SparseRows& w, const float* x, const float* bias, float* y, int64_t lanes);

// dx [columns, lanes] += the transpose of W times dy [rows, lanes].
void sparse_transposed_product(const SparseRows& w, const float* dy, float* dx, int64_t lanes);

// dw (+)= of dy times the transpose of x only the entries that W has, in their order.
void sampled_product(const SparseRows& w, const float* dy, const float* x, float* dw, int64_t lanes, bool accumulate);

}  // namespace apportion
