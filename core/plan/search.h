// Search: which layout trains a file fastest on so many ranks, among those whose ranks have the memory for it. Layouts
// are forecast (forecast.h), not run. What a run computes stays that of its file: the global batch, the seed, the
// precision, the loss.
//
//   1  every way to write the ranks as dp x pp x sp x tp, those that split the model least first; not those that split
//      more what fits and is slow already
//   2  of a layout that does not fit: what makes it fit, from the cheapest means to the dearest (ZeRO, microbatches of
//      a half and a quarter, recomputation, still smaller ones, offloaded optimizer state)
//   3  of the fastest layouts: one key after another gets the value that makes the step fastest (ZeRO stage, schedule,
//      size of the microbatches, mode of sequence parallelism, recomputation), until none helps
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "core/plan/forecast.h"

namespace trireme::plan {

/// Keys of a file with their values as TOML: {"parallel.tp", "2"}.
using Settings = std::map<std::string, std::string>;

/// As `--layouts` takes them: "dp=2,tp=2,zero=1,train.recompute=true".
std::string layout_text(const Settings& settings);

struct Candidate {
  Settings settings{};  ///< with sizes of a layout, in place of the file's [parallel] and [plugin.*]
  Forecast forecast{};  ///< with the problem of a layout that cannot run
};

struct SearchOptions {
  int ranks = 1;
  double memory = std::numeric_limits<double>::infinity();  ///< bytes that a rank has for tensors
  std::set<std::string> fixed{};                            ///< keys of [train] that keep the file's value
  Settings given{};                                         ///< keys of [parallel] that every layout has
  bool keeps_layout = false;                                ///< only the size of the microbatches is chosen
  std::int64_t global_batch = 1;
  bool recomputes = false, sets_micro_batch = false;  ///< in the file
  /// Batch norms compute the statistics of a microbatch: other microbatches would train another model.
  bool keeps_microbatches = false;
  int most_forecasts = std::numeric_limits<int>::max();
  double most_seconds = std::numeric_limits<double>::infinity();
};

struct SearchResult {
  std::vector<Candidate> fitting{};    ///< the fastest first; of equal ones, the one that sends less
  std::vector<Candidate> too_large{};  ///< of each layout that can run and never fits, the smallest
  std::string problem{};               ///< of a layout that cannot run, where none can
  int forecasts = 0;
  bool is_complete = true;  ///< neither limit ended it
};

/// The forecast of a training with these settings; its `problem` says why it cannot run.
using ForecastOf = std::function<Forecast(const Settings&)>;

SearchResult search(const SearchOptions& options, const ForecastOf& forecast_of);

/// Why a search that tried all layouts has none that fits, for the user.
std::string why_none(const SearchOptions& options, const SearchResult& result);

}  // namespace trireme::plan
