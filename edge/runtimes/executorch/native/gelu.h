// The exact GELU of a vector, and its derivative.
#pragma once

#include "simd.h"

namespace apportion {

// x Phi(x)
inline Vector gelu_of(Vector x) { return x * 0.5f * (error_function(x * 0.70710678f) + 1.0f); }

// Phi(x) + x phi(x)
inline Vector gelu_slope(Vector x) {
  const Vector density = exponential(x * x * -0.5f) * 0.39894228f;
  return 0.5f * (error_function(x * 0.70710678f) + 1.0f) + x * density;
}

}  // namespace apportion
