// The TOML file that a command names, also one that can be read but once: a pipe, as /dev/stdin or <(...) may be. The
// front reads it, and every process that it starts takes the same text.
#pragma once

#include <string>
#include <vector>

#include "core/config/run_config.h"

namespace trireme::apps {

/// Whether processes can each read it: a file on disk.
bool can_be_read_again(const std::string& path);

/// For the front, first of all: no text that another process kept is meant.
void forget_config();

/// For the front, before it reads the configuration: keeps the text of a file that cannot be read again, for itself and
/// the processes that it starts. @throws ConfigError
void keep_config(const std::string& path);

/// The file as parsed; of one that was kept, its text. Messages name `path`. @throws ConfigError
config::Table read_config(const std::string& path);
/// The same with the overrides applied, checked. @throws ConfigError
config::RunConfig load_config(const std::string& path, const std::vector<std::string>& set);

}  // namespace trireme::apps
