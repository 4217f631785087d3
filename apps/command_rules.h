// Rules about the values of options, beyond their types: what a parsed command line means.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "apps/command_line.h"
#include "apps/command_options.h"

namespace trireme::apps {

/// Throws the ConfigError, with the --help that covers the command.
[[noreturn]] void refuse(const CLI::App& app, const std::string& what);
/// The command that was given, after its values are checked. @throws ConfigError, CheckpointError
Command finish(CLI::App& app, Parsed& parsed);

}  // namespace trireme::apps
