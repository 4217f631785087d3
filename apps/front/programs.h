// Where this program is, and where others are.
#pragma once

#include <string>

namespace trireme::apps {

/// This program's own file. @throws ConfigError when /proc is not mounted
std::string own_program();

/// The folder above the one that holds this program: the build folder, or the prefix of the installation.
/// @throws ConfigError when /proc is not mounted
std::string prefix();

bool is_program(const std::string& path);

/// The program of this name that is first on PATH; "": there is none.
std::string on_path(const std::string& name);

}  // namespace trireme::apps
