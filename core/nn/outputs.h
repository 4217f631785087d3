// The tensors in what a user's own forward function returns: a tensor, a list of them, or a tuple or pair of these.
#pragma once

#include <tuple>
#include <utility>

#include "core/nn/context.h"

namespace trireme::nn {

inline Tensors tensors_in(at::Tensor output) { return {std::move(output)}; }
inline Tensors tensors_in(Tensors outputs) { return outputs; }
template <class... Parts>
Tensors tensors_in(const std::tuple<Parts...>& outputs) {
  Tensors all;
  const auto add = [&all](const auto& part) {
    for (auto& tensor : tensors_in(part)) all.push_back(std::move(tensor));
  };
  std::apply([&](const auto&... parts) { (add(parts), ...); }, outputs);
  return all;
}
template <class First, class Second>
Tensors tensors_in(const std::pair<First, Second>& outputs) {
  return tensors_in(std::tie(outputs.first, outputs.second));
}

}  // namespace trireme::nn
