#include "core/plan/search.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <deque>
#include <optional>
#include <tuple>
#include <utility>

#include "core/base/text.h"

namespace trireme::plan {
namespace {

constexpr const char* kZero = "parallel.zero";
constexpr const char* kMicroBatch = "train.micro_batch";
constexpr const char* kRecompute = "train.recompute";
constexpr const char* kOffload = "plugin.hybrid_parallel.cpu_offload";
constexpr double kPartForLayouts = 0.7;  ///< of the limits; the rest improves the fastest
constexpr double kSlow = 1.25;           ///< times the fastest

/// How the ranks are divided.
struct Sizes {
  std::int64_t dp = 1, pp = 1, sp = 1, tp = 1;
  auto operator<=>(const Sizes&) const = default;
};

/// All products of four sizes, those that split the model least first.
std::vector<Sizes> all_sizes(std::int64_t ranks) {
  std::vector<Sizes> all;
  for (std::int64_t tp = 1; tp <= ranks; ++tp)
    for (std::int64_t sp = 1; sp * tp <= ranks; ++sp)
      for (std::int64_t pp = 1; pp * sp * tp <= ranks; ++pp)
        if (ranks % (pp * sp * tp) == 0) all.push_back({ranks / (pp * sp * tp), pp, sp, tp});
  std::stable_sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.dp > b.dp; });
  return all;
}

Settings settings_of(const Sizes& of) {
  Settings out{{"parallel.dp", std::to_string(of.dp)}};
  for (const auto& [key, size] : {std::pair{"pp", of.pp}, {"sp", of.sp}, {"tp", of.tp}})
    if (size > 1) out[std::string("parallel.") + key] = std::to_string(size);
  if (of.sp > 1) out["parallel.sp_mode"] = "\"all_to_all\"";
  return out;
}

/// What is changed together, such as a schedule with its number of stages; "": the key is left out.
using Change = std::vector<std::pair<std::string, std::string>>;

Settings changed(Settings settings, const Change& change) {
  for (const auto& [key, value] : change)
    if (value.empty())
      settings.erase(key);
    else
      settings[key] = value;
  return settings;
}

/// Bytes that a rank holds in every part of a step.
double state_of(const Memory& memory, std::int64_t dp, int zero) {
  const auto part = [&](std::int64_t bytes, int from) {
    return static_cast<double>(bytes) / static_cast<double>(zero >= from ? dp : 1);
  };
  return part(memory.optimizer, 1) + part(memory.gradients, 2) + part(memory.weights, 3);
}

class Searching {
 public:
  Searching(const SearchOptions& options, const ForecastOf& forecast_of)
      : options_(options), forecast_of_(forecast_of) {}

  SearchResult run() {
    if (options_.keeps_layout) {
      try_microbatches();
    } else {
      const auto all = all_sizes(options_.ranks);
      auto next = all.begin();
      const auto try_layouts = [&](auto has_ended) {
        for (; next != all.end() && !has_ended(); ++next)
          if (splits_a_slow_one(*next))
            slow_.insert(*next);
          else if (matches_given(*next) && !(options_.keeps_microbatches && next->pp > 1))
            try_layout(*next);
      };
      try_layouts([&] { return is_over(std::isfinite(fastest_) ? kPartForLayouts : 1); });
      refine_fastest();
      try_layouts([&] { return is_over(); });
      is_complete_ = is_complete_ && next == all.end();
    }
    SearchResult out{.fitting = fitting(),
                     .too_large = std::move(too_large_),
                     .problem = problem_,
                     .forecasts = forecasts_,
                     .is_complete = is_complete_};
    std::stable_sort(out.too_large.begin(), out.too_large.end(),
                     [](const auto& a, const auto& b) { return a.forecast.memory.peak < b.forecast.memory.peak; });
    return out;
  }

