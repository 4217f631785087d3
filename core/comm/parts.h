// Parts: tensors of different sizes as equal parts of one tensor, each as long as the longest and padded with zeros.
// NCCL executes a list of uneven tensors as one broadcast, or one reduction, per rank, but equal parts as one
// operation. Private to core/comm.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace trireme::comm {

class Parts {
 public:
  /// Whether these tensors have different sizes, so that they need padding for NCCL.
  [[nodiscard]] static bool uneven(const std::vector<at::Tensor>& list) {
    return std::any_of(list.begin(), list.end(), [&](const auto& t) { return t.numel() != list.front().numel(); });
  }
  /// Makes one part for each tensor of `like`, with the device and dtype of `options`.
  Parts(const std::vector<at::Tensor>& like, const at::TensorOptions& options) {
    for (const auto& tensor : like) {
      shapes_.push_back(tensor.sizes().vec());
      longest_ = std::max(longest_, tensor.numel());
    }
    whole_ = at::zeros({static_cast<std::int64_t>(like.size()), longest_}, options);
  }

  [[nodiscard]] const at::Tensor& whole() const { return whole_; }  ///< [parts, longest]
  /// A separate padded part for `tensor`: its values if `reads`, zeros elsewhere.
  [[nodiscard]] at::Tensor single(const at::Tensor& tensor, bool reads) const {
    auto part = at::zeros({longest_}, whole_.options());
    if (reads) in_shape(part, tensor.sizes()).copy_(tensor.detach());
    return part;
  }
  /// A view of the r-th part in the shape of its tensor.
  [[nodiscard]] at::Tensor part(std::size_t r) const {
    return in_shape(whole_.select(0, static_cast<std::int64_t>(r)), shapes_[r]);
  }
  /// A view of the beginning of a part in this shape.
  [[nodiscard]] static at::Tensor in_shape(const at::Tensor& part, at::IntArrayRef shape) {
    return part.narrow(0, 0, c10::multiply_integers(shape)).view(shape);
  }

 private:
  std::vector<std::vector<std::int64_t>> shapes_;
  std::int64_t longest_ = 0;
  at::Tensor whole_;
};

}  // namespace trireme::comm
