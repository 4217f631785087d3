// What a custom autograd function saves for its backward pass besides tensors: any object, shared by both passes.
// LibTorch itself saves only its own reference-counted types.
#pragma once

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include <memory>
#include <utility>

#include "core/base/error.h"

namespace trireme::nn {

namespace detail {
template <class T>
struct SavedState : torch::CustomClassHolder {
  explicit SavedState(std::shared_ptr<T> of) : object(std::move(of)) {}
  std::shared_ptr<T> object;
};
}  // namespace detail

/// To be called in forward(); a second call replaces the first one's object.
template <class T>
void save_state(torch::autograd::AutogradContext* ctx, std::shared_ptr<T> object) {
  ctx->saved_data["state"] = c10::IValue::make_capsule(c10::make_intrusive<detail::SavedState<T>>(std::move(object)));
}

/// To be called in backward(). @pre forward() saved an object of type T
template <class T>
std::shared_ptr<T> saved_state(torch::autograd::AutogradContext* ctx) {
  const auto capsule = ctx->saved_data.at("state").toCapsule();
  const auto* state = dynamic_cast<const detail::SavedState<T>*>(capsule.get());
  TRIREME_CHECK(state != nullptr, "the forward pass saved another type of state");
  return state->object;
}

}  // namespace trireme::nn
