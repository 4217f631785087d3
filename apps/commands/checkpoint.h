// What the commands on checkpoints share.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "core/checkpoint/run_checkpoints.h"

namespace trireme::apps {

/// "hybrid_parallel dp=2 tp=2"; "" when nothing is known.
std::string layout_text(const checkpoint::CheckpointSummary& of);
nlohmann::json summary_json(const checkpoint::CheckpointSummary& of);
/// Warns of checkpoints that were left out (IntactCheckpoint::skipped), on standard error.
void say_skipped(const std::vector<std::string>& skipped);

}  // namespace trireme::apps
