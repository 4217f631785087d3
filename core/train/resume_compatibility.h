// What may change when a run is taken up again. The order of the samples and the meaning of a step may not: a step
// counted before and one counted after would not be the same thing. Ranks, layout, microbatch, threads and paths change
// freely. The rest (length, learning rate, precision, ...) may change, and is told.
#pragma once

#include <string>
#include <vector>

#include "core/config/table.h"

namespace trireme::train {

struct Differences {
  std::vector<std::string> refused, reported;  ///< "train.global_batch = 16 (it was 8)"
};

/// Of two resolved configurations: the run's own, and the one that a checkpoint holds.
Differences differences(const config::Table& now, const config::Table& before);

}  // namespace trireme::train
