// TRIREME_TEST_DEVICE names the device of multi-rank tests. Every test program that trains reads it.
#pragma once

#include <cstdlib>
#include <stdexcept>
#include <string>

namespace trireme::tests {

/// "cpu" unless the variable says otherwise. @throws std::invalid_argument.
inline std::string test_device(const char* variable = std::getenv("TRIREME_TEST_DEVICE")) {
  const std::string device = variable == nullptr ? "cpu" : variable;
  if (device != "cpu" && device != "cuda")
    throw std::invalid_argument("TRIREME_TEST_DEVICE is \"" + device + "\"; expected cpu or cuda");
  return device;
}

}  // namespace trireme::tests
