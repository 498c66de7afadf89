#include "streams.h"

#include <numeric>
#include <utility>

#include "sha256.h"

namespace trainer {

uint64_t splitmix64(uint64_t seed, uint64_t i) {
  uint64_t z = seed + (i + 1) * 0x9E3779B97F4A7C15u;
  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
  z = (z ^ z >> 27) * 0x94D049BB133111EBu;
  return z ^ z >> 31;
}

uint64_t stream_seed(const std::string& seed, const std::string& purpose, int64_t round, const std::string& device) {
  const std::string key = seed + "\n" + purpose + "\n" + std::to_string(round) + "\n" + device;
  Sha256 hash;
  hash.add(key.data(), key.size());
  const auto digest = hash.digest();
  uint64_t found = 0;
  for (int i = 0; i < 8; ++i) found = found << 8 | digest[i];
  return found;
}

double uniform(uint64_t seed, uint64_t i) { return static_cast<double>(splitmix64(seed, i) >> 11) * 0x1p-53; }

std::vector<int64_t> permutation(uint64_t seed, int64_t count) {
  std::vector<int64_t> order(count);
  std::iota(order.begin(), order.end(), int64_t{0});
  for (int64_t i = count - 1; i > 0; --i) {
    const uint64_t z = splitmix64(seed, static_cast<uint64_t>(count - 1 - i));
    std::swap(order[i], order[z % static_cast<uint64_t>(i + 1)]);
  }
  return order;
}

namespace {

uint32_t lane(uint64_t seed, int64_t i) {
  const uint64_t output = splitmix64(seed, static_cast<uint64_t>(i / 2));
  return static_cast<uint32_t>(i % 2 ? output >> 32 : output) >> 8;
}

}  // namespace

void draw_floats(uint64_t seed, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = static_cast<float>(lane(seed, i)) * 0x1p-24f;
}

void draw_bools(uint64_t seed, int64_t count, uint32_t below, uint8_t* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = lane(seed, i) < below;
}

}  // namespace trainer
