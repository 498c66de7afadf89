// The features of a batch: read where they are kept, computed where they are not, and then kept, as
// edge/training/feature_cache/source.py does it: the same values, to the bit.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "examples.h"
#include "feature_records.h"
#include "order.h"
#include "session.h"

namespace trainer {

class FeatureSource {
 public:
  // Of an order whose steps read features, on a device with `examples` examples.
  FeatureSource(const Order& order, Session& session, int64_t examples);

  // Of the examples of a batch, which are at `places` of the device's data; there until the next batch.
  const float* batch(const std::vector<int64_t>& places, const Batch& batch);

 private:
  void compute(const std::vector<int64_t>& rows, const Batch& batch, uint8_t* kept, int64_t x_bytes);

  const Order& order_;
  const Features& rule_;
  Session& session_;
  int64_t kept_bytes_;  // of one example
  std::unique_ptr<FeatureRecords> records_;
  std::vector<uint8_t> kept_;
  std::vector<float> values_;
};

// Bytes that so many values take as `rounded`, those values in so many bytes, and back (rounding.py beside the above).
int64_t rounded_bytes(Rounded rounded, int64_t elements);
void round_to(Rounded rounded, const float* values, int64_t elements, uint8_t* out);
void give_back(Rounded rounded, const uint8_t* kept, int64_t elements, float* out);

}  // namespace trainer
