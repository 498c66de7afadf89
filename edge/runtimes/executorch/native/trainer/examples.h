// Local examples as an artifact's batches, as edge/training/batches.py makes them: the same values, to the bit.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "files.h"
#include "order.h"

namespace trainer {

// A batch: inputs of the input's type, targets as int64.
struct Batch {
  int64_t size = 0;
  std::vector<uint8_t> x;
  std::vector<int64_t> y;
};

class Examples {
 public:
  // Raises Unable where a file cannot be read, or holds what the artifact cannot take.
  Examples(const Array& x, const Array& y, const Input& input, int64_t classes);

  int64_t count() const { return rows_ ? static_cast<int64_t>(rows_->size()) : all_; }
  // Where the example at `index` is in the device's data, of which these may be a part; of `in_data` examples.
  int64_t place(int64_t index) const { return rows_ ? (*rows_)[index] : index; }
  int64_t in_data() const { return all_; }
  // Those at `rows`, numbered anew; they share the files.
  Examples part(std::vector<int64_t> rows) const;
  // Inputs and targets of the examples at `indices`; without a seed nothing is augmented.
  void batch(const std::vector<int64_t>& indices, std::optional<uint64_t> augment_seed, Batch& out) const;
  // Classes with an example, rising.
  std::vector<int64_t> labels() const;
  // 1 for classes with an example.
  std::vector<float> label_mask() const;

 private:
  struct Opened {
    std::shared_ptr<InputFile> file;
    int64_t offset, begin, count;
  };
  using Files = std::vector<Opened>;

  static Files opened(const Array& array);
  static void read(const Files& files, int64_t row, int64_t bytes, void* out);
  void check(const Array& array, const Files& files) const;
  void normalise(float* x, int64_t examples) const;
  void augment(float* x, int64_t examples, uint64_t seed) const;

  Array x_, y_;
  Input input_;
  int64_t classes_, all_ = 0, x_elements_, y_elements_;
  Files x_files_, y_files_;
  std::optional<std::vector<int64_t>> rows_;
};

// Places of the held-out examples among `examples`, rising (edge/training/held_out.py).
std::vector<int64_t> held_out_rows(int64_t examples, double share, uint64_t seed);

// Places of a fixed sample among `examples`, rising (edge/training/fixed_sample.py).
std::vector<int64_t> sample_rows(int64_t examples, int64_t size, uint64_t seed);

}  // namespace trainer
