#include "examples.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

#include "errors.h"
#include "streams.h"

namespace trainer {

namespace {

constexpr int64_t kPieceBytes = 1 << 16;  // read at a time while checking

int64_t product(const std::vector<int64_t>& sizes) {
  int64_t found = 1;
  for (const int64_t size : sizes) found *= size;
  return found;
}

// values of T as those of Out, as NumPy's astype casts them.
template <class T, class Out>
void cast(const void* from, int64_t count, Out* out) {
  const T* values = static_cast<const T*>(from);
  for (int64_t i = 0; i < count; ++i) out[i] = static_cast<Out>(values[i]);
}

template <class Out>
void convert(Kind kind, const void* from, int64_t count, Out* out) {
  switch (kind) {
    case Kind::Float32:
      return cast<float>(from, count, out);
    case Kind::Float64:
      return cast<double>(from, count, out);
    case Kind::Int64:
      return cast<int64_t>(from, count, out);
    case Kind::Int32:
      return cast<int32_t>(from, count, out);
    case Kind::Int8:
      return cast<int8_t>(from, count, out);
    default:
      return cast<uint8_t>(from, count, out);
  }
}

bool is_real(Kind kind) { return kind == Kind::Float32 || kind == Kind::Float64; }

}  // namespace

Examples::Examples(const Array& x, const Array& y, const Input& input, int64_t classes)
    : x_(x), y_(y), input_(input), classes_(classes), x_elements_(product(x.shape)), y_elements_(product(y.shape)),
      x_files_(opened(x)), y_files_(opened(y)) {
  for (const Part& part : y.parts) all_ += part.count;
  if (x_elements_ != product(input.shape)) throw Unable("examples of another size than the artifact's");
  check(x_, x_files_);
  check(y_, y_files_);
}

Examples Examples::part(std::vector<int64_t> rows) const {
  Examples chosen = *this;
  if (rows_)
    for (int64_t& row : rows) row = (*rows_)[row];
  chosen.rows_ = std::move(rows);
  return chosen;
}

Examples::Files Examples::opened(const Array& array) {
  Files files;
  int64_t begin = 0;
  for (const Part& part : array.parts) {
    files.push_back({std::make_shared<InputFile>(part.path), part.offset, begin, part.count});
    begin += part.count;
  }
  return files;
}

void Examples::read(const Files& files, int64_t row, int64_t bytes, void* out) {
  const auto after = std::upper_bound(files.begin(), files.end(), row, [](int64_t r, const Opened& f) { return r < f.begin; });
  const Opened& found = *std::prev(after);
  found.file->read(out, found.offset + (row - found.begin) * bytes, bytes);
}

// Values that are not finite, or outside of their limit, are left to the other trainer, which names them. A file that was
// checked by this process is not read again while it stays as it is.
void Examples::check(const Array& array, const Files& files) const {
  static std::set<std::string> known;
  if (!is_real(array.kind) && array.limit == 0) return;
  const int64_t width = bytes_of(array.kind), elements = product(array.shape);
  std::vector<uint8_t> piece(kPieceBytes);
  std::vector<double> values(kPieceBytes / width);
  for (const Opened& part : files) {
    const std::string version = part.file->version() + " " + std::to_string(part.offset) + " " + std::to_string(array.limit);
    if (known.contains(version)) continue;
    const int64_t total = part.count * elements;
    for (int64_t at = 0; at < total; at += kPieceBytes / width) {
      const int64_t count = std::min(kPieceBytes / width, total - at);
      part.file->read(piece.data(), part.offset + at * width, count * width);
      convert(array.kind, piece.data(), count, values.data());
      for (int64_t i = 0; i < count; ++i) {
        if (is_real(array.kind) ? !std::isfinite(values[i]) : values[i] < 0 || values[i] >= static_cast<double>(array.limit))
          throw Unable("a value among the examples that the artifact does not take");
      }
    }
    known.insert(version);
  }
}

void Examples::batch(const std::vector<int64_t>& indices, std::optional<uint64_t> augment_seed, Batch& out) const {
  const auto size = static_cast<int64_t>(indices.size());
  const int64_t width = input_.kind == Kind::Int64 ? 8 : 4;
  out.size = size;
  out.x.resize(size * x_elements_ * width);
  out.y.resize(size * y_elements_);
  std::vector<uint8_t> raw(std::max(x_elements_ * bytes_of(x_.kind), y_elements_ * bytes_of(y_.kind)));
  std::vector<float> turned(input_.channels_last ? x_elements_ : 0);
  for (int64_t i = 0; i < size; ++i) {
    const int64_t row = place(indices[i]);
    read(x_files_, row, x_elements_ * bytes_of(x_.kind), raw.data());
    uint8_t* x = out.x.data() + i * x_elements_ * width;
    if (input_.kind == Kind::Int64) {
      convert(x_.kind, raw.data(), x_elements_, reinterpret_cast<int64_t*>(x));
    } else if (input_.channels_last) {
      convert(x_.kind, raw.data(), x_elements_, turned.data());
      const int64_t channels = input_.shape[0], places = x_elements_ / channels;
      auto* to = reinterpret_cast<float*>(x);
      for (int64_t c = 0; c < channels; ++c)
        for (int64_t p = 0; p < places; ++p) to[c * places + p] = turned[p * channels + c];
    } else {
      convert(x_.kind, raw.data(), x_elements_, reinterpret_cast<float*>(x));
    }
    read(y_files_, row, y_elements_ * bytes_of(y_.kind), raw.data());
    convert(y_.kind, raw.data(), y_elements_, out.y.data() + i * y_elements_);
  }
  if (input_.kind == Kind::Int64) return;
  auto* x = reinterpret_cast<float*>(out.x.data());
  if (augment_seed && (input_.flips || input_.padding)) augment(x, size, *augment_seed);
  normalise(x, size);
}

void Examples::augment(float* x, int64_t examples, uint64_t seed) const {
  const int64_t channels = input_.shape[0], height = input_.shape[1], width = input_.shape[2];
  std::vector<float> before(x_elements_);
  for (int64_t i = 0; i < examples; ++i, x += x_elements_) {
    if (input_.flips && uniform(seed, i) < 0.5)
      for (int64_t row = 0; row < channels * height; ++row) std::reverse(x + row * width, x + (row + 1) * width);
    if (!input_.padding) continue;
    const auto offset = [&](int64_t at) {
      return static_cast<int64_t>(std::floor(uniform(seed, at) * static_cast<double>(2 * input_.padding + 1))) - input_.padding;
    };
    const int64_t top = offset(examples + i), left = offset(2 * examples + i);
    std::copy(x, x + x_elements_, before.begin());
    for (int64_t c = 0; c < channels; ++c)
      for (int64_t row = 0; row < height; ++row)
        for (int64_t column = 0; column < width; ++column) {
          const int64_t from = row + top, beside = column + left;
          const bool is_inside = 0 <= from && from < height && 0 <= beside && beside < width;
          x[(c * height + row) * width + column] = is_inside ? before[(c * height + from) * width + beside] : 0.0f;
        }
  }
}

// One pass each, as NumPy does it: no product is added to before it is rounded.
void Examples::normalise(float* x, int64_t examples) const {
  const int64_t count = examples * x_elements_;
  const auto per_channel = [&](const std::vector<double>& values, const auto& apply) {
    const auto channels = static_cast<int64_t>(values.size());
    for (int64_t i = 0; i < count; ++i) x[i] = apply(x[i], static_cast<float>(values[channels == 1 ? 0 : i / input_.inner % channels]));
  };
  if (input_.scale != 1.0)
    for (int64_t i = 0; i < count; ++i) x[i] *= static_cast<float>(input_.scale);
  if (std::any_of(input_.mean.begin(), input_.mean.end(), [](double v) { return v != 0.0; }))
    per_channel(input_.mean, [](float value, float mean) { return value - mean; });
  if (std::any_of(input_.std.begin(), input_.std.end(), [](double v) { return v != 1.0; }))
    per_channel(input_.std, [](float value, float deviation) { return value / deviation; });
}

std::vector<int64_t> Examples::labels() const {
  std::set<int64_t> found;
  std::vector<uint8_t> raw(y_elements_ * bytes_of(y_.kind));
  std::vector<int64_t> values(y_elements_);
  for (int64_t i = 0; i < count(); ++i) {
    read(y_files_, place(i), static_cast<int64_t>(raw.size()), raw.data());
    convert(y_.kind, raw.data(), y_elements_, values.data());
    found.insert(values.begin(), values.end());
  }
  return {found.begin(), found.end()};
}

std::vector<float> Examples::label_mask() const {
  std::vector<float> mask(classes_, 0.0f);
  for (const int64_t label : labels()) mask.at(label) = 1.0f;
  return mask;
}

std::vector<int64_t> held_out_rows(int64_t examples, double share, uint64_t seed) {
  const auto strata = static_cast<int64_t>(std::floor(static_cast<double>(examples) * share)) + 1;
  const auto start = [&](int64_t j) { return static_cast<int64_t>(std::ceil(static_cast<double>(j) / share)); };
  std::vector<int64_t> rows;
  for (int64_t j = 0; j < strata; ++j) {
    const int64_t row = start(j) + static_cast<int64_t>(std::floor(uniform(seed, j) * static_cast<double>(start(j + 1) - start(j))));
    if (row < examples) rows.push_back(row);
  }
  return rows;
}

std::vector<int64_t> sample_rows(int64_t examples, int64_t size, uint64_t seed) {
  std::vector<int64_t> rows = permutation(seed, examples);
  rows.resize(std::min(size, examples));
  std::sort(rows.begin(), rows.end());
  return rows;
}

}  // namespace trainer
