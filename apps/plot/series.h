// The lines of metrics.jsonl as series for charts: read, averaged over runs, and thinned.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "apps/runs/run_record.h"

namespace trireme::apps {

/// A position on each of the x axes that a reader can choose.
struct Position {
  double step = 0;
  double samples = 0;  ///< that the steps up to here have trained on
  double tokens = 0;   ///< the same; NaN when one of these steps has not recorded its tokens
  double seconds = 0;  ///< of wall time since the begin of the run
};

struct Point {
  Position at;
  double value = 0;            ///< of several runs: the mean
  double least = 0, most = 0;  ///< over the runs; of a single run the value
};

/// In ascending order of steps, each step once; all numbers but tokens are finite.
using Series = std::vector<Point>;

/// By name: "loss", "lr", "grad_norm", "throughput" (samples/s), "validation_loss", and each validation metric's own
/// name. A metric whose name is one of the others has "validation_" before it.
using SeriesByName = std::map<std::string, Series>;

/// Something that happened at a step.
struct Mark {
  enum class Kind { save, evaluation, start, rollback };
  Kind kind = Kind::save;
  Position at;
  std::string text;  ///< "checkpoint, step 40"
};
const char* name_of(Mark::Kind kind);

struct RunSeries {
  RunRecord record;
  SeriesByName series;
  std::vector<Mark> marks;  ///< no first start; of each kind at most kMostMarks, evenly chosen
};

inline constexpr std::size_t kMostPoints = 2000;  ///< of a series in a chart
inline constexpr std::size_t kMostMarks = 200;

/// Reads the run in `dir`. @pre is_run(dir). @throws CheckpointError when its metrics.jsonl cannot be read
RunSeries read_series(const std::string& dir);

/// Series of several runs, added run by run. Only the series and steps that all of them have are kept.
class MeanSeries {
 public:
  void add(SeriesByName run);
  /// The means, with the least and the largest value at each step.
  [[nodiscard]] SeriesByName take();

 private:
  struct Sum {
    Series points;  ///< whose positions and values are sums
    std::size_t runs = 0;
  };
  std::map<std::string, Sum> sums_;
  std::size_t runs_ = 0;
};

struct ThinnedSeries {
  Series points;
  Series means;  ///< at each point the mean of its part, which smoothing needs; empty when no point was left out
};
/// At most `most` points: the first, the last, and the lowest and the highest of each of equally long parts, so that
/// spikes stay. A series that is short enough does not change. @pre most >= 4
ThinnedSeries thinned(Series series, std::size_t most = kMostPoints);

}  // namespace trireme::apps
