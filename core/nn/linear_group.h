// LinearGroup: several Linear layers of one input, such as query, key and value, or the two halves of a gated MLP.
// Tensor parallelism shards them together: the input is gathered once, and its gradients are summed once.
#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "core/nn/linear.h"

namespace trireme::nn {

class LinearGroup {
 public:
  explicit LinearGroup(std::vector<std::shared_ptr<Linear>> parts) : parts_(std::move(parts)) {}
  [[nodiscard]] const std::vector<std::shared_ptr<Linear>>& parts() const { return parts_; }

  /// x [B, ..., in] -> the output of each part. `leading`: unless it is 0, the first part reads only so many leading
  /// tokens of x [B, N, in].
  std::vector<at::Tensor> forward(const at::Tensor& x, const Context& context, std::int64_t leading = 0) const {
    if (replacement_) return replacement_(x, context, leading);
    std::vector<at::Tensor> out;
    for (const auto& part : parts_)
      out.push_back(part->forward(out.empty() && leading != 0 ? x.narrow(1, 0, leading) : x, context));
    return out;
  }
  using Forward =
      std::function<std::vector<at::Tensor>(const at::Tensor& x, const Context& context, std::int64_t leading)>;
  /// For a policy that computes the products itself.
  void set_forward(Forward instead) { replacement_ = std::move(instead); }

 private:
  std::vector<std::shared_ptr<Linear>> parts_;
  Forward replacement_;
};

}  // namespace trireme::nn
