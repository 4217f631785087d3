// Tensors by name, in the order in which they were added: the inputs and the targets of a sample or a batch.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace trireme::nn {

class NamedTensors {
 public:
  using Item = std::pair<std::string, at::Tensor>;
  NamedTensors() = default;
  NamedTensors(std::initializer_list<Item> items) : items_(items) {}

  /// @throws UsageError that lists the names, when there is no such tensor
  [[nodiscard]] const at::Tensor& operator[](std::string_view name) const;
  const at::Tensor& operator[](std::nullptr_t) const = delete;  // [0] would be a null string
  /// Null when there is no such tensor.
  [[nodiscard]] const at::Tensor* find(std::string_view name) const;
  /// Adds the tensor, or replaces the one of this name.
  void set(std::string_view name, at::Tensor value);

  /// The first tensor. @throws UsageError when there is none
  [[nodiscard]] const at::Tensor& front() const;
  [[nodiscard]] bool empty() const { return items_.empty(); }
  [[nodiscard]] std::size_t size() const { return items_.size(); }
  [[nodiscard]] std::vector<std::string> names() const;
  [[nodiscard]] auto begin() const { return items_.begin(); }
  [[nodiscard]] auto end() const { return items_.end(); }
  [[nodiscard]] auto begin() { return items_.begin(); }
  [[nodiscard]] auto end() { return items_.end(); }

 private:
  std::vector<Item> items_;  ///< a handful, so a search is faster than a map
};

}  // namespace trireme::nn
