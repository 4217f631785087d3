// What a custom autograd function saves for its backward pass besides tensors: any object, shared by both passes.
// LibTorch itself saves only its own reference-counted types.
#pragma once

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include <memory>
#include <utility>

namespace trireme::nn {

namespace detail {
template <class T>
struct SavedState : torch::CustomClassHolder {
  explicit SavedState(std::shared_ptr<T> of) : object(std::move(of)) {}
  std::shared_ptr<T> object;
};
}  // namespace detail

/// In forward(). A second call replaces the first one's object.
template <class T>
void save_state(torch::autograd::AutogradContext* ctx, std::shared_ptr<T> object) {
  ctx->saved_data["state"] = c10::IValue::make_capsule(c10::make_intrusive<detail::SavedState<T>>(std::move(object)));
}

/// In backward(). @pre forward() saved an object of type T
template <class T>
std::shared_ptr<T> saved_state(torch::autograd::AutogradContext* ctx) {
  return c10::static_intrusive_pointer_cast<detail::SavedState<T>>(ctx->saved_data.at("state").toCapsule())->object;
}

}  // namespace trireme::nn
