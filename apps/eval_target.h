// Finds the weights that the argument of `trireme eval`, predict or generate names. Uses nothing of LibTorch.
#pragma once

#include <string>

namespace trireme::apps {

struct EvalTarget {
  std::string weights;         ///< what to evaluate; for a run without a model, its newest checkpoint
  std::string config{};        ///< the configuration in the run or checkpoint; "" for weights without one
  bool is_checkpoint = false;  ///< `weights` is a checkpoint's folder
};

/// Resolves PATH in `trireme eval PATH`: a run folder, a checkpoint, or weights, which may be a file in one of these;
/// and the configuration that belongs to them. Reads nothing but a run's summary.json.
/// @throws ConfigError for an empty path; CheckpointError for a run folder with neither a model nor a checkpoint.
EvalTarget find_eval_target(const std::string& path);

}  // namespace trireme::apps
