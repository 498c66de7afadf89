// What tests/arm measures of the kernels: `products` prints a digest of the bits of many matrix products; `forward`,
// `input` and `weights` do a convolution's part so many times: IMAGES SIZE CHANNELS KERNEL TIMES.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "convolution.cpp"

namespace {

// Values in [-1, 1) from SplitMix64.
std::vector<float> values(int64_t count, uint64_t seed) {
  std::vector<float> made(static_cast<size_t>(count));
  for (float& value : made) {
    seed += 0x9e3779b97f4a7c15u;
    uint64_t z = seed;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    z ^= z >> 31;
    value = static_cast<float>(z >> 40) * 0x1p-23f - 1.0f;
  }
  return made;
}

uint64_t digest(const std::vector<float>& of) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (float value : of) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    hash = (hash ^ bits) * 0x100000001b3u;
  }
  return hash;
}

void products() {
  for (int64_t m : {1, 6, 13, 70})
    for (int64_t n : {1, 16, 31, 62})
      for (int64_t k : {1, 2, 7, 300})
        for (int form = 0; form < 8; ++form) {
          const auto a = values(m * k, 1), b = values(n * k + 16, 2);
          auto c = values(m * n, 3);
          apportion::matrix_product(a.data(), form & 1, b.data(), form & 2, c.data(), m, n, k, form & 4 ? b.data() : nullptr);
          std::printf("%d x %d x %d, form %d: %016llx\n", int(m), int(n), int(k), form,
                      static_cast<unsigned long long>(digest(c)));
        }
}

}  // namespace

int main(int count, char** arguments) {
  const std::string part = count > 1 ? arguments[1] : "";
  if (part == "products") {
    products();
    return 0;
  }
  if (count != 7) {
    std::fprintf(stderr, "usage: %s products | forward|input|weights IMAGES SIZE CHANNELS KERNEL TIMES\n", arguments[0]);
    return 2;
  }
  int64_t given[5];
  for (int i = 0; i < 5; ++i) given[i] = std::atoll(arguments[i + 2]);
  const auto [images, size, channels, kernel, times] = given;
  const int64_t pad = kernel / 2, pixels = images * size * size * channels, taps = channels * channels * kernel * kernel;
  const apportion::Geometry g{images, size, size, channels, size, size, channels, kernel, kernel, 1, 1, 1, pad, pad, 1, 1};
  const auto x = values(pixels, 1), dy = values(pixels, 2), w = values(taps, 3);
  std::vector<float> y(part == "weights" ? 0 : static_cast<size_t>(pixels)), dw(static_cast<size_t>(taps));
  for (int64_t i = 0; i < times; ++i) {
    if (part == "forward") apportion::forward(g, x.data(), w.data(), nullptr, y.data());
    if (part == "input") apportion::input_gradient(g, dy.data(), w.data(), y.data());
    if (part == "weights") apportion::weight_gradient(g, x.data(), dy.data(), dw.data());
  }
  std::printf("%016llx\n", static_cast<unsigned long long>(digest(part == "weights" ? dw : y)));
}