 private:
  /// Whether this part of a limit is used.
  [[nodiscard]] bool is_over(double part = 1) const {
    const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - begun_;
    return forecasts_ >= part * options_.most_forecasts || spent.count() >= part * options_.most_seconds;
  }
  /// Whether it is a slow division that fits, with one of the axes that split the model longer.
  [[nodiscard]] bool splits_a_slow_one(const Sizes& of) const {
    for (auto size : {&Sizes::pp, &Sizes::sp, &Sizes::tp})
      for (std::int64_t by = 2; by <= of.*size; ++by) {
        if (of.*size % by != 0) continue;
        auto less = of;
        less.*size /= by;
        less.dp *= by;
        if (slow_.contains(less)) return true;
      }
    return false;
  }
  [[nodiscard]] bool fits(const Forecast& of) const {
    return of.problem.empty() && static_cast<double>(of.memory.peak) <= options_.memory;
  }
  /// Faster; or as fast and plainer.
  static bool is_better(const Candidate& a, const Candidate& b) {
    return std::tuple(a.forecast.time.step, a.forecast.sent_bytes(), a.settings.size()) <
           std::tuple(b.forecast.time.step, b.forecast.sent_bytes(), b.settings.size());
  }
  /// The fastest first.
  [[nodiscard]] std::vector<Candidate> fitting() const {
    std::vector<Candidate> out;
    for (const auto& [settings, found] : known_)
      if (fits(found)) out.push_back({settings, found});
    std::stable_sort(out.begin(), out.end(), is_better);
    return out;
  }
  [[nodiscard]] bool matches_given(const Sizes& of) const {
    for (const auto& [key, size] : {std::pair{"dp", of.dp}, {"pp", of.pp}, {"sp", of.sp}, {"tp", of.tp}})
      if (const auto at = options_.given.find(std::string("parallel.") + key);
          at != options_.given.end() && at->second != std::to_string(size))
        return false;
    return true;
  }
  /// Samples of the largest share of the global batch.
  [[nodiscard]] std::int64_t share_of(std::int64_t dp) const { return (options_.global_batch + dp - 1) / dp; }
  [[nodiscard]] Settings layout_of(const Sizes& of) const {
    auto out = options_.given;
    out.merge(settings_of(of));
    return out;
  }
  [[nodiscard]] bool may_set(const std::string& key) const {
    return !options_.fixed.contains(key) && !options_.given.contains(key) &&
           !(key == kMicroBatch && options_.keeps_microbatches);
  }

  /// Null when the search is over, or such a layout cannot run.
  const Forecast* forecast(const Settings& settings) {
    auto at = known_.find(settings);
    if (at == known_.end()) {
      if (is_over()) {
        is_complete_ = false;
        return nullptr;
      }
      at = known_.emplace(settings, forecast_of_(settings)).first;
      ++forecasts_;
      if (problem_.empty()) problem_ = at->second.problem;
    }
    return at->second.problem.empty() ? &at->second : nullptr;
  }

  /// The file's own size, and its halves.
  void try_microbatches() {
    const auto* found = forecast({});
    if (found == nullptr) return;
    Candidate smallest{{}, *found};
    for (auto micro = found->micro_batch; micro > 1 && may_set(kMicroBatch);) {
      micro = (micro + 1) / 2;
      const Settings settings{{kMicroBatch, std::to_string(micro)}};
      if (const auto* next = forecast(settings)) smallest = {settings, *next};
    }
    if (!fits(smallest.forecast)) too_large_.push_back(smallest);
  }

