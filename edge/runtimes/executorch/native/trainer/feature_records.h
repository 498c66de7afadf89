// Features of examples on the device's disk: the file of edge/training/feature_cache/record_file.py, record by record.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "sealing.h"

namespace trainer {

class FeatureRecords {
 public:
  // Of `examples` examples, `bytes` of each. Raises std::system_error where the file cannot be opened.
  FeatureRecords(const std::string& path, std::unique_ptr<Sealing> sealing, int64_t examples, int64_t bytes, int64_t limit_bytes);
  ~FeatureRecords();
  FeatureRecords(const FeatureRecords&) = delete;
  FeatureRecords& operator=(const FeatureRecords&) = delete;

  // Whether the features of the example are there; `out` holds them then.
  bool read(const Example& example, uint8_t* out);
  // Keeps them, if there is room.
  void write(const Example& example, const uint8_t* features);

 private:
  void read_places();

  std::unique_ptr<Sealing> sealing_;
  int64_t bytes_, head_bytes_, record_bytes_, most_, count_ = 0;
  std::vector<int64_t> slots_, free_;
  std::vector<uint8_t> head_, kept_;
  int file_;
};

}  // namespace trainer
