// One program of an artifact, loaded in ExecuTorch and run on buffers of the caller. C linkage for ctypes; no exception
// leaves, every failure is an ExecuTorch error number (0: none).
#include <executorch/extension/module/module.h>
#include <executorch/extension/tensor/tensor.h>
#include <executorch/extension/threadpool/threadpool_guard.h>
#include <executorch/runtime/kernel/operator_registry.h>
#include <executorch/runtime/platform/platform.h>

#include <cstdio>

#include <string>
#include <vector>

#include "threads.h"

using executorch::aten::ScalarType;
using executorch::aten::SizesType;
using executorch::extension::Module;
using executorch::extension::TensorPtr;
using executorch::runtime::Error;
using executorch::runtime::EValue;

namespace {

struct Program {
  explicit Program(const char* path) : module(path, Module::LoadMode::File) {}
  Module module;
  std::vector<EValue> outputs;
};

// The runtime's warnings and errors go to stderr as they are; what it says of its own start does not.
void emit_log(et_timestamp_t, et_pal_log_level_t level, const char* file, const char*, size_t line, const char* message,
              size_t length) {
  if (level == kError || level == kFatal)
    std::fprintf(stderr, "executorch %s:%zu: %.*s\n", file, line, static_cast<int>(length), message);
}
const bool logs_quietly =
    executorch::runtime::register_pal(executorch::runtime::PalImpl::create(emit_log, __FILE__));

constexpr ScalarType kTypes[] = {ScalarType::Float, ScalarType::Long, ScalarType::Bool, ScalarType::Int};

Program* of(void* handle) { return static_cast<Program*>(handle); }

}  // namespace

extern "C" {

// A handle, or null with *error set. The file must stay as it is only until the call returns.
void* apportion_open(const char* path, int* error) {
  try {
    auto* program = new Program(path);
    // A damaged file is an error here and not a crash later.
    Error loaded = program->module.load(executorch::runtime::Program::Verification::InternalConsistency);
    if (loaded == Error::Ok) loaded = program->module.load_method("forward");
    *error = static_cast<int>(loaded);
    if (loaded == Error::Ok) return program;
    delete program;
  } catch (...) {
    *error = static_cast<int>(Error::MemoryAllocationFailed);
  }
  return nullptr;
}

void apportion_close(void* handle) { delete of(handle); }

const char* apportion_error_name(int error) { return executorch::runtime::to_string(static_cast<Error>(error)); }

// Whether a kernel of this name ("namespace::name.overload") is registered.
int apportion_has_kernel(const char* name) {
  for (const auto& kernel : executorch::runtime::get_registered_kernels())
    if (std::string(kernel.name_) == name) return 1;
  return 0;
}

int64_t apportion_inputs(void* handle) {
  const auto meta = of(handle)->module.method_meta("forward");
  return meta.ok() ? static_cast<int64_t>(meta->num_inputs()) : -1;
}

// Bytes of the arena in which the runtime keeps every value between a step's first and last operation.
int64_t apportion_planned_bytes(void* handle) {
  const auto meta = of(handle)->module.method_meta("forward");
  int64_t total = 0;
  for (size_t i = 0; meta.ok() && i < meta->num_memory_planned_buffers(); ++i)
    total += meta->memory_planned_buffer_size(i).get();
  return total;
}

// Threads beside the caller's own, for apportion_run and the optimizers; null where there is no memory for them.
void* apportion_threads_open(int others) {
  try {
    return new apportion::Threads(others);
  } catch (...) {
    return nullptr;
  }
}

void apportion_threads_close(void* threads) { delete static_cast<apportion::Threads*>(threads); }

// Reads the inputs where they lie. sizes: all dimensions, one input after the other; kinds: their types, as kTypes has them.
// threads: null for the caller's own alone.
int apportion_run(void* handle, void* threads, int64_t count, void** data, const int32_t* kinds, const int32_t* ranks,
                  const int32_t* sizes) {
  // Kernels here share their work out over the session's threads; the wheel's own would take one per core.
  const executorch::extension::threadpool::NoThreadPoolGuard guard;
  const apportion::ThreadsInUse in_use(static_cast<apportion::Threads*>(threads));
  try {
    Program& program = *of(handle);
    std::vector<TensorPtr> tensors;
    std::vector<EValue> inputs;
    for (int64_t i = 0; i < count; ++i) {
      tensors.push_back(executorch::extension::from_blob(data[i], std::vector<SizesType>(sizes, sizes + ranks[i]),
                                                         kTypes[kinds[i]]));
      inputs.emplace_back(*tensors.back());
      sizes += ranks[i];
    }
    auto result = program.module.execute("forward", inputs);
    if (!result.ok()) return static_cast<int>(result.error());
    program.outputs = std::move(result.get());
    return 0;
  } catch (...) {
    return static_cast<int>(Error::MemoryAllocationFailed);
  }
}

// Output i of the last run, valid until the next one; null when there is no such tensor.
void* apportion_output(void* handle, int64_t i, int64_t* elements, int32_t* is_integer) {
  Program& program = *of(handle);
  if (i < 0 || i >= static_cast<int64_t>(program.outputs.size()) || !program.outputs[i].isTensor()) return nullptr;
  const auto tensor = program.outputs[i].toTensor();
  *elements = tensor.numel();
  *is_integer = tensor.scalar_type() == ScalarType::Long;
  return tensor.mutable_data_ptr();
}
}
