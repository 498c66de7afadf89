// Activations that wait for the backward pass in float16.
#include "float16.h"

#include <cstring>

#include "kernels.h"
#include "threads.h"

namespace apportion {
namespace {

// narrowed(x) -> float16
void narrow(Call& call) {
  if (!call.resize_like(1, 0)) return;
  const float* x = call.in(0);
  uint16_t* y = call.halves_out(1);
  each_vector(call.count(0), [&](int64_t i, int64_t n) {
    const Halves h = narrowed(load_n(x + i, n));
    if (n == VL) {
      std::memcpy(y + i, &h, sizeof h);
    } else {
      std::memcpy(y + i, &h, static_cast<size_t>(n) * 2);
    }
  });
}

// widened(h of float16) -> float32
void widen(Call& call) {
  if (!call.resize_like(1, 0)) return;
  const Kept h{call.halves(0)};
  float* y = call.out(1);
  each_vector(call.count(0), [&](int64_t i, int64_t n) { store_n(y + i, h(i, n), n); });
}

APPORTION_KERNEL("narrowed", narrow);
APPORTION_KERNEL("widened", widen);

}  // namespace
}  // namespace apportion
