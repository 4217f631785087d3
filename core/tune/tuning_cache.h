// Tunings by what they are of and where they were measured: in RUN/tuning.json, and beside each other in the user's
// cache (XDG_CACHE_HOME/trireme/tuning, or else ~/.cache/trireme/tuning), one file for each model and layout.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "core/tune/tuning.h"

namespace trireme::tune {

/// What a tuning is valid for. Both are flat objects.
struct TuningKey {
  nlohmann::json of;     ///< the model, the shapes of a batch, the layout, the precision and the switches
  nlohmann::json where;  ///< the device, its cores, the versions of LibTorch and of Trireme
};

struct StoredTuning {
  std::optional<Tuning> tuning{};  ///< unset: there is none, or it is not valid
  std::string stale{};             ///< why one is not valid: "libtorch: 2.10.0, now 2.11.0"; "": there is none
};

/// The content of a file of a tuning.
std::string tuning_text(const TuningKey& key, const Tuning& tuning);
/// Reads such a content, which may be damaged. "": there is no file.
StoredTuning parse_tuning(const std::string& text, const TuningKey& key);

/// The content of the cache's file for this key; "": there is none, or it cannot be read.
std::string read_cached_tuning(const TuningKey& key);
/// Writes that file. Returns whether it could.
bool cache_tuning(const TuningKey& key, const Tuning& tuning);

}  // namespace trireme::tune
