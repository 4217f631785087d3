// Files that appear whole or not at all.
#pragma once

#include <string>
#include <string_view>

namespace trireme::checkpoint {

/// Writes to a temporary name beside `path`, syncs, renames. @throws CheckpointError; nothing half-written is left.
void write_file(const std::string& path, std::string_view content);
std::string read_file(const std::string& path);
/// Renames a finished folder `from` to `to` and syncs the parent. @throws CheckpointError
void publish_folder(const std::string& from, const std::string& to);

}  // namespace trireme::checkpoint
