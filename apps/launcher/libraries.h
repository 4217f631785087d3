// Finds the shared libraries that the worker needs and this installation does not contain (LibTorch), and those of a
// bundle, including its Open MPI.
#pragma once

#include <string>

namespace trireme::apps {

/// The location of LibTorch and how it was found, for messages.
struct LibTorch {
  std::string folder;   ///< contains lib/libtorch_cpu.so
  std::string source;   ///< how it was found, as text
  bool linked = false;  ///< the run path of the programs points there
};

/// Search order: the environment variable TRIREME_TORCH; the LibTorch that this build or installation was linked with
/// (a bundle has none); the torch package of the active Python environment, else of the first python3 on PATH;
/// `libtorch` in this installation's folder or next to it.
/// @throws ConfigError if there is none, or it has another version
LibTorch find_libtorch(const std::string& prefix);

/// Sets the environment in which the worker finds its libraries, and a bundle's Open MPI its components.
/// @throws ConfigError
void set_library_paths(const std::string& prefix);

}  // namespace trireme::apps
