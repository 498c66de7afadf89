// What every kernel file needs: typed access to a call's arguments, checks that fail the call instead of the process,
// and registration. Kernels take and give contiguous tensors, float32 unless they say so; images are [N, H, W, C].
#pragma once

#include <executorch/runtime/kernel/kernel_includes.h>
#include <executorch/runtime/kernel/operator_registry.h>

#include <array>
#include <initializer_list>

namespace apportion {

using executorch::aten::SizesType;
using executorch::aten::Tensor;
using executorch::runtime::Error;
using executorch::runtime::EValue;
using executorch::runtime::KernelRuntimeContext;
using executorch::runtime::Span;
using Ints = executorch::aten::ArrayRef<int64_t>;

// The arguments of one call in the order of the operator's schema, outputs last.
class Call {
 public:
  Call(KernelRuntimeContext& context, Span<EValue*> values) : context_(context), values_(values) {}

  int64_t size(int i, int dim) const { return tensor(i).size(dim); }
  int64_t rank(int i) const { return tensor(i).dim(); }
  int64_t count(int i) const { return tensor(i).numel(); }
  const float* in(int i) const { return static_cast<const float*>(tensor(i).const_data_ptr()); }
  // Null for an argument that was left out.
  const float* in_or_null(int i) const { return values_[i]->isNone() ? nullptr : in(i); }
  float* out(int i) { return static_cast<float*>(values_[i]->toTensor().mutable_data_ptr()); }
  // Of activations that wait in float16.
  bool is_half(int i) const { return tensor(i).scalar_type() == executorch::aten::ScalarType::Half; }
  const uint16_t* halves(int i) const { return static_cast<const uint16_t*>(tensor(i).const_data_ptr()); }
  uint16_t* halves_out(int i) { return static_cast<uint16_t*>(values_[i]->toTensor().mutable_data_ptr()); }
  Ints ints(int i) const { return values_[i]->toIntList(); }
  int64_t integer(int i) const { return values_[i]->toInt(); }
  double number(int i) const { return values_[i]->toDouble(); }
  bool flag(int i) const { return values_[i]->toBool(); }

  // Gives an output its size of this run; false, and the call fails, when the memory plan has no room for it.
  bool resize(int i, std::initializer_list<int64_t> sizes) {
    std::array<SizesType, 8> dims{};
    size_t rank = 0;
    for (const int64_t size : sizes) dims[rank++] = static_cast<SizesType>(size);
    return resized(i, {dims.data(), rank});
  }
  bool resize_like(int i, int like) { return resized(i, tensor(like).sizes()); }
  bool resized(int i, executorch::aten::ArrayRef<SizesType> sizes) {
    const Error error = executorch::runtime::resize_tensor(values_[i]->toTensor(), sizes);
    if (error != Error::Ok) context_.fail(error);
    return error == Error::Ok;
  }
  bool require(bool condition) {
    if (!condition) context_.fail(Error::InvalidArgument);
    return condition;
  }
  const Tensor& tensor(int i) const { return values_[i]->toTensor(); }

 private:
  KernelRuntimeContext& context_;
  Span<EValue*> values_;
};

#define APPORTION_KERNEL(name, function)                                                             \
  static const ::apportion::Error registered_##function =                                            \
      ::executorch::runtime::register_kernel(::executorch::runtime::Kernel(                          \
          "apportion_native::" name ".out",                                                          \
          [](::apportion::KernelRuntimeContext& context, ::apportion::Span<::apportion::EValue*> values) { \
            ::apportion::Call call(context, values);                                                 \
            function(call);                                                                          \
          }))

}  // namespace apportion
