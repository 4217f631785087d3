#include "core/tune/tuner.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <optional>
#include <utility>

#include "core/base/error.h"
#include "core/base/text.h"

namespace trireme::tune {
namespace {

constexpr std::size_t kLeastPairs = 3;
constexpr double kDifference = 0.01;  ///< relative; a smaller one does not matter
constexpr int kMostRounds = 3;        ///< of TunerOptions::measured pairs, while their times do not part
constexpr double kSlow = 3;           ///< times the default's time: two such steps of a candidate are enough
constexpr double kMemory = 1.05;      ///< times the default's peak that a candidate may need

bool is_one_of(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

double quantile(std::vector<double> values, double q) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[static_cast<std::size_t>(std::lround(q * static_cast<double>(values.size() - 1)))];
}

/// A mean without the lowest and the highest quarter of the values, and half the width of its 95 % interval: other
/// programs disturb some steps a lot. Source: K. K. Yuen, "The two-sample trimmed t for unequal population variances",
/// Biometrika 61 (1974).
struct TrimmedMean {
  double mean = 0, half_width = 0;

  /// @pre at least 3 values
  explicit TrimmedMean(std::vector<double> values) {
    constexpr std::array<double, 15> kStudent{12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31,
                                              2.26,  2.23, 2.20, 2.18, 2.16, 2.14, 2.13};
    std::sort(values.begin(), values.end());
    const auto all = values.size(), cut = all / 4, left = all - 2 * cut;
    for (std::size_t i = cut; i < cut + left; ++i) mean += values[i] / static_cast<double>(left);
    std::fill(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(cut), values[cut]);
    std::fill(values.end() - static_cast<std::ptrdiff_t>(cut), values.end(), values[cut + left - 1]);
    double winsorized = 0, squares = 0;
    for (const double value : values) winsorized += value / static_cast<double>(all);
    for (const double value : values) squares += (value - winsorized) * (value - winsorized);
    const auto kept = static_cast<double>(left);
    half_width = kStudent[std::min(left - 1, kStudent.size()) - 1] * std::sqrt(squares / kept / (kept - 1));
  }
};

/// Times of two ways of a step, in turn.
struct Pairs {
  std::vector<double> first, second;

  /// The logarithm of the first one's time / the second one's.
  [[nodiscard]] TrimmedMean gain() const {
    std::vector<double> logs;
    for (std::size_t i = 0; i < first.size(); ++i) logs.push_back(std::log(first[i] / second[i]));
    return TrimmedMean(std::move(logs));
  }
  /// The first one's time / the second one's.
  [[nodiscard]] double ratio() const { return first.size() < kLeastPairs ? 1 : std::exp(gain().mean); }
  /// Whether more of them would change nothing that matters.
  [[nodiscard]] bool is_decided() const {
    if (first.size() < kLeastPairs) return false;
    const auto found = gain();
    return found.half_width < kDifference || found.mean - found.half_width > 0 ||
           found.mean + found.half_width < kDifference;
  }
  [[nodiscard]] bool second_is_faster() const {
    if (first.size() < kLeastPairs) return false;
    const auto found = gain();
    return found.mean > 2 * kDifference || (found.mean > kDifference && found.mean > found.half_width);
  }
};

class Descent {
 public:
  Descent(TunedStep& step, const std::vector<Switch>& switches, const TunerOptions& options)
      : step_(step), options_(options), now_(switches.size(), 0), used_(options.used_s) {
    for (const auto& one : switches) switches_.push_back(&one);
  }

  Tuning run() {
    auto check = checked();
    bound_.emplace(check.errors, options_.least_error);
    has_reference_ = bound_->is_usable();
    if (!check.errors.loss.empty()) {
      tuning_.default_error = check.errors.largest();
      if (!has_reference_)
        tuning_.notes.push_back(
            fmt::format("the default's own error is {:.1e} to float64, so that nothing can be compared "
                        "with it: only choices with the default's bits are taken",
                        tuning_.default_error));
    }
    measure_default();
    for (std::size_t i = 0; i < switches_.size(); ++i)
      for (std::size_t choice = 1; choice < switches_[i]->choices.size(); ++choice) try_choice(i, choice);
    confirm();
    tuning_.seconds = used_;
    if (stopped_) {
      select_all(false);
      std::fill(now_.begin(), now_.end(), 0);
      tuning_.stopped = true;
      tuning_.not_tuned = "the run was asked to stop";
    }
    for (std::size_t i = 0; i < switches_.size(); ++i)
      if (now_[i] > 0) tuning_.chosen.push_back(name_of(i, now_[i]));
    tuning_.is_complete = !stopped_ && !is_cut_short_;
    return std::move(tuning_);
  }

