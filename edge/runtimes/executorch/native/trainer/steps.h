// An order as steps of a session, scored before them where it asks for that: what edge/training does in Python.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "examples.h"
#include "order.h"
#include "session.h"

namespace trainer {

// Sums over the held-out share; without any where it has too few examples.
struct Evaluation {
  int64_t examples = 0, targets = 0;
  std::map<std::string, double> sums;
};

struct Outcome {
  int64_t num_examples = 0, steps = 0;
  double loss = 0.0;
  std::map<std::string, double> metrics;
  double step_ms_p50 = 0.0, step_ms_p95 = 0.0, step_cpu_ms_p50 = 0.0;
  std::vector<int64_t> labels;
  std::optional<Evaluation> evaluation;
};

// progress is called after every step with (steps done, steps in all, loss).
Outcome carry_out(const Order& order, Session& session, const std::function<void(int64_t, int64_t, double)>& progress);

// Seconds of processor time that this process has had.
double processor_s();

}  // namespace trainer
