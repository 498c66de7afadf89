// float16 in whole numbers, for what has no instruction for it: the same bits on every processor.
#pragma once

#include <cstdint>
#include <cstring>

namespace apportion {

template <class To, class From>
inline To bits_of(From value) {
  static_assert(sizeof(To) == sizeof(From));
  To found;
  std::memcpy(&found, &value, sizeof found);
  return found;
}

// The nearest float16, of two the even one.
inline uint16_t half(float value) {
  const auto bits = bits_of<uint32_t>(value);
  const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
  uint32_t rest = bits & 0x7fffffff;
  if (rest >= 0x47800000) return sign | (rest > 0x7f800000 ? 0x7e00 : 0x7c00);  // 2^16 and above
  if (rest < 0x38800000)  // below 2^-14: the sum with a half has the last place of such a number
    return sign | static_cast<uint16_t>(bits_of<uint32_t>(bits_of<float>(rest) + 0.5f) - bits_of<uint32_t>(0.5f));
  rest += 0xfff + (rest >> 13 & 1);
  return sign | static_cast<uint16_t>((rest - 0x38000000) >> 13);
}

// What a float16 is; infinities and what is no number come out as numbers beyond its range.
inline float single(uint16_t value) {
  const uint32_t sign = static_cast<uint32_t>(value & 0x8000) << 16, exponent = value >> 10 & 0x1f, rest = value & 0x3ff;
  if (exponent == 0) return bits_of<float>(sign | bits_of<uint32_t>(static_cast<float>(rest) * 0x1p-24f));
  return bits_of<float>(sign | (exponent + 112) << 23 | rest << 13);
}

}  // namespace apportion
