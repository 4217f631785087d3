// BadSamples: handles samples that cannot be read (data.on_bad_sample). "error": the error is rethrown with a remedy.
// "skip": the sample is logged once, with the rank, counted once, and not tried again. Thread-safe.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <mutex>
#include <optional>
#include <set>
#include <string>

#include "core/base/error.h"
#include "core/base/log.h"
#include "core/base/terminal_text.h"
#include "core/data/dataset.h"

namespace trireme::data {

class BadSamples {
 public:
  /// `alone`: there is no other rank, so none is named.
  BadSamples(bool skip, const Log& log, bool alone = false) : skip_(skip), alone_(alone), log_(log) {}

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
      if (bad_.insert(index).second) warn("a sample is skipped: " + for_terminal(error.what()));
      return std::nullopt;
    }
  }
  /// The indices of the skipped samples in the data set.
  [[nodiscard]] std::vector<std::int64_t> list() const {
    const std::lock_guard lock(mutex_);
    return {bad_.begin(), bad_.end()};
  }

 private:
  void warn(const std::string& message) const { alone_ ? log_.warn("{}", message) : log_.warn_on_rank("{}", message); }
  bool skip_, alone_;
  Log log_;
  mutable std::mutex mutex_;
  std::set<std::int64_t> bad_;
};

}  // namespace trireme::data
