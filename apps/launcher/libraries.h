// Finds the shared libraries that the worker needs and this installation does not contain (LibTorch), and those of a
// bundle, including its Open MPI.
#pragma once

#include <string>

namespace trireme::apps {

/// Sets the environment in which the worker finds its libraries, and a bundle's Open MPI its components.
/// @throws ConfigError
void set_library_paths(const std::string& prefix);

}  // namespace trireme::apps
