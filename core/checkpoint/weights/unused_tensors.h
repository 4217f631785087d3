// What the tensors of a file that a model does not use say about the file: weights of another depth, or adapters.
#pragma once

#include <set>
#include <string>
#include <vector>

namespace trireme::checkpoint {

/// The name with a '*' for each of its parts that is a number: the same for all layers of one kind.
std::string without_numbers(const std::string& name);

/// @throws CheckpointError when the unused tensors have further layers: names like those of the model but with other
/// numbers. `kinds`: the model's names in the file, without_numbers(), but not those of its head, which may be another.
void check_depth(const std::vector<std::string>& unused, const std::set<std::string>& kinds, const std::string& path);

/// @throws CheckpointError when the unused tensors are adapters, or the file must not have unused ones
void check_adapters(const std::vector<std::string>& unused, const std::string& path, bool are_adapters);

}  // namespace trireme::checkpoint
