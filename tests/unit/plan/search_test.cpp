// The search over layouts, with forecasts of a made-up machine in place of the engine's.
#include "core/plan/search.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "core/base/text.h"

namespace trireme::plan {
namespace {

/// A training of a batch of 64 samples on 8 ranks: `weights` bytes of weights, as many of gradients, twice as many of
/// optimizer state, and activations of 10 bytes a sample.
struct MadeUp {
  double weights = 80;
  double tp_cost = 3, pp_cost = 2;  ///< seconds of messages and bubbles for each rank more
  std::vector<Settings> asked{};

  Forecast operator()(const Settings& s) {
    asked.push_back(s);
    const auto number = [&](const char* key, std::int64_t otherwise) {
      const auto at = s.find(key);
      return at == s.end() ? otherwise : *text::integer(at->second);
    };
    const auto has = [&](const char* key, const std::string& value) { return s.contains(key) && s.at(key) == value; };
    const auto dp = number("parallel.dp", 1), pp = number("parallel.pp", 1), sp = number("parallel.sp", 1),
               tp = number("parallel.tp", 1), zero = number("parallel.zero", 0);
    Forecast out;
    if (tp > 4) out.problem = "4 heads";
    if (zero > 0 && dp == 1) out.problem = "ZeRO without ranks";
    const bool offloads = has("plugin.hybrid_parallel.cpu_offload", "true");
    if (offloads && zero == 0) out.problem = "offloads nothing";
    const auto share = 64 / dp;
    const auto micro = number("train.micro_batch", pp > 1 ? std::max<std::int64_t>(1, share / (4 * pp)) : share);
    const bool recomputes = has("train.recompute", "true");
    const double part = weights / static_cast<double>(pp * tp);
    const auto by_zero = [&](int from) { return zero >= from ? static_cast<double>(dp) : 1.0; };
    auto& memory = out.memory;
    memory.weights = static_cast<std::int64_t>(part / by_zero(3));
    memory.gradients = static_cast<std::int64_t>(part / by_zero(2));
    memory.optimizer = offloads ? 0 : static_cast<std::int64_t>(2 * part / by_zero(1));
    memory.activations = static_cast<std::int64_t>(10.0 * static_cast<double>(micro) / static_cast<double>(sp * tp)) /
                         (recomputes ? 5 : 1);
    memory.peak = memory.weights + memory.gradients + memory.optimizer + memory.activations;
    out.micro_batch = micro;
    out.samples = 64;
    const double microbatches = static_cast<double>(share) / static_cast<double>(micro);
    const double bubble = static_cast<double>(pp - 1) * pp_cost * (has("parallel.schedule", "\"zbv\"") ? 0.5 : 1);
    out.time.step = 100 * (recomputes ? 1.3 : 1) + static_cast<double>((tp - 1) + 2 * (sp - 1)) * tp_cost + bubble +
                    0.1 * microbatches + (zero == 3 ? 8 : 0) + (offloads ? 50 : 0);
    return out;
  }
};

SearchResult searched(MadeUp& made_up, SearchOptions options) {
  options.ranks = 8;
  options.global_batch = 64;
  return search(options, [&](const Settings& settings) { return made_up(settings); });
}

std::string best_of(const SearchResult& result) {
  return result.fitting.empty() ? "" : layout_text(result.fitting.front().settings);
}

/// Of all settings of the made-up training.
double least_seconds(MadeUp made_up, double memory) {
  double least = std::numeric_limits<double>::infinity();
  for (const auto* sizes :
       {"8 1 1 1", "4 2 1 1", "4 1 2 1", "4 1 1 2", "2 4 1 1", "2 2 2 1", "2 2 1 2", "2 1 4 1", "2 1 2 2", "2 1 1 4",
        "1 8 1 1", "1 4 2 1", "1 4 1 2", "1 2 4 1", "1 2 2 2", "1 2 1 4", "1 1 8 1", "1 1 4 2", "1 1 2 4"})
    for (const auto* zero : {"0", "1", "2", "3"})
      for (const auto* micro : {"1", "2", "4", "8", "16", "32", "64"})
        for (const auto* recompute : {"false", "true"})
          for (const auto* offload : {"false", "true"}) {
            const auto size = text::split(sizes, ' ');
            const auto found = made_up({{"parallel.dp", size[0]},
                                        {"parallel.pp", size[1]},
                                        {"parallel.sp", size[2]},
                                        {"parallel.tp", size[3]},
                                        {"parallel.zero", zero},
                                        {"parallel.schedule", "\"zbv\""},
                                        {"train.micro_batch", micro},
                                        {"train.recompute", recompute},
                                        {"plugin.hybrid_parallel.cpu_offload", offload}});
            if (found.problem.empty() && static_cast<double>(found.memory.peak) <= memory)
              least = std::min(least, found.time.step);
          }
  return least;
}

TEST(Search, FindsTheFastestThatFits) {
  const struct {
    double weights, memory, tp_cost = 3, pp_cost = 2;
    const char* best = "";  ///< where it is plain
  } cases[] = {
      // Bytes of state are 4 x weights, of activations 80 for 8 samples.
      {.weights = 80, .memory = 1e9, .best = "dp=8"},
      {.weights = 80, .memory = 400, .best = "dp=8"},
      {.weights = 80, .memory = 300, .best = "dp=8,zero=1"},
      {.weights = 80, .memory = 255},
      {.weights = 80, .memory = 150},
      {.weights = 80, .memory = 100},
      {.weights = 80, .memory = 50, .tp_cost = 0.1},
      {.weights = 80, .memory = 255, .pp_cost = 40},
      {.weights = 400, .memory = 430},
      {.weights = 400, .memory = 430, .tp_cost = 0.1, .pp_cost = 40},
      {.weights = 400, .memory = 199, .pp_cost = 40},
  };
  for (const auto& c : cases) {
    MadeUp made_up{.weights = c.weights, .tp_cost = c.tp_cost, .pp_cost = c.pp_cost};
    const auto result = searched(made_up, {.memory = c.memory});
    SCOPED_TRACE(fmt::format("{} in {}: {}", c.weights, c.memory, best_of(result)));
    ASSERT_FALSE(result.fitting.empty());
    EXPECT_LE(result.fitting.front().forecast.time.step, 1.01 * least_seconds(made_up, c.memory));
    EXPECT_TRUE(*c.best == '\0' || best_of(result) == c.best);
    EXPECT_TRUE(result.is_complete);
    for (const auto& each : result.fitting) {
      EXPECT_LE(static_cast<double>(each.forecast.memory.peak), c.memory);
      EXPECT_EQ(each.forecast.problem, "");
      EXPECT_GE(each.forecast.time.step, result.fitting.front().forecast.time.step);
    }
    for (const auto& each : result.too_large) EXPECT_GT(static_cast<double>(each.forecast.memory.peak), c.memory);
    EXPECT_EQ(static_cast<int>(made_up.asked.size()), result.forecasts);
  }
}

TEST(Search, SaysWhatIsTooLargeAndWhatCannotRun) {
  MadeUp made_up{.weights = 8000};
  const auto result = searched(made_up, {.memory = 300});
  EXPECT_TRUE(result.fitting.empty());
  ASSERT_FALSE(result.too_large.empty());
  const auto smallest = result.too_large.front().forecast.memory.peak;
  for (const auto& each : result.too_large) EXPECT_GE(each.forecast.memory.peak, smallest);
  const auto none = search({.ranks = 8}, [](const Settings&) {
    Forecast out;
    out.problem = "no file";
    return out;
  });
  EXPECT_TRUE(none.fitting.empty() && none.too_large.empty());
  EXPECT_EQ(none.problem, "no file");
  MadeUp other;
  const SearchOptions three{.ranks = 8, .given = {{"parallel.tp", "3"}}};
  const auto unlike = searched(other, three);
  EXPECT_TRUE(other.asked.empty());
  EXPECT_NE(why_none(three, unlike).find("no layout of 8 ranks has the sizes"), std::string::npos);
}

TEST(Search, ChangesNeitherFixedKeysNorBatchStatistics) {
  MadeUp fixed, batch_norms;
  searched(fixed, {.memory = 150, .fixed = {"train.micro_batch", "train.recompute"}});
  for (const auto& settings : fixed.asked)
    EXPECT_FALSE(settings.contains("train.micro_batch") || settings.contains("train.recompute"));
  searched(batch_norms, {.memory = 150, .keeps_microbatches = true});
  for (const auto& settings : batch_norms.asked)
    EXPECT_FALSE(settings.contains("train.micro_batch") || settings.contains("parallel.pp"));
}

TEST(Search, EndsAtItsLimitWithWhatItHas) {
  for (const int most : {3, 10}) {
    MadeUp made_up;
    const auto result = searched(made_up, {.most_forecasts = most});
    EXPECT_EQ(result.forecasts, most);
    EXPECT_FALSE(result.is_complete);
    EXPECT_EQ(best_of(result), "dp=8");
    const bool improves = std::any_of(made_up.asked.begin(), made_up.asked.end(),
                                      [](const auto& settings) { return settings.contains("parallel.zero"); });
    EXPECT_EQ(improves, most == 10) << "a part of the limit is left for the fastest of the divisions";
  }
}

TEST(Search, SplitsNoFurtherWhatIsSlowAlready) {
  const auto asked = [](const MadeUp& made_up, const char* key, const char* size) {
    return std::any_of(made_up.asked.begin(), made_up.asked.end(),
                       [&](const auto& settings) { return settings.contains(key) && settings.at(key) == size; });
  };
  MadeUp slow{.tp_cost = 50};
  EXPECT_TRUE(searched(slow, {}).is_complete);
  EXPECT_TRUE(asked(slow, "parallel.tp", "2") && asked(slow, "parallel.pp", "8"));
  EXPECT_FALSE(asked(slow, "parallel.tp", "4") || asked(slow, "parallel.sp", "4"));
  MadeUp large{.weights = 400, .tp_cost = 50};  // does not fit without means that cost time
  searched(large, {.memory = 210});
  EXPECT_TRUE(asked(large, "parallel.tp", "4"));
}

TEST(Search, TurnsOffWhatTheFileSetsAndDoesNotNeed) {
  MadeUp made_up;
  searched(made_up, {.recomputes = true, .sets_micro_batch = true});
  const auto asked = [&](const char* key, const char* value) {
    return std::count_if(made_up.asked.begin(), made_up.asked.end(),
                         [&](const auto& settings) { return settings.contains(key) && settings.at(key) == value; });
  };
  EXPECT_GT(asked("train.recompute", "false"), 0);
  EXPECT_EQ(asked("train.recompute", "true"), 0);
}

TEST(Search, WritesLayoutsAsTheCommandTakesThem) {
  EXPECT_EQ(layout_text({{"parallel.dp", "2"}, {"parallel.schedule", "\"zbv\""}, {"train.recompute", "true"}}),
            "dp=2,schedule=zbv,train.recompute=true");
}

}  // namespace
}  // namespace trireme::plan
