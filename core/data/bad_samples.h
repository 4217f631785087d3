// BadSamples: handles samples that cannot be read (data.on_bad_sample). "error": the error is rethrown with a remedy.
// "skip": the sample is logged once, counted once, and not tried again. Thread-safe.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <mutex>
#include <optional>
#include <set>

#include "core/base/error.h"
#include "core/base/log.h"
#include "core/data/dataset.h"

namespace trireme::data {

class BadSamples {
 public:
  BadSamples(bool skip, const Log& log) : skip_(skip), log_(log) {}

  /// Returns the result of `read`, or nullopt for a sample that is skipped.
  template <class Read>
  std::optional<Sample> guard(std::int64_t index, Read&& read) {
    {
      const std::lock_guard lock(mutex_);
      if (bad_.contains(index)) return std::nullopt;
    }
    try {
      return read();
    } catch (const DataError& error) {
      if (!skip_)
        throw DataError(fmt::format("{}; repair or remove it, or set data.on_bad_sample = \"skip\" to continue without "
                                    "it",
                                    error.what()),
                        error.where());
      const std::lock_guard lock(mutex_);
      if (bad_.insert(index).second) log_.warn_on_rank("a sample is skipped: {}", error.what());
      return std::nullopt;
    }
  }
  /// The indices of the skipped samples in the data set.
  [[nodiscard]] std::vector<std::int64_t> list() const {
    const std::lock_guard lock(mutex_);
    return {bad_.begin(), bad_.end()};
  }

 private:
  bool skip_;
  Log log_;
  mutable std::mutex mutex_;
  std::set<std::int64_t> bad_;
};

}  // namespace trireme::data
