// Resolves PATH in `trireme eval PATH`: a run folder, a checkpoint, or weights, which may be a file in one of these;
// and the configuration that belongs to them.
#pragma once

#include <string>
#include <vector>

namespace trireme::apps {

struct EvalTarget {
  std::string weights;         ///< what to evaluate; for a run without a model, its newest checkpoint
  std::string config{};        ///< the configuration in the run or checkpoint; "" for weights without one
  bool is_checkpoint = false;  ///< `weights` is a checkpoint's folder
};

/// Looks only at file names. @throws CheckpointError for a run folder with neither a model nor a checkpoint.
EvalTarget find_eval_target(const std::string& path);

/// @throws ConfigError for an override (--set) that does not apply to an evaluation.
void check_eval_settings(const std::vector<std::string>& set);

}  // namespace trireme::apps
