// Reports memory exhaustion together with a remedy that fits the place.
#pragma once

#include <exception>
#include <functional>
#include <string>

#include "core/base/error.h"
#include "core/base/memory.h"

namespace trireme::train {

/// Calls `body`. @throws OutOfMemoryError when memory runs out in it: "out of memory (LibTorch's message)" followed by
/// `remedy()`, whose text begins with ": " or with where it happened.
inline void with_memory_remedy(const std::function<void()>& body, const std::function<std::string()>& remedy) {
  try {
    body();
  } catch (...) {
    if (const auto text = memory::exhausted(std::current_exception()))
      throw OutOfMemoryError(fmt::format("out of memory ({}){}", *text, remedy()));
    throw;
  }
}

}  // namespace trireme::train
