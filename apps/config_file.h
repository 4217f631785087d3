// Reads the TOML file that a command names. It may be a pipe (/dev/stdin or <(...)), which can be read only once: the
// front then reads it, and every process that it starts uses the same text.
#pragma once

#include <string>
#include <vector>

#include "core/config/run_config.h"

namespace trireme::apps {

/// Whether several processes can each read it: a file on disk.
bool can_be_read_again(const std::string& path);

/// For the front, at its start: ignores a copy from another process.
void forget_config();

/// For the front, before it reads the configuration: copies the text of a file that cannot be read again, for itself
/// and the processes that it starts. @throws ConfigError
void keep_config(const std::string& path);

/// Parses the file, or its copy if there is one. Messages name `path`. @throws ConfigError
config::Table read_config(const std::string& path);
/// Applies the overrides to a file that a run wrote, which holds every key. When an override changes a key on which
/// others depend, those that do not apply to its new value are dropped: data.images after data.name=image_folder.
/// @throws ConfigError
void override_resolved(config::Table& root, const std::vector<std::string>& set);
/// Also applies the overrides and checks the result. @throws ConfigError
config::RunConfig load_config(const std::string& path, const std::vector<std::string>& set);

}  // namespace trireme::apps
