// Operators of our own, which files of this folder and of core/nn/cuda register with LibTorch's dispatcher as
// "trireme::NAME": each device has its kernel, and whoever watches operators sees them.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

namespace trireme::nn {

/// A handle to call it by. To be looked up once, since that takes a lock. @throws c10::Error for an unknown name, or
/// for another signature than its kernels have
template <class Signature>
c10::TypedOperatorHandle<Signature> own_operator(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

}  // namespace trireme::nn
