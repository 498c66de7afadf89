// The state of an order and the programs that move it; of those the one that runs is the only one loaded.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "order.h"

namespace trainer {

// What a program is fed beside the state, by kind; what is not there is null.
struct Feeds {
  int64_t examples = 0;
  const uint8_t* x = nullptr;
  const int64_t* y = nullptr;
  const float* label_mask = nullptr;
  const float* features = nullptr;
  int64_t step = 0;
  // Draws by name, and where this part of the batch begins in them.
  const std::map<std::string, std::vector<uint8_t>>* draws = nullptr;
  int64_t draw_begin = 0;
};

// A program that is loaded, and what it was loaded from; kept from one order to the next.
class Loaded {
 public:
  ~Loaded() { forget(); }
  void* open(const Program& program);
  void forget();

 private:
  std::string path_;
  void* handle_ = nullptr;
};

class Threads {
 public:
  explicit Threads(int64_t count);
  ~Threads();
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;
  void* handle() const { return handle_; }

 private:
  void* handle_;
};

class Session {
 public:
  // The state at its first values. Raises Unable where a file is not what the order says.
  Session(const Order& order, Loaded& loaded);

  // One execution: the state takes what the program gives, `scalars` its loss and metrics by their places.
  void run(const Program& program, const Feeds& feeds, std::map<int64_t, double>& scalars);
  // What a program gives as features, `elements` values for each example, to `out`; the state stays as it is.
  void compute(const Program& program, const Feeds& feeds, int64_t elements, float* out);
  void forget() { loaded_.forget(); }
  const void* value(int64_t tensor) const { return state_[tensor].get(); }

 private:
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  using Buffer = std::unique_ptr<uint8_t[], Free>;

  // Runs the program's graph; its outputs are there until the next one runs.
  void* execute(const Program& program, const Feeds& feeds);
  float* floats(int64_t tensor) const { return tensor < 0 ? nullptr : reinterpret_cast<float*>(state_[tensor].get()); }
  void move(const Rule& rule, const std::vector<float*>& gradients);

  const Order& order_;
  Loaded& loaded_;
  Threads threads_;
  std::vector<Buffer> state_;
};

}  // namespace trainer
