#include "order.h"

#include <cstring>

#include "errors.h"

namespace trainer {

namespace {

constexpr char kMagic[] = "apportion-flat-order/3";
constexpr int64_t kMost = 1 << 20;  // entries of a list

class Reader {
 public:
  Reader(const uint8_t* begin, const uint8_t* end) : at_(begin), end_(end) {}

  template <class T>
  T number() {
    static_assert(sizeof(T) == 8);
    T value;
    std::memcpy(&value, take(8), 8);
    return value;
  }
  int64_t integer() { return number<int64_t>(); }
  double real() { return number<double>(); }
  template <class T>
  T one_of() {
    return static_cast<T>(integer());
  }
  std::string text() {
    const int64_t length = size();
    return {reinterpret_cast<const char*>(take(length)), static_cast<size_t>(length)};
  }
  template <class F>
  auto list(const F& one) {
    std::vector<decltype(one())> found;
    const int64_t count = size();
    if (count > kMost) throw Unable("the flat order has a list of " + std::to_string(count));
    for (int64_t i = 0; i < count; ++i) found.push_back(one());
    return found;
  }
  std::vector<int64_t> integers() {
    return list([&] { return integer(); });
  }
  std::vector<double> reals() {
    return list([&] { return real(); });
  }

 private:
  int64_t size() {
    const int64_t found = integer();
    if (found < 0 || found > end_ - at_) throw Unable("the flat order is cut short");
    return found;
  }
  const uint8_t* take(int64_t count) {
    if (count > end_ - at_) throw Unable("the flat order is cut short");
    at_ += count;
    return at_ - count;
  }

  const uint8_t *at_, *end_;
};

Array read_array(Reader& in) {
  Array array;
  array.kind = in.one_of<Kind>();
  array.shape = in.integers();
  array.parts = in.list([&] {
    Part part;
    part.path = in.text(), part.offset = in.integer(), part.count = in.integer();
    return part;
  });
  array.limit = in.integer();
  return array;
}

Rule read_rule(Reader& in) {
  Rule rule;
  rule.kind = in.one_of<Optimizer>();
  rule.nesterov = in.integer(), rule.clips = in.integer();
  rule.momentum = in.real(), rule.beta1 = in.real(), rule.beta2 = in.real(), rule.eps = in.real();
  rule.clip_norm = in.real();
  rule.step = in.integer();
  rule.moves = in.list([&] {
    Move move;
    for (int64_t* place : {&move.value, &move.momentum, &move.mean, &move.square, &move.squares, &move.mask, &move.sum})
      *place = in.integer();
    move.lr = in.real(), move.decay = in.real();
    return move;
  });
  return rule;
}

Program read_program(Reader& in) {
  Program program;
  program.name = in.text(), program.path = in.text(), program.sha256 = in.text();
  program.batch = in.integer(), program.most = in.integer();
  program.inputs = in.list([&] {
    ProgramInput input;
    input.feed = in.one_of<Feed>();
    input.state = in.integer();
    input.kind = in.one_of<Kind>();
    input.shape = in.integers();
    input.value = in.real();
    input.name = in.text();
    return input;
  });
  program.outputs = in.list([&] {
    const auto result = in.one_of<Result>();
    return ProgramOutput{result, in.integer()};
  });
  program.rule = read_rule(in);
  return program;
}

}  // namespace

int64_t bytes_of(Kind kind) {
  switch (kind) {
    case Kind::Int64:
    case Kind::Float64:
      return 8;
    case Kind::Float32:
    case Kind::Int32:
      return 4;
    default:
      return 1;
  }
}

int64_t Tensor::elements() const {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  return count;
}

Order read_order(const std::vector<uint8_t>& data) {
  Reader in(data.data(), data.data() + data.size());
  if (in.text() != kMagic) throw Unable("the flat order is of another release");
  Order order;
  order.assignment = in.text();
  order.progress_s = in.real();
  order.threads = in.integer();
  order.state = in.list([&] {
    Tensor tensor;
    tensor.kind = in.one_of<Kind>(), tensor.shape = in.integers(), tensor.path = in.text(), tensor.offset = in.integer();
    return tensor;
  });
  order.x = read_array(in), order.y = read_array(in);
  order.input.kind = in.one_of<Kind>();
  order.input.shape = in.integers();
  order.input.channels_last = in.integer();
  order.input.scale = in.real();
  order.input.inner = in.integer();
  order.input.mean = in.reals(), order.input.std = in.reals();
  order.input.flips = in.integer(), order.input.padding = in.integer();
  order.classes = in.integer();
  order.batch = in.integer(), order.last_batch = in.integer();
  order.data_seed = in.text();
  order.epochs = in.integer(), order.steps = in.integer();
  order.programs = in.list([&] { return read_program(in); });
  order.turns = in.list([&] {
    Turn turn;
    turn.programs = in.integers(), turn.parts = in.integer(), turn.advances = in.integer();
    return turn;
  });
  order.scalars = in.list([&] {
    Scalar scalar;
    scalar.name = in.text(), scalar.metric = in.text(), scalar.counts = in.integer();
    return scalar;
  });
  order.held_out.is_asked = in.integer();
  order.held_out.share = in.real();
  order.held_out.seed = in.number<uint64_t>();
  order.held_out.least = in.integer(), order.held_out.program = in.integer(), order.held_out.batch = in.integer();
  order.sample.size = in.integer();
  order.sample.seed = in.number<uint64_t>();
  Features& features = order.features;
  features.program = in.integer(), features.elements = in.integer();
  features.rounded = in.one_of<Rounded>();
  features.most = in.integer();
  features.path = in.text(), features.key = in.text(), features.cipher = in.text();
  features.limit_bytes = in.integer();
  order.reports_labels = in.integer();
  order.files = in.list([&] {
    TensorFile file;
    file.path = in.text(), file.header = in.text(), file.tensors = in.integers();
    return file;
  });
  return order;
}

}  // namespace trainer
