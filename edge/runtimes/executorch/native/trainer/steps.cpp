#include "steps.h"

#include <time.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "errors.h"
#include "features.h"
#include "streams.h"

namespace trainer {

namespace {

enum LastBatch : int64_t { kDrop, kKeep, kWrap };
constexpr int64_t kFewest = 5;  // examples below which nothing is scored, whatever an order says
constexpr const char* kLoss = "loss";

double seconds(clockid_t clock) {
  timespec now{};
  ::clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// The nearest-rank percentile.
double percentile(std::vector<double> values, double share) {
  if (values.empty()) return 0.0;
  std::sort(values.begin(), values.end());
  const auto rank = static_cast<int64_t>(std::ceil(share * static_cast<double>(values.size()))) - 1;
  return values[std::max<int64_t>(0, rank)];
}

// Which examples go into which batch.
class BatchOrder {
 public:
  BatchOrder(const Order& order, int64_t examples) : order_(order), examples_(examples) {
    per_epoch_ = order.last_batch == kDrop ? std::max<int64_t>(1, examples / order.batch)
                                           : (examples + order.batch - 1) / order.batch;
  }
  int64_t total() const { return order_.steps > 0 ? order_.steps : order_.epochs * per_epoch_; }
  // Batches are asked for in their order.
  std::vector<int64_t> batch(int64_t number) {
    const int64_t epoch = number / per_epoch_, begin = number % per_epoch_ * order_.batch;
    if (number % per_epoch_ == 0) shuffled_ = permutation(stream_seed(order_.data_seed, "epoch", epoch, ""), examples_);
    const int64_t end = std::min(begin + order_.batch, examples_);
    std::vector<int64_t> indices(shuffled_.begin() + begin, shuffled_.begin() + end);
    if (order_.last_batch == kKeep) return indices;
    // Filled from the start of the same epoch, and of what is in it already when that is too little.
    std::vector<int64_t> source = indices;
    source.insert(source.end(), shuffled_.begin(), shuffled_.end());
    for (size_t i = indices.size(); static_cast<int64_t>(indices.size()) < order_.batch; ++i)
      indices.push_back(source[i % source.size()]);
    return indices;
  }
  uint64_t augment_seed(int64_t number) const { return stream_seed(order_.data_seed, "augment", number, ""); }

 private:
  const Order& order_;
  int64_t examples_, per_epoch_;
  std::vector<int64_t> shuffled_;
};

// Turns taken until `batches` batches are used up.
int64_t steps_of(const Order& order, int64_t batches) {
  int64_t steps = 0;
  while (batches > 0) batches -= order.turns[steps++ % order.turns.size()].advances;
  return steps;
}

// Runs one step's programs on a batch.
class Stepper {
 public:
  Stepper(const Order& order, Session& session) : order_(order), session_(session) {}

  // features: of the batch, where a program reads them; null: none does.
  std::map<int64_t, double> step(const Turn& turn, const Batch& batch, const float* features,
                                 const std::vector<float>& label_mask, int64_t number) {
    std::map<int64_t, double> scalars;
    if (batch.size % turn.parts) throw Unable("a batch that has no equal parts");
    draw(turn, batch.size, number);
    const int64_t size = batch.size / turn.parts, x_bytes = static_cast<int64_t>(batch.x.size()) / batch.size,
                  targets = static_cast<int64_t>(batch.y.size()) / batch.size;
    for (int64_t p = 0; p < turn.parts; ++p) {
      const float* part = features ? features + p * size * order_.features.elements : nullptr;
      session_.run(order_.programs[turn.programs[0]],
                   {size, batch.x.data() + p * size * x_bytes, batch.y.data() + p * size * targets, label_mask.data(), part,
                    number, &draws_, p * size},
                   scalars);
    }
    for (size_t i = 1; i < turn.programs.size(); ++i)
      session_.run(order_.programs[turn.programs[i]],
                   {batch.size, batch.x.data(), batch.y.data(), label_mask.data(), features, number, &draws_, 0}, scalars);
    return scalars;
  }

 private:
  void draw(const Turn& turn, int64_t examples, int64_t number) {
    for (const int64_t program : turn.programs)
      for (const ProgramInput& input : order_.programs[program].inputs) {
        if (input.feed != Feed::Draw) continue;
        int64_t count = 1;
        for (const int64_t size : input.shape) count *= size < 0 ? examples : size;
        std::vector<uint8_t>& value = draws_[input.name];
        value.resize(count * bytes_of(input.kind));
        const uint64_t seed = stream_seed(order_.data_seed, "draw", number, input.name);
        if (input.kind == Kind::Bool)
          draw_bools(seed, count, static_cast<uint32_t>(input.value), value.data());
        else
          draw_floats(seed, count, reinterpret_cast<float*>(value.data()));
      }
  }

  const Order& order_;
  Session& session_;
  std::map<std::string, std::vector<uint8_t>> draws_;
};

// Means over steps. A metric that counts has its mean per target, others per step.
class Means {
 public:
  explicit Means(const Order& order) : order_(order) {}
  void add(const std::map<int64_t, double>& values, int64_t targets) {
    for (const auto& [place, value] : values) {
      sums_[place] += value;
      weights_[place] += order_.scalars[place].counts ? static_cast<double>(targets) : 1.0;
    }
  }
  void into(Outcome& outcome) const {
    for (const auto& [place, sum] : sums_) {
      const double mean = sum / weights_.at(place);
      if (order_.scalars[place].name == kLoss)
        outcome.loss = mean;
      else
        outcome.metrics[order_.scalars[place].metric] = mean;
    }
  }

 private:
  const Order& order_;
  std::map<int64_t, double> sums_, weights_;
};

void train(const Order& order, Session& session, const Examples& examples, Outcome& outcome,
           const std::function<void(int64_t, int64_t, double)>& progress) {
  BatchOrder plan(order, examples.count());
  const int64_t count = plan.total(), total = steps_of(order, count);
  const std::vector<float> label_mask = examples.label_mask();
  Stepper stepper(order, session);
  std::optional<FeatureSource> source;
  if (order.features.program >= 0) source.emplace(order, session, examples.in_data());
  Means means(order);
  std::vector<double> step_ms, step_cpu_ms;
  Batch batch;
  for (int64_t number = 0; number < count; ++number) {
    double started = seconds(CLOCK_MONOTONIC), cpu_started = processor_s();
    std::vector<int64_t> indices = plan.batch(number);
    examples.batch(indices, plan.augment_seed(number), batch);
    for (int64_t& index : indices) index = examples.place(index);
    const float* features = source ? source->batch(indices, batch) : nullptr;
    for (bool advances = false; !advances;) {
      const Turn& turn = order.turns[outcome.steps % order.turns.size()];
      const auto scalars = stepper.step(turn, batch, features, label_mask, outcome.steps);
      const double finished = seconds(CLOCK_MONOTONIC), cpu_finished = processor_s();
      step_ms.push_back((finished - started) * 1000), step_cpu_ms.push_back((cpu_finished - cpu_started) * 1000);
      started = finished, cpu_started = cpu_finished;
      ++outcome.steps;
      means.add(scalars, static_cast<int64_t>(batch.y.size()));
      double loss = std::numeric_limits<double>::quiet_NaN();
      for (const auto& [place, value] : scalars)
        if (order.scalars[place].name == kLoss) loss = value;
      progress(outcome.steps, total, loss);
      advances = turn.advances;
    }
  }
  means.into(outcome);
  outcome.step_ms_p50 = percentile(step_ms, 0.50), outcome.step_ms_p95 = percentile(step_ms, 0.95);
  outcome.step_cpu_ms_p50 = percentile(step_cpu_ms, 0.50);
}

// One pass of a program over the held-out examples, in their order; the state stays as it is.
Evaluation evaluate(const Order& order, Session& session, const Examples& examples) {
  const HeldOut& rule = order.held_out;
  Evaluation found;
  found.examples = examples.count();
  if (rule.program < 0 || examples.count() < std::max(rule.least, kFewest)) return found;
  // As a deployed model: it knows all classes, whichever the device has.
  const std::vector<float> label_mask(order.classes, 1.0f);
  const Turn turn{{rule.program}, 1, 1};
  Stepper stepper(order, session);
  Batch batch;
  for (int64_t start = 0; start < examples.count(); start += rule.batch) {
    std::vector<int64_t> indices;
    for (int64_t i = start; i < std::min(start + rule.batch, examples.count()); ++i) indices.push_back(i);
    examples.batch(indices, std::nullopt, batch);
    for (const auto& [place, value] : stepper.step(turn, batch, nullptr, label_mask, 0)) found.sums[order.scalars[place].name] += value;
    found.targets += static_cast<int64_t>(batch.y.size());
  }
  session.forget();
  return found;
}

}  // namespace

double processor_s() { return seconds(CLOCK_PROCESS_CPUTIME_ID); }

Outcome carry_out(const Order& order, Session& session, const std::function<void(int64_t, int64_t, double)>& progress) {
  Examples trained(order.x, order.y, order.input, order.classes);
  Outcome outcome;
  if (order.held_out.is_asked) {
    const Examples all = trained;
    const auto rows = held_out_rows(all.count(), order.held_out.share, order.held_out.seed);
    std::vector<int64_t> others;
    for (int64_t i = 0; i < all.count(); ++i)
      if (!std::binary_search(rows.begin(), rows.end(), i)) others.push_back(i);
    if (others.empty()) throw Unable("all examples are held out");
    trained = all.part(others);
    if (order.held_out.program >= 0) outcome.evaluation = evaluate(order, session, all.part(rows));
  }
  if (order.sample.size > 0 && order.sample.size < trained.count())
    trained = trained.part(sample_rows(trained.count(), order.sample.size, order.sample.seed));
  if (!order.turns.empty()) train(order, session, trained, outcome, progress);
  outcome.num_examples = trained.count();
  if (order.reports_labels) outcome.labels = trained.labels();
  return outcome;
}

}  // namespace trainer
