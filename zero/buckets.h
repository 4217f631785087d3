// Buckets: a model's parameters, partitioned into runs in the order in which a backward pass finishes them (the last
// parameters first). A bucket is the unit of reduction, of update and of all-gather. Each rank owns one part of every
// bucket, so that communication starts with the first full bucket and all ranks share the work of each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "core/nn/parameters.h"
#include "zero/flat_layout.h"
#include "zero/reducing_ranks.h"

namespace trireme::zero {

struct Bucket {
  std::vector<std::size_t> parameters;  ///< indices into the list of parameters that was planned
  FlatLayout layout;                    ///< item i is parameters[i]
  bool trained;                         ///< frozen parameters are in separate buckets, which have no gradient and no
                                        ///< update
  int gradient_group = 0;               ///< the backward pass that completes its gradients, see grad_sync.h
  std::shared_ptr<const ReducingRanks> ranks{};  ///< that reduce and partition it; null in a plan without ranks
};

/// How parameters are distributed over buckets.
struct BucketRules {
  std::int64_t elements = 1;  ///< a bucket is closed when it holds this many or more, so it may be larger
  int parts = 1;              ///< of each bucket, in a plan without ranks
  /// The ranks of each parameter; null: a plan without ranks.
  const ReductionPlan* ranks = nullptr;
  /// The gradient group of a parameter, by its index; empty: all are in one. The groups of the given order must be in
  /// ascending order.
  std::function<int(std::size_t)> gradient_group{};

  [[nodiscard]] int group_of(std::size_t parameter) const { return gradient_group ? gradient_group(parameter) : 0; }
};

/// Partitions every floating-point parameter, by gradient group, the last first, the trained ones before the frozen
/// ones. A bucket has parameters of one gradient group that are reduced by the same ranks. @pre rules.elements >= 1
std::vector<Bucket> plan_buckets(const std::vector<nn::Declaration>& parameters, const BucketRules& rules);

// Chunks are the buckets of stage 3. A chunk never spans two blocks, so that a block is run with exactly the chunks it
// needs; a block may have several.

/// Partitions the parameters into chunks, in the order in which a backward pass finishes them: those of the last block
/// first, the trained ones before the frozen ones. A parameter that several blocks use is in a chunk of the first of
/// them, where its gradient is complete; parameters of no block are at the end. A chunk is closed when it holds
/// rules.elements or more. Parameters are indices into the model's list, nn::declarations(). @pre rules.elements >= 1
std::vector<Bucket> plan_chunks(nn::Model& model, const BucketRules& rules);

/// The range of a search for the chunk size, in elements.
struct ChunkSearch {
  std::int64_t smallest = 32 << 20, range = 32 << 20;
  std::int64_t step = 1024;
};

/// Returns the smallest of the sizes smallest, smallest + step, ... smallest + range whose chunks have the least
/// padding. rules.elements is ignored.
std::int64_t search_chunk_elements(nn::Model& model, const ChunkSearch& search, BucketRules rules);

/// The bucket size when the user sets none: 12 Mi elements, but at most an eighth of the model, so that the buckets in
/// flight stay small compared with the state that partitioning saves. Never below 64 Ki, where latency would dominate a
/// message.
std::int64_t default_bucket_elements(std::int64_t model_elements);

/// The slice of a bucket's item that this rank owns: a flat range of the parameter's local part. May be empty.
/// @pre the bucket has ranks
shard::Placement placement_of(const nn::Declaration& parameter, const Bucket& bucket, std::size_t item);

}  // namespace trireme::zero
