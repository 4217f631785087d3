// Shared by the tests of core/config.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "core/base/error.h"

namespace trireme::tests {

/// The message of the ConfigError that `call` throws; another error, or none, fails the test.
template <class Call>
std::string message_of(Call call) {
  try {
    call();
  } catch (const ConfigError& error) {
    return error.what();
  } catch (const std::exception& error) {
    ADD_FAILURE() << "not a ConfigError: " << error.what();
    return "";
  }
  ADD_FAILURE() << "no error";
  return "";
}

}  // namespace trireme::tests
