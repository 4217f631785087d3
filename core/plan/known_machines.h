// The files of machines/, which the build puts into the library (core/plan/CMakeLists.txt).
#pragma once

#include <map>
#include <string>

namespace trireme::plan {

/// Their texts by their names without .toml.
const std::map<std::string, std::string>& known_machines();

}  // namespace trireme::plan
