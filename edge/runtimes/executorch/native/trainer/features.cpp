#include "features.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <system_error>

#include "../half.h"
#include "errors.h"

namespace trainer {

namespace {

using apportion::half;
using apportion::single;

constexpr int64_t kScaleBytes = 8;
constexpr float kSteps = 255.0f;

std::unique_ptr<FeatureRecords> opened(const Features& rule, int64_t examples, int64_t bytes) {
  if (rule.path.empty()) return nullptr;
  auto seals = sealing(rule.key, rule.cipher);
  try {
    return std::make_unique<FeatureRecords>(rule.path, std::move(seals), examples, bytes, rule.limit_bytes);
  } catch (const std::system_error& error) {
    std::fprintf(stderr, "no features are kept, every step computes its own: %s\n", error.what());
    return nullptr;
  }
}

}  // namespace

int64_t rounded_bytes(Rounded rounded, int64_t elements) {
  return rounded == Rounded::No ? 4 * elements : rounded == Rounded::Float16 ? 2 * elements : kScaleBytes + elements;
}

void round_to(Rounded rounded, const float* values, int64_t elements, uint8_t* out) {
  if (rounded == Rounded::No) {
    std::memcpy(out, values, elements * sizeof(float));
  } else if (rounded == Rounded::Float16) {
    for (int64_t i = 0; i < elements; ++i) {
      const uint16_t found = half(values[i]);
      if ((found & 0x7c00) == 0x7c00) throw Unable("features are not finite in float16");
      std::memcpy(out + 2 * i, &found, 2);
    }
  } else {
    const auto [low, high] = std::minmax_element(values, values + elements);
    const float step = (*high - *low) / kSteps, scale[] = {*low, step};
    std::memcpy(out, scale, kScaleBytes);
    for (int64_t i = 0; i < elements; ++i) {
      const float place = step > 0 ? std::nearbyint((values[i] - *low) / step) : 0.0f;
      out[kScaleBytes + i] = static_cast<uint8_t>(std::clamp(place, 0.0f, kSteps));
    }
  }
}

void give_back(Rounded rounded, const uint8_t* kept, int64_t elements, float* out) {
  if (rounded == Rounded::No) {
    std::memcpy(out, kept, elements * sizeof(float));
  } else if (rounded == Rounded::Float16) {
    for (int64_t i = 0; i < elements; ++i) {
      uint16_t value;
      std::memcpy(&value, kept + 2 * i, 2);
      out[i] = single(value);
    }
  } else {
    float scale[2];
    std::memcpy(scale, kept, kScaleBytes);
    for (int64_t i = 0; i < elements; ++i) {
      const float moved = static_cast<float>(kept[kScaleBytes + i]) * scale[1];
      out[i] = moved + scale[0];
    }
  }
}

FeatureSource::FeatureSource(const Order& order, Session& session, int64_t examples)
    : order_(order), rule_(order.features), session_(session), kept_bytes_(rounded_bytes(rule_.rounded, rule_.elements)),
      records_(opened(rule_, examples, kept_bytes_)) {}

const float* FeatureSource::batch(const std::vector<int64_t>& places, const Batch& batch) {
  const auto size = static_cast<int64_t>(places.size());
  const int64_t x_bytes = static_cast<int64_t>(batch.x.size()) / size;
  const auto example = [&](int64_t row) { return Example{places[row], batch.x.data() + row * x_bytes, x_bytes}; };
  values_.resize(size * rule_.elements);
  if (rule_.rounded != Rounded::No) kept_.resize(size * kept_bytes_);
  auto* kept = rule_.rounded == Rounded::No ? reinterpret_cast<uint8_t*>(values_.data()) : kept_.data();
  std::vector<int64_t> missing;
  for (int64_t row = 0; row < size; ++row)
    if (!records_ || !records_->read(example(row), kept + row * kept_bytes_)) missing.push_back(row);
  for (size_t begin = 0; begin < missing.size(); begin += rule_.most) {
    const size_t end = std::min(missing.size(), begin + rule_.most);
    compute({missing.begin() + begin, missing.begin() + end}, batch, kept, x_bytes);
  }
  if (records_)
    for (const int64_t row : missing) records_->write(example(row), kept + row * kept_bytes_);
  if (rule_.rounded != Rounded::No)
    for (int64_t row = 0; row < size; ++row)
      give_back(rule_.rounded, kept + row * kept_bytes_, rule_.elements, values_.data() + row * rule_.elements);
  return values_.data();
}

void FeatureSource::compute(const std::vector<int64_t>& rows, const Batch& batch, uint8_t* kept, int64_t x_bytes) {
  const auto count = static_cast<int64_t>(rows.size());
  std::vector<uint8_t> x(count * x_bytes);
  std::vector<float> found(count * rule_.elements);
  for (int64_t i = 0; i < count; ++i) std::memcpy(x.data() + i * x_bytes, batch.x.data() + rows[i] * x_bytes, x_bytes);
  Feeds feeds;
  feeds.examples = count, feeds.x = x.data();
  session_.compute(order_.programs.at(rule_.program), feeds, rule_.elements, found.data());
  for (const float value : found)
    if (!std::isfinite(value)) throw Unable("features that are not finite");
  for (int64_t i = 0; i < count; ++i)
    round_to(rule_.rounded, found.data() + i * rule_.elements, rule_.elements, kept + rows[i] * kept_bytes_);
}

}  // namespace trainer
