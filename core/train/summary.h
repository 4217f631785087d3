// summary.json: the run's result, and what each rank held and sent.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "core/booster/booster.h"

namespace trireme::train {

/// Every rank's text, on every rank. Collective.
std::vector<std::string> gather_text(const comm::Group& group, c10::Device device, const std::string& text);
/// Peak resident memory of this process so far, bytes.
std::int64_t peak_rss_bytes();
/// {parameter_bytes, gradient_bytes, optimizer_bytes, peak_rss_bytes, samples, comm} of this rank.
nlohmann::json rank_report(Boosted& run, const comm::World& world, std::int64_t samples);

}  // namespace trireme::train
