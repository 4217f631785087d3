// What a plot shows of runs, for the page and for the SVG.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "apps/plot/series.h"

namespace trireme::apps {

/// The tensors of the rank with the largest peak, by category.
struct PeakMemory {
  static constexpr std::array<const char*, 6> kParts{"weights", "gradients",        "optimizer",
                                                     "average", "gathered weights", "activations and other"};
  std::int64_t rank = 0;
  std::array<double, kParts.size()> bytes{};  ///< their sum is the peak
};

/// What a step of rank 0 takes its time for, in seconds. On a GPU communication is a part of the others.
struct StepParts {
  static constexpr std::array<const char*, 6> kParts{"data",      "forward",       "backward",
                                                     "optimizer", "communication", "other"};
  std::array<double, kParts.size()> seconds{};
};

struct PlotRun {
  std::string name;  ///< unique: its path without the folders that all runs are in
  RunRecord record{};
  std::map<std::string, std::string> config{};  ///< "train.epochs": "3", of config.toml
  std::map<std::string, double> last{};         ///< the last value of each series
  std::vector<Mark> marks{};
  std::optional<PeakMemory> memory{};  ///< a run that has not ended knows none
  std::optional<StepParts> step{};     ///< nor these
};

/// A run, or several whose configurations differ only in the seed: one line, or band, in each chart.
struct PlotGroup {
  std::string name;               ///< "base", "base (3 seeds)"; unique
  std::vector<std::size_t> runs;  ///< indices into Plot::runs
  SeriesByName series;            ///< thinned
  SeriesByName means;             ///< ThinnedSeries::means of those that have lost points
};

struct Chart {
  std::string id;         ///< the name of its series
  std::string title;      ///< "Training loss"
  std::string unit;       ///< of the y axis: "samples/s"
  bool is_result = true;  ///< its last value is shown in the table of results
  bool is_loss = false;   ///< the switch for a logarithmic axis is for it
};

struct Plot {
  std::vector<PlotRun> runs;           ///< by folder, in the order of the command line
  std::vector<PlotGroup> groups;       ///< by their first run
  std::vector<Chart> charts;           ///< each has a series of at least one group
  std::vector<std::string> differing;  ///< keys of config.toml whose values are not the same in all runs
  bool is_thinned = false;
};

/// Reads all runs in and below these folders, each once.
/// @throws ConfigError when a folder has none, or a config.toml is not TOML; CheckpointError, see read_run()
Plot read_plot(const std::vector<std::string>& folders);

}  // namespace trireme::apps
