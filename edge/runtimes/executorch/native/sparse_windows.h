// Convolutions of stride 1 with weights of which only some are there. See sparse_windows.cpp.
#pragma once

#include "sparse_products.h"

namespace apportion {

// C planes [height, width, lanes]: images with the examples of a batch last, zeros around them.
struct Planes {
  const float* data;
  int64_t height, width, lanes;

  int64_t row() const { return width * lanes; }
  int64_t size() const { return height * row(); }
};

// One weight: what it is and where, in planes, the value lies that it takes for the first output.
struct Tap {
  float value;
  int64_t offset;
};

// y planes [height, width, lanes], no zeros around, = bias + the sum over the taps of plane o, which are
// taps[starts[o]] .. taps[starts[o + 1] - 1].
void sum_of_taps(const Tap* taps, const int32_t* starts, int64_t outputs, const Planes& x, const float* bias, int64_t height,
                 int64_t width, float* y);

// dw[i] (+)= the sum over plane o of dy, [height, width, lanes], times what tap i of plane o reads of x.
void gradient_of_taps(const Tap* taps, const int32_t* starts, int64_t outputs, const Planes& x, const float* dy, int64_t height,
                      int64_t width, float* dw, bool accumulate);

}  // namespace apportion
