// Activations made of exponentials, and their gradients: sigmoid, tanh, SiLU, ELU, softplus, Mish, GELU by tanh.
#include "activation_loops.h"
#include "kernels.h"
#include "simd.h"

namespace apportion {
namespace {

const Vector kOne = splat(1.0f);

// e^x - 1 up to 0, with its digits near 0
inline Vector exponential_less_one(Vector x) {
  const Vector t = hyperbolic_tangent(x * 0.5f);
  return 2.0f * t / (1.0f - t);
}

// ln(1 + u) for u in 0 .. 1: twice the inverse hyperbolic tangent of u / (2 + u), which is at most 1/3
inline Vector logarithm_of_one_more(Vector u) {
  const Vector z = u / (u + 2.0f), s = z * z;
  Vector p = splat(1.0f / 15);
  for (int i = 13; i >= 1; i -= 2) p = p * s + splat(1.0f / static_cast<float>(i));
  return 2.0f * z * p;
}

// tanh of ln(1 + e^x), and the slope of x times that
inline Vector mish_gate(Vector x) {
  const Vector e = exponential(minimum(x, splat(20.0f))), n = e * (e + 2.0f);
  return n / (n + 2.0f);
}

constexpr float kBend = 0.044715f, kSlope = 0.79788456f;  // of GELU by tanh; the square root of 2 / pi

void sigmoids(Call& call) {
  each_of_one(call, 0, [](Vector x) { return sigmoid(x); });
}
// of the result
void sigmoid_backward(Call& call) {
  each_slope(call, 0, [](Vector y) { return y * (1.0f - y); });
}
void tanhs(Call& call) {
  each_of_one(call, 0, [](Vector x) { return hyperbolic_tangent(x); });
}
// of the result
void tanh_backward(Call& call) {
  each_slope(call, 0, [](Vector y) { return 1.0f - y * y; });
}

// silu(x) -> x sigmoid(x)
void silu(Call& call) {
  each_of_one(call, 0, [](Vector x) { return x * sigmoid(x); });
}
void silu_backward(Call& call) {
  each_slope(call, 0, [](Vector x) {
    const Vector s = sigmoid(x);
    return s * (1.0f + x * (1.0f - s));
  });
}

// elu(x, alpha, scale, inner) -> scale x above 0, scale alpha (e^(inner x) - 1) up to 0
void elu(Call& call) {
  const Vector low = number(call, 1) * number(call, 2), high = number(call, 2), inner = number(call, 3);
  each_of_one(call, 3, [&](Vector x) {
    return select(x > Vector{}, x * high, low * exponential_less_one(minimum(x * inner, Vector{})));
  });
}
void elu_backward(Call& call) {
  const Vector low = number(call, 2) * number(call, 3) * number(call, 4), high = number(call, 3), inner = number(call, 4);
  each_slope(call, 3, [&](Vector x) { return select(x > Vector{}, high, low * exponential(minimum(x * inner, Vector{}))); });
}

// softplus(x, beta, threshold) -> ln(1 + e^(beta x)) / beta, x beyond the threshold
void softplus(Call& call) {
  const Vector beta = number(call, 1), threshold = number(call, 2);
  each_of_one(call, 2, [&](Vector x) {
    const Vector b = x * beta, size = select(b < Vector{}, -b, b);
    const Vector soft = (maximum(b, Vector{}) + logarithm_of_one_more(exponential(-size))) / beta;
    return select(b > threshold, x, soft);
  });
}
void softplus_backward(Call& call) {
  const Vector beta = number(call, 2), threshold = number(call, 3);
  each_slope(call, 2, [&](Vector x) { return select(x * beta > threshold, kOne, sigmoid(x * beta)); });
}

// mish(x) -> x tanh(ln(1 + e^x))
void mish(Call& call) {
  each_of_one(call, 0, [](Vector x) { return x * mish_gate(x); });
}
void mish_backward(Call& call) {
  each_slope(call, 0, [](Vector x) {
    const Vector t = mish_gate(x);
    return t + x * (1.0f - t * t) * sigmoid(x);
  });
}

// gelu_tanh(x) -> x / 2 (1 + tanh(k (x + c x^3)))
void gelu_tanh(Call& call) {
  each_of_one(call, 0, [](Vector x) {
    return 0.5f * x * (1.0f + hyperbolic_tangent(kSlope * (x + kBend * x * x * x)));
  });
}
void gelu_tanh_backward(Call& call) {
  each_slope(call, 0, [](Vector x) {
    const Vector t = hyperbolic_tangent(kSlope * (x + kBend * x * x * x));
    const Vector inner = kSlope * (1.0f + 3.0f * kBend * x * x);
    return 0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * inner;
  });
}

APPORTION_KERNEL("sigmoid", sigmoids);
APPORTION_KERNEL("sigmoid_backward", sigmoid_backward);
APPORTION_KERNEL("tanh", tanhs);
APPORTION_KERNEL("tanh_backward", tanh_backward);
APPORTION_KERNEL("silu", silu);
APPORTION_KERNEL("silu_backward", silu_backward);
APPORTION_KERNEL("elu", elu);
APPORTION_KERNEL("elu_backward", elu_backward);
APPORTION_KERNEL("softplus", softplus);
APPORTION_KERNEL("softplus_backward", softplus_backward);
APPORTION_KERNEL("mish", mish);
APPORTION_KERNEL("mish_backward", mish_backward);
APPORTION_KERNEL("gelu_tanh", gelu_tanh);
APPORTION_KERNEL("gelu_tanh_backward", gelu_tanh_backward);

}  // namespace
}  // namespace apportion
