// DataParallelModel: replicas of a model in one process, each of which runs a part of every microbatch. The method is
// that of torch.nn.DataParallel: scatter the inputs, run the replicas at once, gather their outputs on the first one,
// where the loss is computed; in the backward pass the loss's gradient is scattered, and the replicas' gradients are
// added to the first one's.
//
// The first replica is the model: its weights are updated, and its buffers are saved. Results do not depend on timing:
// each replica has gradients of its own, which are added in the order of the replicas.
#pragma once

#include <memory>
#include <vector>

#include "core/booster/local_model.h"
#include "plugins/data_parallel/replica_threads.h"

namespace trireme::plugins {

class DataParallelModel : public LocalModel {
 public:
  /// `source`: after materialize_whole() returned `parameters`. Replicas on the CPU share the weights' memory; on other
  /// devices they have copies. @throws ConfigError when source.make is needed and not set
  DataParallelModel(const ModelSource& source, std::vector<nn::Parameter> parameters, const BoostOptions& options,
                    std::vector<c10::Device> devices);
  /// Outputs of several replicas have a graph that ends at the gathering: only the optimizer's backward() continues
  /// into the replicas.
  nn::Tensors forward(const data::Batch& batch) override;
  ScopeGuard no_sync() override;
  void train(bool on) override;
  void weights_changed() override { copied_ = false; }
  ModelReport report() const override;
  void watch_blocks(BlockWatch watch) override;
  void for_each_module(const std::function<void(nn::Model&)>& change) override;

  /// Continues the backward passes of gathered outputs in the replicas. Then adds the replicas' gradients to the first
  /// one's, unless a guard of no_sync() exists.
  void backward_replicas();
  /// @throws UsageError when a backward pass has ended at the gathered outputs
  void check_gradients_complete() const;
  void drop_gradients();

 private:
  struct ForwardPass;
  struct Gather;
  void add_replica(const ModelSource& source, const BoostOptions& options, c10::Device device);
  void copy_to_replicas(std::size_t count);
  [[nodiscard]] nn::Tensors gathered(std::vector<nn::Tensors> made) const;
  void reduce();

  std::vector<c10::Device> devices_;
  std::vector<std::unique_ptr<LocalModel>> others_;  ///< the replicas but the first
  std::vector<std::vector<at::Tensor>> buffers_;     ///< of each replica
  ReplicaThreads threads_;
  bool copied_ = false;  ///< the replicas have the current weights
  bool sync_ = true;
  /// The passes whose gradient has arrived at the gathered outputs. Shared with the graphs of outputs.
  std::shared_ptr<std::vector<std::shared_ptr<ForwardPass>>> arrived_;
};

/// Updates the first replica's weights with the sum of all replicas' gradients.
class DataParallelOptimizer : public LocalOptimizer {
 public:
  DataParallelOptimizer(DataParallelModel& model, const BoostOptions& options, comm::Mesh& mesh);
  void backward(const at::Tensor& loss_sum, const at::Tensor& global_weight) override;
  void zero_grad() override;

 protected:
  StepResult apply_gradients(double lr) override;

 private:
  DataParallelModel& model_;
};

}  // namespace trireme::plugins
