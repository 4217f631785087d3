// Parts: tensors of different sizes as equal parts of one, each as long as the longest and filled up with zeros. NCCL
// carries out a list of uneven tensors as one broadcast, or one reduction, for each rank; of equal parts it makes one
// operation. Private to core/comm.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace trireme::comm {

class Parts {
 public:
  /// Whether these tensors have to be made equal for NCCL.
  [[nodiscard]] static bool uneven(const std::vector<at::Tensor>& list) {
    return std::any_of(list.begin(), list.end(), [&](const auto& t) { return t.numel() != list.front().numel(); });
  }
  /// One part for each of the tensors of `like`, on `options`' device and of its dtype.
  Parts(const std::vector<at::Tensor>& like, const at::TensorOptions& options) {
    for (const auto& tensor : like) {
      shapes_.push_back(tensor.sizes().vec());
      longest_ = std::max(longest_, tensor.numel());
    }
    whole_ = at::zeros({static_cast<std::int64_t>(like.size()), longest_}, options);
  }

  [[nodiscard]] const at::Tensor& whole() const { return whole_; }  ///< [parts, longest]
  /// A part of its own for `tensor`: what it holds where `reads`, zeros behind and elsewhere.
  [[nodiscard]] at::Tensor single(const at::Tensor& tensor, bool reads) const {
    auto part = at::zeros({longest_}, whole_.options());
    if (reads) in_shape(part, tensor.sizes()).copy_(tensor.detach());
    return part;
  }
  /// The part of the r-th tensor in its shape: a view.
  [[nodiscard]] at::Tensor part(std::size_t r) const {
    return in_shape(whole_.select(0, static_cast<std::int64_t>(r)), shapes_[r]);
  }
  /// The beginning of a part, as a tensor of this shape: a view.
  [[nodiscard]] static at::Tensor in_shape(const at::Tensor& part, at::IntArrayRef shape) {
    std::int64_t count = 1;
    for (const auto size : shape) count *= size;
    return part.narrow(0, 0, count).view(shape);
  }

 private:
  std::vector<std::vector<std::int64_t>> shapes_;
  std::int64_t longest_ = 0;
  at::Tensor whole_;
};

}  // namespace trireme::comm
