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

struct RunContext;

/// What a training held when memory ran out, and the remedy, as with_memory_remedy() takes them.
std::string memory_remedy(RunContext& run);
/// Whether a training whose memory ran out is to be started again with smaller microbatches. Not if that would change
/// it: a batch norm computes the statistics of a microbatch.
bool may_retry(RunContext& run);

}  // namespace trireme::train