 private:
  [[nodiscard]] std::string name_of(std::size_t i, std::size_t choice) const {
    return switches_[i]->name + "=" + switches_[i]->choices[choice].name;
  }
  void select(std::size_t i, std::size_t choice) const { switches_[i]->choices[choice].select(); }
  void select_all(bool chosen) const {
    for (std::size_t i = 0; i < switches_.size(); ++i)
      if (now_[i] > 0) select(i, chosen ? now_[i] : 0);
  }

  TunedStep::Measured measured() {
    const auto step = step_.run();
    used_ += step.seconds();
    stopped_ = stopped_ || step_.stops();
    return step;
  }
  double step() { return measured().seconds(); }
  TunedStep::Checked checked() {
    auto check = step_.check();
    used_ += check.seconds;
    stopped_ = stopped_ || step_.stops();
    return check;
  }
  [[nodiscard]] bool has_time_for(int steps) const {
    return !stopped_ && used_ + steps * tuning_.default_seconds <=
                            std::min(options_.budget_s, options_.budget_steps * tuning_.default_seconds);
  }

  /// Also orders the switches by the time that they may save.
  void measure_default() {
    std::vector<double> times;
    TunedStep::Measured sum;
    for (int i = 0; i < 3 + options_.warm - 2; ++i) {
      const auto step = measured();
      peak_ = std::max(peak_, step.peak);
      if (i < options_.warm - 2) continue;
      times.push_back(step.seconds());
      sum.passes += step.passes;
      sum.update += step.update;
    }
    tuning_.default_seconds = quantile(times, 0.5);
    const auto time_of = [&sum](const Switch* one) {
      return one->share * (one->part == StepPart::passes ? sum.passes : sum.update);
    };
    std::stable_sort(switches_.begin(), switches_.end(),
                     [&](const Switch* a, const Switch* b) { return time_of(a) > time_of(b); });
  }

  /// Runs the two ways in turn until their times part, and leaves the second one selected.
  Pairs in_turn(const std::function<void()>& select_first, const std::function<void()>& select_second) {
    Pairs pairs;
    const auto most = static_cast<std::size_t>(kMostRounds * options_.measured);
    while (pairs.first.size() < most && !pairs.is_decided() && has_time_for(2)) {
      select_first();
      const double first = step();
      select_second();
      pairs.second.push_back(step());
      pairs.first.push_back(first);
    }
    return pairs;
  }

  void try_choice(std::size_t i, std::size_t choice) {
    const auto& way = switches_[i]->choices[choice];
    Candidate row{.name = name_of(i, choice)};
    if (!has_time_for(options_.warm + 2 * static_cast<int>(kLeastPairs) + 2)) {
      row.verdict = stopped_ ? "not tried: the run was asked to stop" : "not tried: the time is used up";
      is_cut_short_ = is_cut_short_ || !way.changes_numbers || is_named(i, choice);
      tuning_.candidates.push_back(std::move(row));
      return;
    }
    const auto before = now_[i];
    select(i, choice);
    const auto check = checked();
    row.error = check.errors.largest();
    row.numbers = class_of(check, way);
    row.verdict = why_rejected(check, i, choice, row.numbers);
    if (row.verdict.empty() || way.changes_numbers) {
      std::int64_t peak = 0;
      double fastest = std::numeric_limits<double>::infinity();
      const auto is_slow = [&] { return fastest > kSlow * tuning_.default_seconds; };
      for (int n = 2; n < std::max(options_.warm, 3) || (is_slow() && n < 4); ++n) {
        const auto step = measured();
        peak = std::max(peak, step.peak);
        fastest = std::min(fastest, step.seconds());
      }
      if (row.verdict.empty() && static_cast<double>(peak) > kMemory * static_cast<double>(peak_)) {
        row.verdict = fmt::format("rejected: it needs {:.0f} MiB, the default {:.0f}",
                                  static_cast<double>(peak) / (1 << 20), static_cast<double>(peak_) / (1 << 20));
      } else if (is_slow()) {
        row.seconds = row.low = row.high = fastest;
        row.gain = tuning_.default_seconds / fastest;
        if (row.verdict.empty()) row.verdict = "not faster";
      }
    }
    if (row.seconds == 0 && (row.verdict.empty() || (way.changes_numbers && !row.verdict.starts_with("rejected")))) {
      const auto pairs = in_turn([&] { select(i, before); }, [&] { select(i, choice); });
      row.seconds = quantile(pairs.second, 0.5);
      row.low = quantile(pairs.second, 0.1);
      row.high = quantile(pairs.second, 0.9);
      row.gain = pairs.ratio();
      if (row.verdict.empty()) {
        row.chosen = pairs.second_is_faster();
        is_cut_short_ = is_cut_short_ || pairs.first.size() < kLeastPairs;
        row.verdict = row.chosen                         ? "chosen"
                      : pairs.first.size() < kLeastPairs ? "not decided: the time is used up"
                                                         : "not faster";
      }
    }
    if (row.chosen) {
      for (auto& other : tuning_.candidates)
        if (before > 0 && other.name == name_of(i, before)) {
          other.chosen = false;
          other.verdict = row.name + " is faster";
        }
      now_[i] = choice;
    } else {
      select(i, before);
    }
    tuning_.candidates.push_back(std::move(row));
  }

