// The optimizers' formulas on values in place: what torch.optim does with one tensor. C linkage, called by the session.
#include <cmath>
#include <cstdint>

extern "C" {

// velocity may be null (no momentum).
void apportion_sgd(float* value, const float* gradient, float* velocity, int64_t count, float lr, float momentum,
                   float decay, int nesterov) {
  if (!velocity) {
    for (int64_t i = 0; i < count; ++i) value[i] -= lr * (gradient[i] + decay * value[i]);
  } else if (!nesterov) {
    for (int64_t i = 0; i < count; ++i) {
      velocity[i] = momentum * velocity[i] + (gradient[i] + decay * value[i]);
      value[i] -= lr * velocity[i];
    }
  } else {
    for (int64_t i = 0; i < count; ++i) {
      const float direction = gradient[i] + decay * value[i];
      velocity[i] = momentum * velocity[i] + direction;
      value[i] -= lr * (direction + momentum * velocity[i]);
    }
  }
}

// step: this step's number, from 1. decoupled: the decay shrinks the value (AdamW) instead of joining the gradient.
void apportion_adam(float* value, const float* gradient, float* mean, float* square, int64_t count, double step, float lr,
                    float beta1, float beta2, float eps, float decay, int decoupled) {
  const float step_size = static_cast<float>(lr / (1.0 - std::pow(static_cast<double>(beta1), step)));
  const float root = static_cast<float>(std::sqrt(1.0 - std::pow(static_cast<double>(beta2), step)));
  const float shrink = decoupled ? 1.0f - lr * decay : 1.0f, joined = decoupled ? 0.0f : decay;
  for (int64_t i = 0; i < count; ++i) {
    const float g = gradient[i] + joined * value[i];
    mean[i] = beta1 * mean[i] + (1.0f - beta1) * g;
    square[i] = beta2 * square[i] + (1.0f - beta2) * g * g;
    value[i] = value[i] * shrink - step_size * mean[i] / (std::sqrt(square[i]) / root + eps);
  }
}

void apportion_add_squares(float* sums, const float* gradient, int64_t count) {
  for (int64_t i = 0; i < count; ++i) sums[i] += gradient[i] * gradient[i];
}

double apportion_sum_of_squares(const float* gradient, int64_t count) {
  double total = 0.0;
  for (int64_t i = 0; i < count; ++i) total += static_cast<double>(gradient[i]) * gradient[i];
  return total;
}

void apportion_scale(float* gradient, float factor, int64_t count) {
  for (int64_t i = 0; i < count; ++i) gradient[i] *= factor;
}
}
