// What the commands on checkpoints share.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "core/checkpoint/run_checkpoints.h"

namespace trireme::apps {

/// "hybrid_parallel dp=2 tp=2"; "" when nothing is known.
std::string layout_text(const checkpoint::CheckpointSummary& of);
nlohmann::json summary_json(const checkpoint::CheckpointSummary& of);

}  // namespace trireme::apps
