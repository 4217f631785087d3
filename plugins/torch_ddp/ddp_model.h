// DdpModel: a replicated model whose gradients c10d::Reducer sums over the ranks of a group.
#pragma once

#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/logger.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>
#include <vector>

#include "core/booster/replicated.h"
#include "plugins/torch_ddp/torch_ddp.h"

namespace trireme::plugins {

class DdpModel : public ReplicatedModel {
 public:
  DdpModel(std::shared_ptr<nn::Model> model, std::vector<nn::Parameter> parameters, const BoostOptions& options,
           const TorchDdpOptions& ddp, c10::Device device, const comm::Group& group);
  nn::Tensors forward(const data::Batch& batch) override;
  ScopeGuard no_sync() override;

 private:
  void make_reducer(const std::vector<at::Tensor>& parameters, const std::vector<std::string>& names);
  void watch_gradients();
  void when_backward_ends(nn::Tensors& outputs);
  void backward_ended();
  void check_zeroed();
  void check_complete() const;
  void compare_ranks() const;
  void learn_static_graph();

  TorchDdpOptions ddp_;
  comm::Group group_;
  std::vector<std::string> names_;   ///< names of the reduced parameters
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

}  // namespace trireme::plugins
