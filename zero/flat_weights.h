// FlatWeights: a model's weights in flat buffers, one for each bucket. The parameters that layers hold are views into
// the buffers, so that an all-gather writes the layers' weights in place.
//
// Each rank owns a part of each bucket. A replicated buffer always has memory (stages 1 and 2), and the part is a view
// into it. Any other buffer has memory only between all_gather() and release() (stage 3), and the part is a tensor of
// its own. The optimizer updates the master of the part: the part itself if it has the right dtype and device, else a
// copy in another dtype or in host memory.
//
// Memory for P elements over N ranks: P in the working dtype, or P/N plus the gathered buffers; and P/N in the dtype of
// the masters where these are copies.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/nn/parameters.h"
#include "zero/buckets.h"
#include "zero/host_copies.h"

namespace trireme::nn {
class Block;
}

namespace trireme::zero {

struct FlatWeightsOptions {
  at::ScalarType working = at::kFloat;  ///< dtype of the layers' weights
  at::ScalarType master = at::kFloat;   ///< dtype that the optimizer updates
  /// Whether frozen weights have masters too: their values are then not rounded in checkpoints and exports.
  bool frozen_masters = true;
  c10::Device device = at::kCPU;
  std::uint64_t seed = 0;  ///< of the initial values
  bool pin = true;         ///< use pinned host memory beside a GPU, so that copies are asynchronous
};

/// Where the data of a bucket is stored.
struct Residency {
  bool replicated = true;       ///< its buffer always has memory
  bool offload_master = false;  ///< the master, and with it the optimizer state, is in host memory
  bool offload_part = false;    ///< the part is in host memory too. @pre !replicated && offload_master
  friend bool operator==(const Residency&, const Residency&) = default;
};

class FlatWeights {
 public:
  /// Initialises each rank's slices by name, and makes the model's parameters views into the buffers, which are filled
  /// by copy_all_from_masters(). Values of a user's own modules are taken from the first of all ranks that must hold
  /// the same (ReducingRanks::everyone). `residencies`: one for each bucket. Collective over the buckets' ranks.
  FlatWeights(nn::Model& model, std::vector<Bucket> buckets, std::vector<Residency> residencies,
              const FlatWeightsOptions& options);

  [[nodiscard]] const std::vector<Bucket>& buckets() const { return buckets_; }
  [[nodiscard]] const Residency& residency(std::size_t bucket) const { return residencies_[bucket]; }
  /// This rank's slice of every parameter as a view into its master, bucket by bucket; slices can be empty.
  [[nodiscard]] std::vector<nn::Parameter>& slices() { return slices_; }
  /// The slice of a bucket's item is slices()[first_slice(bucket) + item].
  [[nodiscard]] std::size_t first_slice(std::size_t bucket) const { return first_[bucket]; }
  /// Given a tensor with one value for each element of this rank's part of a bucket, returns the values of one item.
  [[nodiscard]] at::Tensor cut(const at::Tensor& part, std::size_t bucket, std::size_t item) const;
  /// The layers' parameters, in the model's order.
  [[nodiscard]] const std::vector<nn::Declaration>& leaves() const { return leaves_; }
  /// The buckets that hold a block's weights.
  [[nodiscard]] const std::set<std::size_t>& buckets_of(const nn::Block& block) const { return of_block_.at(&block); }

  /// Copies this rank's master to its part, and starts an all-gather into a replicated buffer. Does not wait.
  void copy_from_master(std::size_t bucket);
  void copy_all_from_masters();
  /// Allocates a buffer that has no memory, and starts an all-gather into it. Does not wait.
  void all_gather(std::size_t bucket);
  /// Allocates a buffer that has no memory and fills it with zeros, for a caller that needs only shapes. Returns
  /// whether it had none. Not collective.
  bool zeros(std::size_t bucket);
  /// Frees the buffer's memory, unless it is replicated.
  void release(std::size_t bucket);
  void release_all();
  /// Whether a bucket's buffer has memory.
  [[nodiscard]] bool is_materialized(std::size_t bucket) const { return materialized_[bucket]; }
  /// Bytes of the buffers that have memory and are not replicated.
  [[nodiscard]] std::int64_t gathered_bytes() const { return gathered_; }
  /// Moves a bucket's part and master; slices() then returns other tensors. @pre not replicated, before and after
  void move_to(std::size_t bucket, const Residency& residency);
  /// Waits for the all-gather of one bucket, or of all.
  void wait(std::size_t bucket);
  void wait();

  /// One line for each bucket, for the log. `name`: the user's word for a bucket.
  [[nodiscard]] std::vector<std::string> describe(std::string_view name) const;
  [[nodiscard]] c10::Device device() const { return options_.device; }
  [[nodiscard]] std::int64_t buffer_bytes(std::size_t bucket) const;
  [[nodiscard]] std::int64_t part_bytes(std::size_t bucket) const;
  /// Bytes of a master whose dtype differs from that of the part, else 0.
  [[nodiscard]] std::int64_t wide_master_bytes(std::size_t bucket) const;
  [[nodiscard]] std::int64_t weight_bytes() const;  ///< of replicated buffers, and of the parts of the others
  [[nodiscard]] std::int64_t master_bytes(std::size_t bucket) const;  ///< of a master that is a copy, else 0
  /// The maximum of gathered_bytes() so far.
  [[nodiscard]] std::int64_t peak_gathered_bytes() const { return peak_gathered_; }

 private:
  void make_buffers();
  [[nodiscard]] at::Tensor make_part(std::size_t bucket) const;
  /// Whether the bucket's weights have a master, which the part itself may be.
  [[nodiscard]] bool has_master(std::size_t bucket) const {
    return buckets_[bucket].trained || options_.frozen_masters;
  }
  /// The part itself, if its weights need no master of another dtype or device.
  [[nodiscard]] at::Tensor make_master(std::size_t bucket) const;
  [[nodiscard]] at::Tensor on_host(std::int64_t size, at::ScalarType dtype) const;
  void fill_masters(const std::vector<nn::Declaration>& parameters);
  [[nodiscard]] const comm::Group& shards(std::size_t bucket) const { return buckets_[bucket].ranks->shards; }
  void install(nn::Model& model);
  void map_blocks(nn::Model& model);
  void gather(std::size_t bucket);
  /// The bucket's master; where it is in host memory and the part is not, in the part's dtype.
  at::Tensor converted(std::size_t bucket);
  void take_memory(std::size_t bucket);

  std::vector<Bucket> buckets_;
  std::vector<Residency> residencies_;
  FlatWeightsOptions options_;
  std::vector<at::Tensor> flat_, parts_, masters_;  ///< of each bucket
  std::vector<bool> materialized_;                  ///< the buffer has memory
  std::vector<nn::Parameter> slices_;
  std::vector<std::size_t> first_;
  std::vector<nn::Declaration> leaves_;
  std::vector<comm::Work> gathers_;    ///< of each bucket
  std::vector<at::Tensor> converted_;  ///< of each bucket: host memory; undefined until it is used
  DeviceCopies uploads_;               ///< of parts in host memory
  std::unordered_map<const nn::Block*, std::set<std::size_t>> of_block_;
  std::int64_t gathered_ = 0, peak_gathered_ = 0;  ///< bytes
};

}  // namespace trireme::zero