  /// The layout as it is, or with the least means that make it fit.
  void try_layout(const Sizes& sizes) {
    auto settings = layout_of(sizes);
    const auto* found = forecast(settings);
    if (found == nullptr) return;
    const auto plain = found->memory;
    std::deque<Change> for_state, for_activations;
    const auto add = [&](auto& means, const char* key, const std::string& value) {
      if (may_set(key)) means.push_back({{key, value}});
    };
    for (int zero = 1; sizes.dp > 1 && zero <= 3; ++zero)
      if (zero == 3 || state_of(plain, sizes.dp, zero) < options_.memory) add(for_state, kZero, std::to_string(zero));
    if (sizes.dp > 1) add(for_state, kOffload, "true");
    auto micro = found->micro_batch;
    for (int halved = 0; micro > 1 || halved <= 2; ++halved) {
      if (halved == 2 && !options_.recomputes) add(for_activations, kRecompute, "true");
      if (micro > 1) add(for_activations, kMicroBatch, std::to_string(micro = (micro + 1) / 2));
    }
    auto smallest = *found;
    while (!fits(smallest) && !(for_state.empty() && for_activations.empty())) {
      const auto& held = smallest.memory;
      const bool by_state =
          for_activations.empty() ||
          (!for_state.empty() && static_cast<double>(held.peak - held.activations) > options_.memory / 2);
      auto& means = by_state ? for_state : for_activations;
      const auto next = changed(settings, means.front());
      means.pop_front();
      const auto* with_means = forecast(next);
      if (!is_complete_) return;
      if (with_means == nullptr || with_means->memory.peak > smallest.memory.peak) continue;
      settings = next;
      smallest = *with_means;
    }
    if (!fits(smallest)) {
      too_large_.push_back({settings, smallest});
      return;
    }
    // What needs means that cost time can become faster when it is split more. ZeRO 1 and 2 cost little.
    auto plainest = settings;
    if (may_set(kZero) && settings.contains(kZero) && settings.at(kZero) != "3") plainest.erase(kZero);
    const bool has_room = plainest == layout_of(sizes);
    if (sizes.pp > 1) improve_pipeline(settings, smallest);
    fastest_ = std::min(fastest_, smallest.time.step);
    if (has_room && smallest.time.step > kSlow * fastest_) slow_.insert(sizes);
  }

  /// A pipeline's time depends most on its microbatches (many shorten the bubble, and each one costs its launches) and
  /// on whether the gradients of weights fill the bubble.
  void improve_pipeline(Settings& settings, Forecast& found) {
    const auto improves = [&](const char* key, const std::string& value) {
      if (!may_set(key)) return false;
      const auto next = changed(settings, {{key, value}});
      const auto* better = forecast(next);
      if (better == nullptr || !fits(*better) || better->time.step >= found.time.step) return false;
      settings = next;
      found = *better;
      return true;
    };
    const auto share = share_of(*text::integer(settings.at("parallel.dp")));
    while (found.micro_batch < share && improves(kMicroBatch, std::to_string(std::min(share, 2 * found.micro_batch))))
      continue;
    improves("parallel.schedule", "\"zb_h1\"");
  }

  /// The other values of one key after another.
  [[nodiscard]] std::vector<std::vector<Change>> changes_of(const Settings& settings, const Forecast& found) const {
    const auto has = [&](const char* key) { return settings.contains(key); };
    std::vector<std::vector<Change>> keys;
    const auto of_key = [&](const char* key, const std::vector<std::string>& values) {
      auto& changes = keys.emplace_back();
      for (const auto& value : values) changes.push_back({{key, value}});
    };
    const auto dp = *text::integer(settings.at("parallel.dp")), micro = found.micro_batch;
    std::vector<std::string> sizes;
    const auto share = share_of(dp);
    const bool is_default = !has("parallel.pp") && !options_.sets_micro_batch && 2 * micro >= share;
    if (micro < share) sizes.push_back(is_default ? "" : std::to_string(std::min(share, 2 * micro)));
    if (micro > 1) sizes.push_back(std::to_string((micro + 1) / 2));
    of_key(kMicroBatch, sizes);
    const bool recomputes = has(kRecompute) ? settings.at(kRecompute) == "true" : options_.recomputes;
    of_key(kRecompute, {recomputes == options_.recomputes ? (recomputes ? "false" : "true") : ""});
    if (recomputes)
      for (auto less = micro; 4 * less > micro && less > 1;) {
        less = (less + 1) / 2;
        keys.push_back({{{kRecompute, options_.recomputes ? "false" : ""}, {kMicroBatch, std::to_string(less)}}});
      }
    if (dp > 1) {
      keys.push_back({{{kZero, ""}, {kOffload, ""}}});
      for (const auto* zero : {"1", "2", "3"}) keys.back().push_back({{kZero, zero}});
      if (has(kOffload)) of_key(kOffload, {""});
    }
    if (has("parallel.pp")) {
      constexpr const char *schedule = "parallel.schedule", *chunks = "plugin.hybrid_parallel.num_model_chunks";
      keys.emplace_back();
      for (const auto* name : {"", "\"zb_h1\"", "\"zbv\"", "\"interleaved\""})
        keys.back().push_back({{schedule, name}, {chunks, ""}});
      keys.back().push_back({{schedule, "\"interleaved\""}, {chunks, "4"}});
    }
    if (has("parallel.sp"))
      of_key("parallel.sp_mode", {"\"all_to_all\"", "\"ring_attn\""});
    else if (has("parallel.tp"))
      of_key("parallel.sp_mode", {"", "\"split_gather\"", "\"ring\""});
    if (has(kZero) && settings.at(kZero) == "3") of_key("plugin.hybrid_parallel.overlap_allgather", {"true"});
    return keys;
  }

