// Buckets: a model's parameters cut into runs, in the order in which a backward pass finishes them (the last parameters
// first). A bucket is the unit of reduction, of update and of gather: each rank owns one part of every bucket, so that
// work starts with the first full bucket and every rank has its share of each.
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
  std::vector<std::size_t> parameters;  ///< indices into the list that was planned
  FlatLayout layout;                    ///< item i is parameters[i]
  bool trained;                         ///< frozen parameters have buckets of their own: no gradient, no update
  int gradient_group = 0;               ///< which backward pass it belongs to, see grad_sync.h
};

/// The floating-point parameters of `order` (indices), the trained ones before the frozen ones. A bucket is closed when
/// it holds `elements` or more, and before a parameter that may not join its first one. @pre elements >= 1, parts >= 1
std::vector<Bucket> cut_in_order(const std::vector<nn::Declaration>& parameters, const std::vector<std::size_t>& order,
                                 std::int64_t elements, int parts,
                                 const std::function<bool(std::size_t first, std::size_t next)>& may_join);

/// Every floating-point parameter, last first, the trained ones before the frozen ones. A bucket is closed when it
/// holds `elements` or more; so one that is larger has a bucket of its own. @pre elements >= 1, parts >= 1
std::vector<Bucket> plan_buckets(const std::vector<nn::Declaration>& parameters, std::int64_t elements, int parts);

/// The same, and no bucket has parameters of two sections. `section_of`: of a parameter, by its number; sections are
/// bucketed in their order.
std::vector<Bucket> plan_buckets(const std::vector<nn::Declaration>& parameters, std::int64_t elements, int parts,
                                 const std::function<int(std::size_t)>& group_of);

/// Bucket size when the user named none: 12 Mi elements, at most an eighth of the model, so that buckets on their way
/// stay small beside the state that partitioning saves. Never below 64 Ki: a message must be worth its start.
std::int64_t default_bucket_elements(std::int64_t model_elements);

/// The slice of a bucket's item that `rank` owns: of what the ranks along mesh axes `axes` have of the parameter, a
/// flat range. May be empty.
shard::Placement placement_of(const nn::Declaration& parameter, const Bucket& bucket, std::size_t item, int rank,
                              const std::vector<std::string>& axes);

}  // namespace trireme::zero