  [[nodiscard]] NumberClass class_of(const TunedStep::Checked& check, const Choice& way) const {
    if (check.same_bits && !way.changes_numbers) return NumberClass::same_bits;
    if (way.changes_numbers) return NumberClass::other_precision;
    if (!has_reference_ || !bound_->exceeded_by(check.errors).empty()) return NumberClass::wrong;
    return NumberClass::rounding;
  }

  /// "": it is not.
  [[nodiscard]] std::string why_rejected(const TunedStep::Checked& check, std::size_t i, std::size_t choice,
                                         NumberClass numbers) const {
    const bool changes_numbers = switches_[i]->choices[choice].changes_numbers;
    if (changes_numbers && !(check.errors.largest() < 1)) return "rejected: its numbers are far from float64";
    if (changes_numbers && !is_named(i, choice)) return "other numbers; name it in optimize.candidates to allow it";
    if (numbers == NumberClass::wrong)
      return has_reference_ ? "rejected: " + bound_->exceeded_by(check.errors)
                            : "rejected: other bits, and no float64 reference to judge them by";
    return "";
  }
  [[nodiscard]] bool is_named(std::size_t i, std::size_t choice) const {
    return is_one_of(options_.candidates, switches_[i]->name) || is_one_of(options_.candidates, name_of(i, choice));
  }

  /// The default and all that was chosen, in turn: what was chosen goes if it does not gain together.
  void confirm() {
    if (std::all_of(now_.begin(), now_.end(), [](std::size_t choice) { return choice == 0; })) return;
    for (const auto& row : tuning_.candidates)
      if (row.chosen) {
        tuning_.gain *= row.gain;
        tuning_.same_bits = tuning_.same_bits && row.numbers == NumberClass::same_bits;
      }
    const auto pairs = in_turn([this] { select_all(false); }, [this] { select_all(true); });
    is_cut_short_ = is_cut_short_ || pairs.first.size() < kLeastPairs;
    if (pairs.first.size() < kLeastPairs) return;
    tuning_.gain = pairs.ratio();
    if (pairs.second_is_faster()) return;
    select_all(false);
    std::fill(now_.begin(), now_.end(), 0);
    tuning_.gain = 1;
    tuning_.same_bits = true;
    for (auto& row : tuning_.candidates)
      if (std::exchange(row.chosen, false)) row.verdict = "not faster in the end";
  }

  TunedStep& step_;
  const TunerOptions& options_;
  std::vector<const Switch*> switches_;
  std::vector<std::size_t> now_;  ///< the choice of each switch
  std::optional<ErrorBound> bound_;
  bool has_reference_ = false, stopped_ = false, is_cut_short_ = false;
  std::int64_t peak_ = 0;
  double used_;
  Tuning tuning_;
};

}  // namespace

std::vector<Switch> wanted(std::vector<Switch> switches, const std::vector<std::string>& candidates) {
  if (candidates.empty()) return switches;
  std::vector<Switch> out;
  for (auto& one : switches) {
    std::vector<std::string> names;
    for (const auto& choice : one.choices) names.push_back(one.name + "=" + choice.name);
    for (const auto& candidate : candidates)
      if (candidate.starts_with(one.name + "=") && !is_one_of(names, candidate))
        throw ConfigError(
            fmt::format("optimize.candidates: \"{}\" is no choice here (there are: {})", candidate, text::join(names)));
    if (!is_one_of(candidates, one.name))
      one.choices.erase(
          std::remove_if(one.choices.begin() + 1, one.choices.end(),
                         [&](const Choice& choice) { return !is_one_of(candidates, one.name + "=" + choice.name); }),
          one.choices.end());
    if (one.choices.size() > 1) out.push_back(std::move(one));
  }
  return out;
}

Tuning tune(TunedStep& step, const std::vector<Switch>& switches, const TunerOptions& options) {
  return Descent(step, switches, options).run();
}

std::vector<std::string> select(const std::vector<Switch>& switches, const std::vector<std::string>& chosen) {
  auto missing = chosen;
  std::vector<const Choice*> found;
  for (const auto& one : switches)
    for (const auto& choice : one.choices)
      if (std::erase(missing, one.name + "=" + choice.name) > 0) found.push_back(&choice);
  if (missing.empty())
    for (const auto* choice : found) choice->select();
  return missing;
}

}  // namespace trireme::tune
