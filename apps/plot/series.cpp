#include "apps/plot/series.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "core/base/json_members.h"

namespace trireme::apps {
namespace {

using nlohmann::json;

// Keys of metrics.jsonl, and the series that they become.
constexpr std::array<std::pair<const char*, const char*>, 4> kOfSteps{
    {{"loss", "loss"}, {"lr", "lr"}, {"grad_norm", "grad_norm"}, {"samples_per_s", "throughput"}}};

/// Keys of an evaluation that are no metrics; "k" is the parameter of top_k.
const std::set<std::string>& no_metrics() {
  static const std::set<std::string> keys{"step",       "epoch",         "samples",      "seconds", "time",
                                          "train_loss", "epoch_seconds", "padded_share", "k"};
  return keys;
}

/// Unset also for null, which stands for a number that is not finite.
std::optional<double> finite_in(const json& line, const char* key) {
  const auto value = number_in(line, key);
  return value && std::isfinite(*value) ? value : std::nullopt;
}

std::string series_of_metric(const std::string& metric) {
  const bool taken = metric == "loss" ||
                     std::any_of(kOfSteps.begin(), kOfSteps.end(), [&](const auto& of) { return metric == of.second; });
  return taken || metric == "validation_loss" ? "validation_" + metric : metric;
}

/// Collects the lines of a run. Their times are Unix seconds until the begin of the run is known, at the end.
class SeriesReader {
 public:
  void add(const json& line) {
    const auto step = finite_in(line, "step"), time = finite_in(line, "time");
    if (!step || !time) return;
    const auto kind = text_in(line, "kind");
    if (kind == "step") {
      samples_ += finite_in(line, "samples").value_or(0);
      tokens_ += finite_in(line, "tokens").value_or(std::numeric_limits<double>::quiet_NaN());
      steps_.push_back({.step = *step, .samples = samples_, .tokens = tokens_, .seconds = *time});
      for (const auto& [key, name] : kOfSteps) add_point(name, steps_.back(), finite_in(line, key));
    } else if (kind == "eval" && text_in(line, "split") == "validation") {
      const auto at = position(*step, *time);
      for (const auto& [key, value] : line.items())
        if (!no_metrics().contains(key)) add_point(series_of_metric(key), at, finite_in(line, key.c_str()));
      mark(Mark::Kind::evaluation, at, fmt::format("evaluation, step {}", *step));
    } else if (kind == "event") {
      add_event(line, text_in(line, "event"), position(*step, *time));
    }
  }

  RunSeries take(RunRecord record) {
    const auto from_begin = [begin = record.times.begin](Position& at) {
      at.seconds = std::max(0.0, at.seconds - begin);
    };
    RunSeries out{.record = std::move(record), .series = std::move(series_), .marks = {}};
    for (auto& [name, series] : out.series) {
      in_order(series);
      for (auto& point : series) from_begin(point.at);
    }
    for (auto& [kind, all] : marks_)
      for (std::size_t i = 0, shown = std::min(all.size(), kMostMarks); i < shown; ++i) {
        out.marks.push_back(std::move(all[i * all.size() / shown]));
        from_begin(out.marks.back().at);
      }
    return out;
  }

 private:
  /// An event of a checkpoint may come after later steps.
  [[nodiscard]] Position position(double step, double time) const {
    const auto after = std::upper_bound(steps_.begin(), steps_.end(), step,
                                        [](double wanted, const Position& at) { return wanted < at.step; });
    auto at = after == steps_.begin() ? Position{} : *std::prev(after);
    at.step = step;
    at.seconds = time;
    return at;
  }

  void add_point(const std::string& name, const Position& at, std::optional<double> value) {
    if (value) series_[name].push_back({.at = at, .value = *value, .least = *value, .most = *value});
  }

  void add_event(const json& line, const std::string& event, const Position& at) {
    if (event == "save") {
      mark(Mark::Kind::save, at, fmt::format("checkpoint, step {}", at.step));
    } else if (event == "rollback") {
      mark(Mark::Kind::rollback, at, fmt::format("rollback to step {}: {}", at.step, text_in(line, "cause")));
    } else if (event == train::kStartEvent && (std::exchange(started_, true) || !steps_.empty())) {
      const auto restart = line.find("restart");
      const auto cause = restart != line.end() && restart->is_object() ? text_in(*restart, "cause") : "";
      mark(Mark::Kind::start, at,
           fmt::format("start from step {}{}{}", at.step, cause.empty() ? "" : " after: ", cause));
    }
  }

