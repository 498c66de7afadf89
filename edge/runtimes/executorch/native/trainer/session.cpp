#include "session.h"

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <new>

#include "errors.h"
#include "files.h"
#include "library.h"
#include "memory.h"

namespace trainer {

namespace {

constexpr int64_t kAlignment = 64;
const char* const kOutOfMemory = "out-of-memory";

// Element types as the session library numbers them.
int32_t native_kind(Kind kind) {
  switch (kind) {
    case Kind::Float32:
      return 0;
    case Kind::Int64:
      return 1;
    case Kind::Bool:
      return 2;
    case Kind::Int32:
      return 3;
    default:
      throw Unable("a program's input of a type that the runtime does not take");
  }
}

[[noreturn]] void fail(const std::string& what, int error) {
  const std::string name = apportion_error_name(error);
  if (name.find("Memory") != std::string::npos)
    throw Refused(kOutOfMemory, "executorch " + what + ": " + name + "; lower the batch size");
  throw Unable("executorch " + what + ": " + name);
}

}  // namespace

void* Loaded::open(const Program& program) {
  if (handle_ && path_ == program.path) return handle_;
  forget();  // its arena goes before the next one comes
  // The runtime's own checks let a few flipped bits in a hundred pass, and some of those end the process.
  if (InputFile(program.path).sha256() != program.sha256)
    throw Unable("the file of program '" + program.name + "' has another digest than the manifest says");
  int error = 0;
  handle_ = apportion_open(program.path.c_str(), &error);
  if (!handle_) fail("cannot load program '" + program.name + "'", error);
  path_ = program.path;
  release_startup_pages();
  return handle_;
}

void Loaded::forget() {
  if (handle_) apportion_close(handle_);
  handle_ = nullptr;
}

Threads::Threads(int64_t count) : handle_(count > 1 ? apportion_threads_open(static_cast<int>(count - 1)) : nullptr) {}

Threads::~Threads() {
  if (handle_) apportion_threads_close(handle_);
}

Session::Session(const Order& order, Loaded& loaded) : order_(order), loaded_(loaded), threads_(order.threads) {
  for (const Tensor& tensor : order.state) {
    const int64_t bytes = tensor.bytes(), room = (bytes + kAlignment) / kAlignment * kAlignment;
    state_.emplace_back(static_cast<uint8_t*>(std::aligned_alloc(kAlignment, room)));
    if (!state_.back()) throw std::bad_alloc();
    if (tensor.path.empty())
      std::memset(state_.back().get(), 0, bytes);
    else
      InputFile(tensor.path).read(state_.back().get(), tensor.offset, bytes);
  }
}

void Session::run(const Program& program, const Feeds& feeds, std::map<int64_t, double>& scalars) {
  if (program.path.empty()) {  // the rule alone, on the gradients of all micro-batches
    std::vector<float*> sums;
    for (const Move& move : program.rule.moves) sums.push_back(floats(move.sum));
    move(program.rule, sums);
    for (const Move& move : program.rule.moves) std::memset(floats(move.sum), 0, order_.state[move.sum].bytes());
    return;
  }
  void* handle = execute(program, feeds);
  std::vector<float*> gradients;
  for (size_t i = 0; i < program.outputs.size(); ++i) {
    const ProgramOutput& output = program.outputs[i];
    if (output.result == Result::Unused || output.result == Result::Features) continue;
    int64_t elements = 0;
    int32_t is_integer = 0;
    void* found = apportion_output(handle, static_cast<int64_t>(i), &elements, &is_integer);
    if (!found) throw Unable("program '" + program.name + "' gives no output " + std::to_string(i));
    if (output.result == Result::Scalar) {
      scalars[output.index] += is_integer ? static_cast<double>(*static_cast<int64_t*>(found)) : *static_cast<float*>(found);
      continue;
    }
    const Tensor* target = output.result == Result::Gradient ? &order_.state[program.rule.moves[gradients.size()].value]
                                                             : &order_.state[output.index];
    if (elements != target->elements()) throw Unable("an output of program '" + program.name + "' of another size");
    if (output.result == Result::Gradient) {
      gradients.push_back(static_cast<float*>(found));
    } else if (output.result == Result::Next) {
      std::memcpy(state_[output.index].get(), found, target->bytes());
    } else {
      float* sums = floats(output.index);
      for (int64_t e = 0; e < elements; ++e) sums[e] += static_cast<float*>(found)[e];
    }
  }
  if (!gradients.empty()) move(program.rule, gradients);
}

void Session::compute(const Program& program, const Feeds& feeds, int64_t elements, float* out) {
  void* handle = execute(program, feeds);
  for (size_t i = 0; i < program.outputs.size(); ++i) {
    if (program.outputs[i].result != Result::Features) continue;
    int64_t found = 0;
    int32_t is_integer = 0;
    const void* values = apportion_output(handle, static_cast<int64_t>(i), &found, &is_integer);
    if (!values || is_integer || found != feeds.examples * elements) throw Unable("features of another size");
    std::memcpy(out, values, found * sizeof(float));
    return;
  }
  throw Unable("program '" + program.name + "' gives no features");
}

void* Session::execute(const Program& program, const Feeds& feeds) {
  void* handle = loaded_.open(program);
  const auto count = static_cast<int64_t>(program.inputs.size());
  if (apportion_inputs(handle) != count) throw Unable("program '" + program.name + "' takes another number of inputs");
  if (feeds.examples < 1 || feeds.examples > program.most || (program.batch && feeds.examples != program.batch))
    throw Unable("program '" + program.name + "' takes no batch of " + std::to_string(feeds.examples));
  std::vector<void*> data;
  std::vector<int32_t> kinds, ranks, sizes;
  std::vector<std::unique_ptr<double>> fixed;  // room for one value of any type
  for (const ProgramInput& input : program.inputs) {
    const auto one_value = [&](double value) {
      fixed.push_back(std::make_unique<double>());
      const auto single = static_cast<float>(value);
      const auto whole = static_cast<int64_t>(value);
      if (input.kind == Kind::Float32)
        std::memcpy(fixed.back().get(), &single, sizeof single);
      else
        std::memcpy(fixed.back().get(), &whole, sizeof whole);
      data.push_back(fixed.back().get());
    };
    switch (input.feed) {
      case Feed::State:
        data.push_back(state_[input.state].get());
        break;
      case Feed::Input:
        data.push_back(const_cast<uint8_t*>(feeds.x));
        break;
      case Feed::Target:
        data.push_back(const_cast<int64_t*>(feeds.y));
        break;
      case Feed::Features:
        data.push_back(const_cast<float*>(feeds.features));
        break;
      case Feed::LabelMask:
        data.push_back(const_cast<float*>(feeds.label_mask));
        break;
      case Feed::Fixed:
        one_value(input.value);
        break;
      case Feed::Counted:  // a running mean of the steps so far
        one_value(1.0 / static_cast<double>(feeds.step + 1));
        break;
      case Feed::Draw: {
        const bool is_batched = !input.shape.empty() && input.shape[0] < 0;
        int64_t begin = is_batched ? feeds.draw_begin * bytes_of(input.kind) : 0;
        for (size_t i = 1; i < input.shape.size(); ++i) begin *= input.shape[i];
        data.push_back(const_cast<uint8_t*>(feeds.draws->at(input.name).data() + begin));
        break;
      }
    }
    const std::vector<int64_t>& shape = input.feed == Feed::State ? order_.state[input.state].shape : input.shape;
    kinds.push_back(native_kind(input.feed == Feed::State ? order_.state[input.state].kind : input.kind));
    ranks.push_back(static_cast<int32_t>(shape.size()));
    for (const int64_t size : shape) sizes.push_back(static_cast<int32_t>(size < 0 ? feeds.examples : size));
  }
  const int error = apportion_run(handle, threads_.handle(), count, data.data(), kinds.data(), ranks.data(), sizes.data());
  if (error) fail("failed in mid-step", error);
  return handle;
}

void Session::move(const Rule& rule, const std::vector<float*>& gradients) {
  const auto count = [&](const Move& move) { return order_.state[move.value].elements(); };
  const auto mask = [&](const Move& move) { return move.mask < 0 ? nullptr : state_[move.mask].get(); };
  for (size_t i = 0; i < gradients.size(); ++i)
    if (float* squares = floats(rule.moves[i].squares)) apportion_add_squares(squares, gradients[i], count(rule.moves[i]));
  if (rule.clips) {
    double squares = 0.0;
    for (size_t i = 0; i < gradients.size(); ++i)
      if (mask(rule.moves[i])) apportion_keep(gradients[i], mask(rule.moves[i]), count(rule.moves[i]));
    for (size_t i = 0; i < gradients.size(); ++i) squares += apportion_sum_of_squares(gradients[i], count(rule.moves[i]));
    const double factor = rule.clip_norm / (std::sqrt(squares) + 1e-6);
    if (factor < 1.0)
      for (size_t i = 0; i < gradients.size(); ++i)
        apportion_scale(gradients[i], static_cast<float>(factor), count(rule.moves[i]));
  }
  if (rule.step >= 0) *floats(rule.step) += 1.0f;
  for (size_t i = 0; i < gradients.size(); ++i) {
    const Move& at = rule.moves[i];
    const auto lr = static_cast<float>(at.lr), decay = static_cast<float>(at.decay);
    if (rule.kind == Optimizer::Sgd)
      apportion_sgd(threads_.handle(), floats(at.value), gradients[i], floats(at.momentum), mask(at), count(at), lr,
                    static_cast<float>(rule.momentum), decay, static_cast<int>(rule.nesterov));
    else
      apportion_adam(threads_.handle(), floats(at.value), gradients[i], floats(at.mean), floats(at.square), mask(at),
                     count(at), static_cast<double>(*floats(rule.step)), lr, static_cast<float>(rule.beta1),
                     static_cast<float>(rule.beta2), static_cast<float>(rule.eps), decay,
                     static_cast<int>(rule.kind == Optimizer::AdamW));
  }
}

}  // namespace trainer
