// How a record of features proves whose it is, as edge/training/feature_cache/sealing.py says.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace trainer {

// The input that features were computed from, and where it is in the device's data.
struct Example {
  int64_t place;
  const uint8_t* data;
  int64_t bytes;
};

class Sealing {
 public:
  virtual ~Sealing() = default;
  // Bytes of a record's head that are the seal.
  virtual int64_t size() const = 0;
  // Writes the seal; `kept` holds features, and then what is kept of them.
  virtual void close(const Example& example, std::vector<uint8_t>& kept, uint8_t* seal) = 0;
  // Whether seal and kept bytes are those of the example; `kept` then holds its features.
  virtual bool open(const Example& example, const uint8_t* seal, uint8_t* kept, int64_t bytes) = 0;
};

// By a checksum, with the first bytes of what features are computed with; encrypted where a cipher's key is given.
// Raises Unable where that needs a library that is not there.
std::unique_ptr<Sealing> sealing(const std::string& key, const std::string& cipher);

// CRC-32 as in zlib.
uint32_t crc32(const uint8_t* data, int64_t count);

}  // namespace trainer
