// MetricsFile: writes a run's steps and evaluations to metrics.jsonl.
#pragma once

#include "core/train/callback.h"

namespace trireme::train {

std::shared_ptr<RunCallback> metrics_file();

}  // namespace trireme::train
