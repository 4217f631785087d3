// GradientReducer: reduces the gradients of a replicated model over a group of ranks, with PyTorch's DDP engine
// (c10d::Reducer). Gradients are packed into buckets; a bucket is all-reduced as soon as its gradients are complete,
// while the backward pass continues.
//
//   reducer.prepare_forward();  outputs = forward pass;  reducer.prepare_backward(outputs);  backward pass
//
// Buckets are never rebuilt, because the order of summation must be the same after a resume (contract C8).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/booster/boosted.h"
#include "core/comm/group.h"

namespace c10d {
class Logger;
class Reducer;
}  // namespace c10d

namespace trireme {

struct ReducerOptions {
  std::int64_t bucket_cap_mb = 25;      ///< size of a bucket in MiB
  bool find_unused_parameters = false;  ///< each backward pass may leave out parameters; costs a traversal of its graph
  bool gradient_as_bucket_view = false;  ///< gradients are views into the buckets, which saves a copy of all of them
  bool static_graph = false;             ///< every step uses the same parameters, which the first one finds
};

/// The hooks on outputs and parameters find the reducer by a weak pointer, so it must be made with std::make_shared.
class GradientReducer : public std::enable_shared_from_this<GradientReducer> {
 public:
  struct Use {
    comm::ReduceOp op = comm::ReduceOp::avg;  ///< avg or sum
    std::string name;                         ///< of what the user calls, for errors: "plugin.torch_ddp"
    std::string option_prefix{};              ///< of the options, for errors: "plugin.torch_ddp."
    std::string none_left{};                  ///< the error when no parameter requires a gradient
    /// If set, called after each reduction, when the gradients are final.
    std::function<void(const GradientReducer&)> on_reduced{};
  };
  /// Of the parameters, those that require a gradient are reduced. @pre the group has more than one rank
  /// @throws ConfigError when none does
  GradientReducer(const std::vector<nn::Parameter>& parameters, const ReducerOptions& options, comm::Group group,
                  Use use);
  GradientReducer(const GradientReducer&) = delete;

  /// Called before and after each forward pass in training. Without a guard of no_sync(), the next backward pass from
  /// `outputs` reduces. @throws ConfigError when gradients are already reduced sums, which would be summed again
  void prepare_forward();
  void prepare_backward(const nn::Tensors& outputs);
  /// While the guard exists, passes add to the local gradients without a reduction.
  ScopeGuard no_sync();

  [[nodiscard]] const std::vector<std::string>& names() const { return names_; }
  [[nodiscard]] const std::vector<at::Tensor>& parameters() const { return reduced_; }
  [[nodiscard]] const comm::Group& group() const { return group_; }

 private:
  void make_reducer(const std::vector<at::Tensor>& parameters, const std::vector<std::string>& names);
  void watch_gradients();
  void check_zeroed();
  void check_complete() const;
  void backward_ended();
  void learn_static_graph();

  ReducerOptions options_;
  comm::Group group_;
  Use use_;
  std::vector<std::string> names_;   ///< of the reduced parameters
  std::vector<at::Tensor> reduced_;  ///< parameters that require a gradient
  /// Which of them had a gradient since the last forward pass with reduction. Shared with hooks, which live as long as
  /// the parameters.
  std::shared_ptr<std::vector<bool>> reached_;
  std::vector<bool> expected_;  ///< which of them the reducer waits for: all, except those that static_graph found
                                ///< unused
  bool sync_ = true;
  bool reduced_already_ = false;            ///< a backward pass has reduced gradients since the last forward pass
  std::shared_ptr<c10d::Reducer> reducer_;  ///< static_graph: null in the first step, then over the parameters that it
                                            ///< used
  std::shared_ptr<c10d::Logger> logger_;    ///< the reducer calls it when the set of unused parameters changes
};

}  // namespace trireme