  void mark(Mark::Kind kind, const Position& at, std::string text) {
    marks_[kind].push_back({kind, at, std::move(text)});
  }

  /// Of the lines of a step, the last one stays. They are in order unless somebody has edited the file.
  static void in_order(Series& series) {
    const auto before = [](const Point& a, const Point& b) { return a.at.step < b.at.step; };
    const auto same = [](const Point& a, const Point& b) { return a.at.step == b.at.step; };
    if (!std::is_sorted(series.begin(), series.end(), before)) std::stable_sort(series.begin(), series.end(), before);
    series.erase(series.begin(), std::unique(series.rbegin(), series.rend(), same).base());
  }

  double samples_ = 0, tokens_ = 0;
  bool started_ = false;
  std::vector<Position> steps_;
  SeriesByName series_;
  std::map<Mark::Kind, std::vector<Mark>> marks_;
};

/// The mean values, without a position.
Point mean_of(Series::const_iterator begin, Series::const_iterator end) {
  Point mean;
  const auto count = static_cast<double>(end - begin);
  for (; begin != end; ++begin) {
    mean.value += begin->value / count;
    mean.least += begin->least / count;
    mean.most += begin->most / count;
  }
  return mean;
}

}  // namespace

const char* name_of(Mark::Kind kind) {
  switch (kind) {
    case Mark::Kind::save:
      return "checkpoint";
    case Mark::Kind::evaluation:
      return "evaluation";
    case Mark::Kind::start:
      return "start";
    case Mark::Kind::rollback:
      return "rollback";
  }
  return "";
}

RunSeries read_series(const std::string& dir) {
  SeriesReader reader;
  auto record = read_run(dir, [&](const json& line) { reader.add(line); });
  return reader.take(std::move(record));
}

void MeanSeries::add(SeriesByName run) {
  ++runs_;
  for (auto& [name, points] : run) {
    auto& sum = sums_[name];
    if (sum.runs++ == 0) {
      sum.points = std::move(points);
      continue;
    }
    Series both;
    auto other = points.begin();
    for (auto& point : sum.points) {
      while (other != points.end() && other->at.step < point.at.step) ++other;
      if (other == points.end()) break;
      if (other->at.step != point.at.step) continue;
      point.at.samples += other->at.samples;
      point.at.tokens += other->at.tokens;
      point.at.seconds += other->at.seconds;
      point.value += other->value;
      point.least = std::min(point.least, other->least);
      point.most = std::max(point.most, other->most);
      both.push_back(point);
    }
    sum.points = std::move(both);
  }
}

SeriesByName MeanSeries::take() {
  SeriesByName out;
  const auto runs = std::exchange(runs_, 0);
  for (auto& [name, sum] : std::exchange(sums_, {})) {
    if (sum.runs < runs) continue;
    const auto count = static_cast<double>(runs);
    for (auto& point : sum.points) {
      point.at.samples /= count;
      point.at.tokens /= count;
      point.at.seconds /= count;
      point.value /= count;
    }
    if (!sum.points.empty()) out[name] = std::move(sum.points);
  }
  return out;
}

ThinnedSeries thinned(Series series, std::size_t most) {
  if (series.size() <= most) return {std::move(series), {}};
  ThinnedSeries out;
  const auto keep = [&](const Point& point, const Point& mean) {
    out.points.push_back(point);
    out.means.push_back(mean);
    out.means.back().at = point.at;
  };
  keep(series.front(), series.front());
  const auto inner = series.size() - 2, parts = (most - 2) / 2;
  for (std::size_t part = 0; part < parts; ++part) {
    const auto begin = series.begin() + 1 + static_cast<std::ptrdiff_t>(part * inner / parts);
    const auto end = series.begin() + 1 + static_cast<std::ptrdiff_t>((part + 1) * inner / parts);
    auto low = std::min_element(begin, end, [](const Point& a, const Point& b) { return a.least < b.least; });
    auto high = std::max_element(begin, end, [](const Point& a, const Point& b) { return a.most < b.most; });
    if (high < low) std::swap(low, high);
    const auto mean = mean_of(begin, end);
    keep(*low, mean);
    if (high != low) keep(*high, mean);
  }
  keep(series.back(), series.back());
  return out;
}

}  // namespace trireme::apps
