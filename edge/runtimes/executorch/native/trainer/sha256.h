// SHA-256 (FIPS 180-4), of what comes piece by piece: file digests, stream seeds and the update's own digest.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace trainer {

class Sha256 {
 public:
  void add(const void* data, size_t count);
  // Of everything added; nothing may be added afterwards.
  std::array<uint8_t, 32> digest();
  std::string hex();

 private:
  void block(const uint8_t* data);

  std::array<uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                    0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<uint8_t, 64> rest_{};
  uint64_t count_ = 0;
};

}  // namespace trainer
