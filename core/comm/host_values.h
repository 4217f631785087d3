// Collectives of host values: texts and numbers. Objects travel as text, such as JSON. The values are CPU tensors on
// the way, whatever the world's device is; over NCCL, Group copies them through the GPU. Each call is collective over
// the group, waits for its result, and throws CommError when the operation fails.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/comm/group.h"

namespace trireme::comm {

/// Returns every rank's text, by rank, on the group's rank 0; nothing on the others. Two messages per rank; over NCCL
/// each is as long as the longest.
std::vector<std::string> gather_text(const Group& group, const std::string& text);

/// Returns every rank's text, by rank, on every rank. Each message is as long as the longest text.
std::vector<std::string> all_gather_text(const Group& group, const std::string& text);

/// Returns the text of the group's rank `root` on every rank.
std::string broadcast_text(const Group& group, const std::string& text, int root = 0);

/// Returns the reduction of all ranks' numbers on every rank.
std::int64_t reduce_value(const Group& group, std::int64_t value, ReduceOp op);
double reduce_value(const Group& group, double value, ReduceOp op);

/// The same for each of several numbers, in one operation. `values`: as many on every rank.
std::vector<std::int64_t> reduce_values(const Group& group, const std::vector<std::int64_t>& values, ReduceOp op);
std::vector<double> reduce_values(const Group& group, const std::vector<double>& values, ReduceOp op);

/// Whether it is true on at least one rank.
bool any_rank(const Group& group, bool mine);
/// Whether it is true on all ranks.
bool every_rank(const Group& group, bool mine);

/// Returns the number of the group's rank `root` on every rank.
std::int64_t broadcast_value(const Group& group, std::int64_t value, int root = 0);

/// Returns every rank's numbers, by rank, on every rank. `values`: as many on every rank.
std::vector<std::vector<std::int64_t>> all_gather_values(const Group& group, const std::vector<std::int64_t>& values);

}  // namespace trireme::comm
