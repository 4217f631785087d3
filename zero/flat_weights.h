// FlatWeights: a model's weights in flat buffers, one a bucket. The parameters that layers hold are views into them, so
// an all-gather writes the layers' weights in place.
//
// A rank updates its own part of each bucket, the master: the part itself where the weights have the precision to be
// updated and stay on the device; else a copy beside it, in another dtype or in host memory (offload).
// Memory for P elements over N ranks: P in the working dtype, and P/N in the masters' where these are copies.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/comm/group.h"
#include "core/nn/parameters.h"
#include "zero/buckets.h"

namespace trireme::nn {
class Block;
}

namespace trireme::zero {

struct FlatWeightsOptions {
  at::ScalarType working = at::kFloat;  ///< what layers compute in
  at::ScalarType master = at::kFloat;   ///< what is updated
  c10::Device device = at::kCPU;
  bool offload = false;    ///< masters in host memory, pinned where the device is a GPU
  std::uint64_t seed = 0;  ///< of the draws by name
};

class FlatWeights {
 public:
  /// Draws each rank's slices by name and lets the model's parameters be views into the buffers, empty until publish().
  /// What a user's own module has made is taken from rank 0 of `replicas`. `shards`: the ranks that share out a bucket;
  /// `everyone`: all that must hold the same weights. Collective over both.
  FlatWeights(nn::Model& model, std::vector<Bucket> buckets, const comm::Group& shards, const comm::Group& everyone,
              const FlatWeightsOptions& options);

  [[nodiscard]] const std::vector<Bucket>& buckets() const { return buckets_; }
  /// This rank's slice of every parameter, as a view into its master: bucket by bucket, empty ones included.
  [[nodiscard]] std::vector<nn::Parameter>& slices() { return slices_; }
  /// Those of one bucket: slices()[first_slice(bucket) + item].
  [[nodiscard]] std::size_t first_slice(std::size_t bucket) const { return first_[bucket]; }
  /// Of a tensor with one value for each element of this rank's part of a bucket: those of one item.
  [[nodiscard]] at::Tensor cut(const at::Tensor& part, std::size_t bucket, std::size_t item) const;
  /// The leaves that layers compute with, in the model's order.
  [[nodiscard]] const std::vector<nn::Declaration>& leaves() const { return leaves_; }

  /// Sends this rank's master of a bucket to all shards, into the layers' weights. Returns at once.
  void publish(std::size_t bucket);
  void publish_all();
  /// Until all that was published has arrived, or what a block needs of it.
  void wait();
  void wait(const nn::Block& block);

  /// A line a bucket, for the log.
  [[nodiscard]] std::vector<std::string> describe() const;
  [[nodiscard]] std::int64_t weight_bytes() const;  ///< of the flat buffers
  [[nodiscard]] std::int64_t master_bytes() const;  ///< of masters that are copies

 private:
  void fill_masters(const std::vector<nn::Declaration>& parameters, const comm::Group& everyone);
  void map_blocks(nn::Model& model);

  std::vector<Bucket> buckets_;
  comm::Group shards_;
  FlatWeightsOptions options_;
  std::vector<at::Tensor> flat_, masters_;
  std::vector<nn::Parameter> slices_;
  std::vector<std::size_t> first_;
  std::vector<nn::Declaration> leaves_;
  std::vector<comm::Work> arriving_;                                      ///< of each bucket
  std::unordered_map<const nn::Block*, std::set<std::size_t>> of_block_;  ///< the buckets a block needs
  bool pending_ = false;
};

}  // namespace trireme::zero
