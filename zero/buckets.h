// Buckets: a model's parameters, partitioned into runs in the order in which a backward pass finishes them (the last
// parameters first). A bucket is the unit of reduction, of update and of all-gather. Each rank owns one part of every
// bucket, so that communication starts with the first full bucket and all ranks share the work of each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/nn/parameters.h"
#include "zero/flat_layout.h"

namespace trireme::zero {

struct Bucket {
  std::vector<std::size_t> parameters;  ///< indices into the list of parameters that was planned
  FlatLayout layout;                    ///< item i is parameters[i]
  bool trained;                         ///< frozen parameters are in separate buckets, which have no gradient and no
                                        ///< update
  int gradient_group = 0;               ///< the backward pass that completes its gradients, see grad_sync.h
};

/// Partitions the floating-point parameters of `order` (indices), the trained ones before the frozen ones. A bucket is
/// closed when it holds `elements` or more, and before a parameter for which may_join(first of the bucket, parameter)
/// is false.
/// @pre elements >= 1, parts >= 1
std::vector<Bucket> cut_in_order(const std::vector<nn::Declaration>& parameters, const std::vector<std::size_t>& order,
                                 std::int64_t elements, int parts,
                                 const std::function<bool(std::size_t first, std::size_t next)>& may_join);

/// Partitions every floating-point parameter, the last first, the trained ones before the frozen ones. A bucket is
/// closed when it holds `elements` or more, so it may be larger than that. @pre elements >= 1, parts >= 1
std::vector<Bucket> plan_buckets(const std::vector<nn::Declaration>& parameters, std::int64_t elements, int parts);

/// The same, but no bucket mixes parameters of two gradient groups. `group_of` maps a parameter's index to its gradient
/// group; the groups are bucketed in ascending order.
std::vector<Bucket> plan_buckets(const std::vector<nn::Declaration>& parameters, std::int64_t elements, int parts,
                                 const std::function<int(std::size_t)>& group_of);

/// The bucket size when the user sets none: 12 Mi elements, but at most an eighth of the model, so that the buckets in
/// flight stay small compared with the state that partitioning saves. Never below 64 Ki, where latency would dominate a
/// message.
std::int64_t default_bucket_elements(std::int64_t model_elements);

/// The slice of a bucket's item that `rank` owns: a flat range of the parameter's local part, partitioned over the mesh
/// axes `axes`. May be empty.
shard::Placement placement_of(const nn::Declaration& parameter, const Bucket& bucket, std::size_t item, int rank,
                              const std::vector<std::string>& axes);

}  // namespace trireme::zero
