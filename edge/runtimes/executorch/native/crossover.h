// What measures on a device when a layer's sparse form is the faster one. See crossover.cpp.
#pragma once

#include <cstdint>

namespace apportion {

// Forward pass and both gradients of a dense convolution of as many outputs as inputs, kernel odd, sizes kept.
void whole_convolution(int64_t images, int64_t size, int64_t channels, int64_t kernel, const float* x, const float* w,
                       const float* dy, float* y, float* dx, float* dw);

}  // namespace apportion
