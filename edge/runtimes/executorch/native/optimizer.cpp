// The optimizers' formulas on values in place: what torch.optim does with one tensor. C linkage, called by the session.
// mask: null, or which entries move; the others keep value and slots, and do not decay.
#include <cmath>
#include <cstdint>

#include "threads.h"

namespace {

using apportion::for_floats;
using apportion::Threads;
using apportion::ThreadsInUse;

// The place in an array that may be missing.
template <class T>
T* from(T* array, int64_t begin) {
  return array ? array + begin : nullptr;
}

template <bool kMasked>
void sgd(float* value, const float* gradient, float* velocity, const uint8_t* mask, int64_t count, float lr,
         float momentum, float decay, int nesterov) {
  const auto moves = [&](int64_t i) { return !kMasked || mask[i]; };
  if (!velocity) {
    for (int64_t i = 0; i < count; ++i) {
      const float moved = value[i] - lr * (gradient[i] + decay * value[i]);
      value[i] = moves(i) ? moved : value[i];
    }
  } else if (!nesterov) {
    for (int64_t i = 0; i < count; ++i) {
      const float speed = momentum * velocity[i] + (gradient[i] + decay * value[i]);
      const float moved = value[i] - lr * speed;
      velocity[i] = moves(i) ? speed : velocity[i];
      value[i] = moves(i) ? moved : value[i];
    }
  } else {
    for (int64_t i = 0; i < count; ++i) {
      const float direction = gradient[i] + decay * value[i];
      const float speed = momentum * velocity[i] + direction;
      const float moved = value[i] - lr * (direction + momentum * speed);
      velocity[i] = moves(i) ? speed : velocity[i];
      value[i] = moves(i) ? moved : value[i];
    }
  }
}

template <bool kMasked>
void adam(float* value, const float* gradient, float* mean, float* square, const uint8_t* mask, int64_t count,
          float step_size, float root, float beta1, float beta2, float eps, float shrink, float joined) {
  for (int64_t i = 0; i < count; ++i) {
    const float g = gradient[i] + joined * value[i];
    const float m = beta1 * mean[i] + (1.0f - beta1) * g;
    const float s = beta2 * square[i] + (1.0f - beta2) * g * g;
    const float moved = value[i] * shrink - step_size * m / (std::sqrt(s) / root + eps);
    const bool moves = !kMasked || mask[i];
    mean[i] = moves ? m : mean[i];
    square[i] = moves ? s : square[i];
    value[i] = moves ? moved : value[i];
  }
}

}  // namespace

extern "C" {

// velocity may be null (no momentum). threads: as apportion_run has them.
void apportion_sgd(void* threads, float* value, const float* gradient, float* velocity, const uint8_t* mask, int64_t count, float lr,
                   float momentum, float decay, int nesterov) {
  const auto rule = mask ? sgd<true> : sgd<false>;
  const ThreadsInUse in_use(static_cast<Threads*>(threads));
  for_floats(count, [&](int64_t begin, int64_t end) {
    rule(value + begin, gradient + begin, from(velocity, begin), from(mask, begin), end - begin, lr, momentum, decay, nesterov);
  });
}

// step: this step's number, from 1. decoupled: the decay shrinks the value (AdamW) instead of joining the gradient.
void apportion_adam(void* threads, float* value, const float* gradient, float* mean, float* square, const uint8_t* mask, int64_t count,
                    double step, float lr, float beta1, float beta2, float eps, float decay, int decoupled) {
  const float step_size = static_cast<float>(lr / (1.0 - std::pow(static_cast<double>(beta1), step)));
  const float root = static_cast<float>(std::sqrt(1.0 - std::pow(static_cast<double>(beta2), step)));
  const float shrink = decoupled ? 1.0f - lr * decay : 1.0f, joined = decoupled ? 0.0f : decay;
  const auto rule = mask ? adam<true> : adam<false>;
  const ThreadsInUse in_use(static_cast<Threads*>(threads));
  for_floats(count, [&](int64_t begin, int64_t end) {
    rule(value + begin, gradient + begin, mean + begin, square + begin, from(mask, begin), end - begin, step_size, root, beta1,
         beta2, eps, shrink, joined);
  });
}

void apportion_add_squares(float* sums, const float* gradient, int64_t count) {
  for (int64_t i = 0; i < count; ++i) sums[i] += gradient[i] * gradient[i];
}

double apportion_sum_of_squares(const float* gradient, int64_t count) {
  double total = 0.0;
  for (int64_t i = 0; i < count; ++i) total += static_cast<double>(gradient[i]) * gradient[i];
  return total;
}

// 0 where the mask is: for a norm over the entries that move.
void apportion_keep(float* gradient, const uint8_t* mask, int64_t count) {
  for (int64_t i = 0; i < count; ++i) gradient[i] = mask[i] ? gradient[i] : 0.0f;
}

void apportion_scale(float* gradient, float factor, int64_t count) {
  for (int64_t i = 0; i < count; ++i) gradient[i] *= factor;
}
}
