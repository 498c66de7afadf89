// Loops over the values of an activation and of its gradient; the operator's numbers come after its tensors.
#pragma once

#include "kernels.h"
#include "simd.h"
#include "threads.h"

namespace apportion {

// y = f(x); x, then so many numbers, then y.
template <class F>
void each_of_one(Call& call, int numbers, const F& f) {
  if (!call.resize_like(1 + numbers, 0)) return;
  const float* x = call.in(0);
  float* y = call.out(1 + numbers);
  each_vector(call.count(0), [&](int64_t i, int64_t n) { store_n(y + i, f(load_n(x + i, n)), n); });
}

// dx = f(dy, v), v the argument or the result; dy, v, then so many numbers, then dx.
template <class F>
void each_of_two(Call& call, int numbers, const F& f) {
  if (!call.require(call.count(0) == call.count(1)) || !call.resize_like(2 + numbers, 0)) return;
  const float *dy = call.in(0), *v = call.in(1);
  float* dx = call.out(2 + numbers);
  each_vector(call.count(0), [&](int64_t i, int64_t n) { store_n(dx + i, f(load_n(dy + i, n), load_n(v + i, n)), n); });
}

// dx = dy f(v), as above.
template <class F>
void each_slope(Call& call, int numbers, const F& f) {
  each_of_two(call, numbers, [&](Vector dy, Vector v) { return dy * f(v); });
}

inline Vector number(const Call& call, int i) { return splat(static_cast<float>(call.number(i))); }

}  // namespace apportion
