// Layers whose weights are some of the entries of the whole ones, in C order. See sparse_layers.cpp.
// Legend: N examples, I inputs, O outputs; images [N, H, W, C], output pixels P Q, kernel R S.
#pragma once

#include "sparse_products.h"

namespace apportion {

// x [N, I], y [N, O]; bias [O] or null.
void sparse_linear(const SparseRows& w, const float* x, const float* bias, int64_t N, int64_t I, float* y);
void sparse_linear_input_gradient(const SparseRows& w, const float* dy, int64_t N, int64_t I, float* dx);
void sparse_linear_weight_gradient(const SparseRows& w, const float* dy, const float* x, int64_t N, int64_t I, float* dw);

struct Images {
  int64_t N, H, W, C;

  int64_t size() const { return H * W * C; }
};

// A convolution of stride 1 and one group. Columns of its weights count C, then R, then S.
struct Window {
  int64_t R, S, pad_h, pad_w, dilation_h, dilation_w;

  int64_t reach_h() const { return (R - 1) * dilation_h; }
  int64_t reach_w() const { return (S - 1) * dilation_w; }
  int64_t height(const Images& in) const { return in.H + 2 * pad_h - reach_h(); }
  int64_t width(const Images& in) const { return in.W + 2 * pad_w - reach_w(); }
};

// in: the size of x. The input gradient needs padding no wider than the window's reach.
void sparse_convolution(const SparseRows& w, const Window& g, const Images& in, const float* x, const float* bias, float* y);
void sparse_convolution_input_gradient(const SparseRows& w, const Window& g, const Images& in, const float* dy, float* dx);
void sparse_convolution_weight_gradient(const SparseRows& w, const Window& g, const Images& in, const float* x, const float* dy,
                                        float* dw);

}  // namespace apportion
