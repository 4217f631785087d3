// What `trireme eval PATH` means: a run folder, a checkpoint, or weights; and the configuration that belongs to it.
#pragma once

#include <string>
#include <vector>

namespace trireme::apps {

struct EvalTarget {
  std::string weights;         ///< what to evaluate; of a run without a model, its newest checkpoint
  std::string config{};        ///< the configuration that a run or a checkpoint keeps; "" for mere weights
  bool is_checkpoint = false;  ///< `weights` is a checkpoint's folder
};

/// Looks at names alone. @throws CheckpointError for a run folder that holds neither a model nor a checkpoint.
EvalTarget find_eval_target(const std::string& path);

/// @throws ConfigError for an override (--set) that says nothing of an evaluation.
void check_eval_settings(const std::vector<std::string>& set);

}  // namespace trireme::apps
