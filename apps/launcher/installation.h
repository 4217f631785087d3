// What is installed where: this program and others, the shared libraries that the worker needs and this installation
// does not contain (LibTorch), and those of a bundle, including its Open MPI.
#pragma once

#include <string>

namespace trireme::apps {

/// The parent of the folder that contains this program: the build folder, or the prefix of the installation.
/// @throws ConfigError when /proc is not mounted
std::string prefix();

bool is_program(const std::string& path);

/// The first program with this name on PATH; "" if there is none.
std::string on_path(const std::string& name);
/// The name, if it has a slash, or path of a program as a file that can be executed; "" if there is none.
std::string find_program(const std::string& name);

/// Sets the environment in which the worker finds its libraries, and a bundle's Open MPI its components.
/// @throws ConfigError
void set_library_paths(const std::string& prefix);

}  // namespace trireme::apps
