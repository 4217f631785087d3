// Tables for the console, and how tensors, times and checkpoints are written in them.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "core/checkpoint/run_checkpoints.h"

namespace trireme::apps {

/// Rows of a table, the first one with the titles. Columns are two spaces apart; those that begin with '>' in their
/// title, which is left out, are aligned to the right.
std::string text_table(std::vector<std::vector<std::string>> rows);

/// "F32", as in safetensors; PyTorch's name for others.
std::string dtype_text(c10::ScalarType dtype);
/// "[16, 3, 8, 8]"
std::string shape_text(const std::vector<std::int64_t>& shape);
/// Local time: "2026-11-25 03:00:12"
std::string time_text(std::filesystem::file_time_type time);
/// In UTC, for programs: "2026-11-25T03:00:12Z"
std::string utc_text(std::filesystem::file_time_type time);

/// "hybrid_parallel dp=2 tp=2"; "" when nothing is known.
std::string layout_text(const checkpoint::CheckpointSummary& of);
nlohmann::json summary_json(const checkpoint::CheckpointSummary& of);
/// Warns of checkpoints that were left out (IntactCheckpoint::skipped), on standard error.
void say_skipped(const std::vector<std::string>& skipped);

}  // namespace trireme::apps
