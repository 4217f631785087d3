// FlatWeights: a model's weights in flat buffers, one a bucket. The parameters that layers hold are views into them, so
// an all-gather writes the layers' weights in place.
//
// Of each bucket a rank owns a part for good. The buffer itself stays (stages 1 and 2, where the part lies inside it),
// or has memory only between fetch() and release() (stage 3, where the part lies beside it).
// What is updated is the master of the part: the part itself where it has the precision and the place; else a copy in
// another dtype or in host memory.
// Memory for P elements over N ranks: P in the working dtype, or P/N and what is fetched; and P/N in the masters' dtype
// where these are copies.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/comm/group.h"
#include "core/nn/parameters.h"
#include "zero/buckets.h"
#include "zero/host_copies.h"

namespace trireme::nn {
class Block;
}

namespace trireme::zero {

struct FlatWeightsOptions {
  at::ScalarType working = at::kFloat;  ///< what layers compute in
  at::ScalarType master = at::kFloat;   ///< what is updated
  c10::Device device = at::kCPU;
  std::uint64_t seed = 0;           ///< of the draws by name
  std::vector<std::string> axes{};  ///< of the mesh, along which buckets are shared out; empty: the group's own
  bool pin = true;                  ///< host memory beside a GPU is pinned: copies to and from it need not wait
};

/// Where a bucket lives.
struct Residence {
  bool stays = true;            ///< its buffer keeps its memory
  bool offload_master = false;  ///< master (and so the optimizer's state) in host memory
  bool offload_part = false;    ///< the part too. @pre !stays && offload_master
  friend bool operator==(const Residence&, const Residence&) = default;
};

class FlatWeights {
 public:
  /// Draws each rank's slices by name and lets the model's parameters be views into the buffers, empty until publish().
  /// What a user's own module has made is taken from rank 0 of `everyone`. `shards`: the ranks that share out a bucket;
  /// `everyone`: all that must hold the same weights. `homes`: of each bucket. Collective over both groups.
  FlatWeights(nn::Model& model, std::vector<Bucket> buckets, std::vector<Residence> homes, const comm::Group& shards,
              const comm::Group& everyone, const FlatWeightsOptions& options);

  [[nodiscard]] const std::vector<Bucket>& buckets() const { return buckets_; }
  [[nodiscard]] const Residence& home(std::size_t bucket) const { return homes_[bucket]; }
  /// This rank's slice of every parameter, as a view into its master: bucket by bucket, empty ones included.
  [[nodiscard]] std::vector<nn::Parameter>& slices() { return slices_; }
  /// Those of one bucket: slices()[first_slice(bucket) + item].
  [[nodiscard]] std::size_t first_slice(std::size_t bucket) const { return first_[bucket]; }
  /// Of a tensor with one value for each element of this rank's part of a bucket: those of one item.
  [[nodiscard]] at::Tensor cut(const at::Tensor& part, std::size_t bucket, std::size_t item) const;
  /// The leaves that layers compute with, in the model's order.
  [[nodiscard]] const std::vector<nn::Declaration>& leaves() const { return leaves_; }
  /// The buckets that a block computes with.
  [[nodiscard]] const std::set<std::size_t>& buckets_of(const nn::Block& block) const { return of_block_.at(&block); }

  /// This rank's master has changed: the part follows, and a buffer that stays is gathered. Returns at once.
  void publish(std::size_t bucket);
  void publish_all();
  /// Gives a buffer its memory and gathers it, unless it has it. Returns at once.
  void fetch(std::size_t bucket);
  /// Gives a buffer memory full of zeros, for one who asks for shapes alone, unless it has its own. Returns whether it
  /// did; no other rank is asked.
  bool blank(std::size_t bucket);
  /// Frees the buffer's memory, unless it stays.
  void release(std::size_t bucket);
  void release_all();
  /// Whether a buffer has its memory; what those have that do not stay.
  [[nodiscard]] bool here(std::size_t bucket) const { return here_[bucket]; }
  [[nodiscard]] std::int64_t fetched_bytes() const { return fetched_; }
  /// Moves a bucket's part and master: slices() are other tensors then. @pre it does not stay, before and after
  void rehome(std::size_t bucket, const Residence& home);
  /// Until a bucket has arrived, or all that are on their way.
  void wait(std::size_t bucket);
  void wait();

  /// A line a bucket, for the log. `name`: what the user calls it.
  [[nodiscard]] std::vector<std::string> describe(std::string_view name) const;
  [[nodiscard]] c10::Device device() const { return options_.device; }
  [[nodiscard]] std::int64_t buffer_bytes(std::size_t bucket) const;
  [[nodiscard]] std::int64_t part_bytes(std::size_t bucket) const;
  /// Of its master in another dtype than the part has; 0: there is none.
  [[nodiscard]] std::int64_t wide_master_bytes(std::size_t bucket) const;
  [[nodiscard]] std::int64_t weight_bytes() const;  ///< of buffers that stay, and of parts beside the others
  [[nodiscard]] std::int64_t master_bytes(std::size_t bucket) const;  ///< of a master that is a copy; else 0
  /// The most that fetched buffers have held at once.
  [[nodiscard]] std::int64_t peak_fetched_bytes() const { return peak_fetched_; }

 private:
  void make_buffers();
  [[nodiscard]] at::Tensor make_part(std::size_t bucket) const;
  [[nodiscard]] at::Tensor make_master(std::size_t bucket) const;
  [[nodiscard]] at::Tensor on_host(std::int64_t size, at::ScalarType dtype) const;
  void fill_masters(const std::vector<nn::Declaration>& parameters, const comm::Group& everyone);
  void install(nn::Model& model);
  void map_blocks(nn::Model& model);
  void gather(std::size_t bucket);
  void take_memory(std::size_t bucket);

  std::vector<Bucket> buckets_;
  std::vector<Residence> homes_;
  comm::Group shards_;
  FlatWeightsOptions options_;
  std::vector<at::Tensor> flat_, parts_, masters_;  ///< of each bucket
  std::vector<bool> here_;                          ///< the buffer has memory
  std::vector<nn::Parameter> slices_;
  std::vector<std::size_t> first_;
  std::vector<nn::Declaration> leaves_;
  std::vector<comm::Work> arriving_;  ///< of each bucket
  DeviceCopies uploads_;              ///< of parts in host memory
  std::unordered_map<const nn::Block*, std::set<std::size_t>> of_block_;
  std::int64_t fetched_ = 0, peak_fetched_ = 0;  ///< bytes
};

}  // namespace trireme::zero
