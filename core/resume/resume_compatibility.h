// Which options may change when a run is resumed. The order of the samples and the meaning of a step may not: steps
// counted before and after would not be comparable. Ranks, layout, microbatch, threads and paths may change freely. The
// rest (length, learning rate, precision, ...) may change and is reported.
#pragma once

#include <string>
#include <vector>

#include "core/config/table.h"

namespace trireme::train {

struct Differences {
  std::vector<std::string> refused, reported;  ///< "train.global_batch = 16 (it was 8)"
};

/// Compares two resolved configurations: the run's own and the one in a checkpoint.
Differences differences(const config::Table& now, const config::Table& before);

}  // namespace trireme::train
