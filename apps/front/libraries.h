// The shared libraries that the worker needs and this installation does not hold: LibTorch; and where those of a bundle
// are, with the Open MPI it brings.
#pragma once

#include <string>

namespace trireme::apps {

/// Where LibTorch was found, and by what: for messages.
struct LibTorch {
  std::string folder;   ///< holds lib/libtorch_cpu.so
  std::string source;   ///< in words
  bool linked = false;  ///< the run path of the programs leads there
};

/// Looks in this order: the environment variable TRIREME_TORCH; the LibTorch that this build or installation was linked
/// with (a bundle names none); the active Python environment's torch package, else that of the first python3 on PATH;
/// `libtorch` in or beside the folder of this installation.
/// @throws ConfigError: there is none, or it is of another version
LibTorch find_libtorch(const std::string& prefix);

/// Sets the environment in which the worker, and the mpirun that starts it, find their libraries. @throws as above
void set_library_paths(const std::string& prefix);

/// The Open MPI that a bundle brings; "": none.
std::string bundled_mpirun(const std::string& prefix);

}  // namespace trireme::apps
