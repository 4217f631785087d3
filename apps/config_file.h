// Reads the TOML file that a command names. It may be a pipe (/dev/stdin or <(...)), which can be read only once: the
// launcher then reads it, and every process that it starts uses the same text.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/config/table.h"

namespace trireme::apps {

/// Whether several processes can each read it: a file on disk.
bool can_be_read_again(const std::string& path);

/// For the launcher, at its start: ignores a copy from another process.
void forget_config();

/// For the launcher, before it reads the configuration: copies the text of a file that cannot be read again, for itself
/// and the processes that it starts. @throws ConfigError
void keep_config(const std::string& path);

/// Parses the file, or its copy if there is one. Messages name `path`. @throws ConfigError
config::Table read_config(const std::string& path);
/// Also applies the overrides. @throws ConfigError
config::Table read_config(const std::string& path, const std::vector<std::string>& set);
/// Whether a run wrote the file: it is in the run's folder, or in a checkpoint.
bool is_resolved(const std::string& path);
// The settings that the launcher needs. The worker refuses values of another type.

/// The number of compute threads per rank that the file sets; 0 if it sets none.
std::int64_t threads_of(const config::Table& root);
/// Whether train.on_oom is "retry".
bool retries_on_oom(const config::Table& root);

}  // namespace trireme::apps