  void refine(Candidate best) {
    for (bool improved = true; improved;) {
      improved = false;
      for (const auto& changes : changes_of(best.settings, best.forecast))
        for (const auto& change : changes)
          if (auto better = better_with(best, change)) {
            best = *std::move(better);
            improved = true;
          }
    }
  }

  /// The candidate with this change, and what ZeRO must save then, if that is better and fits.
  std::optional<Candidate> better_with(const Candidate& best, const Change& change) {
    if (!std::all_of(change.begin(), change.end(), [&](const auto& set) { return may_set(set.first); }))
      return std::nullopt;
    const auto next = changed(best.settings, change);
    for (const auto* zero : {"", "1", "2", "3"}) {
      const bool is_asked = *zero == '\0';
      if (!is_asked && (best.settings.at("parallel.dp") == "1" || !may_set(kZero))) break;
      const auto settings = is_asked ? next : changed(next, {{kZero, zero}});
      const auto* found = forecast(settings);
      if (found == nullptr) continue;
      Candidate candidate{settings, *found};
      if (is_better(candidate, best) && fits(*found)) return candidate;
    }
    return std::nullopt;
  }

  /// One for each way to divide the ranks.
  void refine_fastest() {
    constexpr std::size_t kRefined = 4;
    std::set<std::string> refined;
    for (const auto& each : fitting()) {
      std::string sizes;
      for (const auto* key : {"parallel.pp", "parallel.sp", "parallel.tp"})
        if (const auto at = each.settings.find(key); at != each.settings.end()) sizes += key + at->second;
      if (refined.size() < kRefined && refined.insert(sizes).second) refine(each);
    }
  }

  const SearchOptions& options_;
  const ForecastOf& forecast_of_;
  std::chrono::steady_clock::time_point begun_ = std::chrono::steady_clock::now();
  std::map<Settings, Forecast> known_;  ///< nodes, to which pointers stay valid
  std::vector<Candidate> too_large_;
  std::set<Sizes> slow_;  ///< what splits these more is not tried
  double fastest_ = std::numeric_limits<double>::infinity();
  std::string problem_;
  int forecasts_ = 0;
  bool is_complete_ = true;
};

}  // namespace

std::string layout_text(const Settings& settings) {
  std::vector<std::string> words;
  for (const auto& [key, value] : settings) {
    const bool is_short = key.starts_with("parallel.");
    const bool is_quoted = is_short && value.starts_with('"');
    words.push_back((is_short ? key.substr(9) : key) + "=" + (is_quoted ? value.substr(1, value.size() - 2) : value));
  }
  return text::join(words, ",");
}

SearchResult search(const SearchOptions& options, const ForecastOf& forecast_of) {
  return Searching(options, forecast_of).run();
}

std::string why_none(const SearchOptions& options, const SearchResult& result) {
  const auto ranks = text::quantity(options.ranks, "rank");
  if (result.forecasts == 0)
    return fmt::format("no layout of {} has the sizes that [parallel] sets; change or remove them", ranks);
  if (result.too_large.empty())
    return fmt::format("no layout of {} can run this file; the first one: {}", ranks, result.problem);
  const auto& [settings, smallest] = result.too_large.front();
  return fmt::format("no layout of {} fits into {}; the smallest{} needs {}: use more ranks, or ranks with more memory",
                     ranks, text::bytes(options.memory),
                     settings.empty() ? "" : fmt::format(", {},", layout_text(settings)),
                     text::bytes(static_cast<double>(smallest.memory.peak)));
}

}  // namespace trireme::plan
