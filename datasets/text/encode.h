// Tokenises many texts with several threads, and says which one fails.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>

#include "core/base/cores.h"
#include "core/base/error.h"
#include "core/data/datasets.h"
#include "datasets/parallel.h"
#include "datasets/text/line_reader.h"

namespace trireme::datasets {

/// As make_all(), on the cores of this process.
template <class Encode>
auto encode_all(std::size_t count, const Encode& encode) {
  constexpr std::size_t kMostThreads = 16;
  return make_all(count, std::min(kMostThreads, static_cast<std::size_t>(usable_cores())), encode);
}

/// encode(); its errors name the place of the text. @throws DataError "path:line: ..."
template <class Encode>
auto encode_at(const std::string& path, std::int64_t line, const Encode& encode) {
  try {
    return encode();
  } catch (const DataError& error) {
    fail_at_line(path, line, error.what());
  }
}

/// Texts are checked when they are opened. @throws ConfigError for on_bad_sample = "skip", which would have no effect
inline void refuse_skipping(const data::OpenContext& context) {
  if (context.skip_bad_samples)
    config::fail(context.section, "on_bad_sample",
                 "has no effect with texts, which are checked when they are opened; remove it");
}

}  // namespace trireme::datasets
