// The tuner's decisions, on steps whose times are simulated.
#include "core/tune/tuner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "core/base/error.h"

namespace trireme::tune {
namespace {

/// A step of 100 ms by default. Choices multiply its time; they interact in no other way.
class SimulatedStep final : public TunedStep {
 public:
  struct Way {
    double factor = 1, error = 1e-6;
    bool same_bits = true;
    std::int64_t peak = 100 << 20;
  };
  explicit SimulatedStep(double noise = 0.01, unsigned seed = 1) : noise_(noise), random_(seed) {}

  /// Adds a switch whose choices are `ways`, the default first.
  void add(const std::string& name, const std::vector<Way>& ways, bool changes_numbers = false) {
    Switch made{.name = name, .choices = {}};
    now[name] = ways.front();
    for (std::size_t i = 0; i < ways.size(); ++i)
      made.choices.push_back(
          {std::to_string(i), [this, name, way = ways[i]] { now[name] = way; }, changes_numbers && i > 0});
    switches.push_back(std::move(made));
  }

  Measured run() override {
    ++steps;
    Measured step{.passes = time() * std::exp(noise_ * normal_(random_)), .update = 0};
    for (const auto& [name, way] : now) step.peak = std::max(step.peak, way.peak);
    return step;
  }
  Checked check() override {
    Checked checked{.same_bits = true, .errors = {.loss = {1e-7}, .gradients = {1e-6, 1e-6}, .change = {1e-3, 1e-3}}};
    for (const auto& [name, way] : now) {
      checked.same_bits = checked.same_bits && way.same_bits;
      checked.errors.gradients[1] = std::max(checked.errors.gradients[1], way.error);
    }
    if (!has_reference) checked.errors = {};
    checked.seconds = 2 * time();
    return checked;
  }
  bool stops() override { return steps > stops_after; }

  /// Without noise.
  [[nodiscard]] double time() const {
    double time = 0.1;
    for (const auto& [name, way] : now) time *= way.factor;
    return time;
  }

  std::vector<Switch> switches;
  std::map<std::string, Way> now;
  int steps = 0, stops_after = 1 << 30;
  bool has_reference = true;

 private:
  double noise_;
  std::mt19937 random_;
  std::normal_distribution<double> normal_;
};

const Candidate& row(const Tuning& tuning, const std::string& name) {
  const auto found =
      std::find_if(tuning.candidates.begin(), tuning.candidates.end(), [&](const auto& c) { return c.name == name; });
  if (found == tuning.candidates.end()) throw UsageError("there is no candidate " + name);
  return *found;
}

TEST(Tuner, FindsTheFastestWithin3PercentInNineOfTenRuns) {
  int good = 0;
  constexpr unsigned kRuns = 40;
  for (unsigned seed = 0; seed < kRuns; ++seed) {
    std::mt19937 draw(seed);
    std::uniform_real_distribution<double> factor(0.7, 1.3);
    SimulatedStep step(/*noise=*/0.03, seed);
    double best = 0.1;
    for (const auto* name : {"a", "b", "c", "d"}) {
      const std::vector<SimulatedStep::Way> ways{{1}, {factor(draw)}, {factor(draw)}};
      best *= std::min({1.0, ways[1].factor, ways[2].factor});
      step.add(name, ways);
    }
    const auto tuning = tune(step, step.switches, {});
    good += step.time() <= 1.03 * best ? 1 : 0;
    EXPECT_NEAR(tuning.gain * step.time() / 0.1, 1, 0.1);
  }
  EXPECT_GE(good, 0.9 * kRuns);
}

TEST(Tuner, RejectsWhatIsWrongAndWhatNeedsMoreMemory) {
  SimulatedStep step;
  step.add("wrong", {{1}, {.factor = 0.5, .error = 1e-4, .same_bits = false}});
  step.add("large", {{1}, {.factor = 0.5, .peak = 110 << 20}});
  step.add("other", {{1}, {.factor = 0.5, .error = 1e-2, .same_bits = false}}, /*changes_numbers=*/true);
  step.add("rounds", {{1}, {.factor = 0.8, .error = 1.9e-6, .same_bits = false}});
  const auto tuning = tune(step, step.switches, {});
  EXPECT_EQ(tuning.chosen, std::vector<std::string>{"rounds=1"});
  EXPECT_FALSE(tuning.same_bits);
  EXPECT_NEAR(step.time(), 0.08, 1e-12);
  EXPECT_EQ(row(tuning, "wrong=1").numbers, NumberClass::wrong);
  EXPECT_EQ(row(tuning, "wrong=1").verdict,
            "rejected: block 1: the error of its gradient is 1.0e-04, 1.0e-06 by the default");
  EXPECT_EQ(row(tuning, "large=1").verdict, "rejected: it needs 110 MiB, the default 100");
  EXPECT_EQ(row(tuning, "other=1").numbers, NumberClass::other_precision);
  EXPECT_NEAR(row(tuning, "other=1").gain, 2, 0.1);  // it is measured, and shown
  EXPECT_FALSE(row(tuning, "other=1").chosen);
  EXPECT_EQ(row(tuning, "rounds=1").numbers, NumberClass::rounding);
}

TEST(Tuner, ChoosesAnotherPrecisionIfItIsNamed) {
  SimulatedStep step;
  step.add("other", {{1}, {.factor = 0.5, .error = 1e-2, .same_bits = false}}, /*changes_numbers=*/true);
  const auto tuning = tune(step, step.switches, {.candidates = {"other=1"}});
  EXPECT_EQ(tuning.chosen, std::vector<std::string>{"other=1"});
}

TEST(Tuner, TakesOnlySameBitsWithoutAReference) {
  SimulatedStep step;
  step.has_reference = false;
  step.add("rounds", {{1}, {.factor = 0.5, .same_bits = false}});
  step.add("same", {{1}, {.factor = 0.8}});
  const auto tuning = tune(step, step.switches, {});
  EXPECT_EQ(tuning.chosen, std::vector<std::string>{"same=1"});
  EXPECT_TRUE(tuning.same_bits);
  EXPECT_EQ(row(tuning, "rounds=1").verdict, "rejected: other bits, and no float64 reference to judge them by");
}

TEST(Tuner, KeepsItsBudget) {
  for (const double budget : {0.5, 2.0, 5.0, 20.0}) {
    SimulatedStep step;
    for (const auto* name : {"a", "b", "c", "d", "e"}) step.add(name, {{1}, {1.01}, {0.99}});
    const auto tuning = tune(step, step.switches, {.budget_s = budget});
    EXPECT_LE(tuning.seconds, std::max(budget, 0.7)) << budget;  // the default is measured in any case
    EXPECT_TRUE(budget > 0.6 || !tuning.is_complete);
    for (const auto& candidate : tuning.candidates)
      EXPECT_TRUE(budget > 1 || candidate.verdict == "not tried: the time is used up") << candidate.name;
  }
  SimulatedStep step;
  step.add("a", {{1}, {0.5}});
  EXPECT_EQ(row(tune(step, step.switches, {.budget_steps = 5}), "a=1").verdict, "not tried: the time is used up");
}

TEST(Tuner, DoesNotMeasureWhatIsMuchSlower) {
  SimulatedStep step;
  step.add("slow", {{1}, {20}});
  const auto tuning = tune(step, step.switches, {});
  EXPECT_EQ(row(tuning, "slow=1").verdict, "not faster");
  EXPECT_LE(step.steps, 8);
}

TEST(Tuner, StopsWhenItIsAskedTo) {
  SimulatedStep step;
  step.stops_after = 12;
  for (const auto* name : {"a", "b", "c"}) step.add(name, {{1}, {0.9}});
  const auto tuning = tune(step, step.switches, {});
  EXPECT_LE(step.steps, 14);
  EXPECT_EQ(tuning.not_tuned, "the run was asked to stop");
}

TEST(Tuner, BeginsWithTheLargestPartOfTheStep) {
  SimulatedStep step;
  step.add("small", {{1}, {1}});
  step.add("large", {{1}, {1}});
  step.add("update", {{1}, {1}});
  step.switches[0].share = 0.1;
  step.switches[2].part = StepPart::update;  // which takes no time here
  const auto tuning = tune(step, step.switches, {});
  EXPECT_EQ(tuning.candidates[0].name, "large=1");
  EXPECT_EQ(tuning.candidates[1].name, "small=1");
  EXPECT_EQ(tuning.candidates[2].name, "update=1");
}

TEST(Tuner, TakesTheNamedCandidatesAlone) {
  SimulatedStep step;
  step.add("a", {{1}, {1}, {1}});
  step.add("b", {{1}, {1}});
  const auto by_switch = wanted(step.switches, {"a"});
  ASSERT_EQ(by_switch.size(), 1U);
  EXPECT_EQ(by_switch[0].choices.size(), 3U);
  const auto by_choice = wanted(step.switches, {"a=2", "b"});
  ASSERT_EQ(by_choice.size(), 2U);
  ASSERT_EQ(by_choice[0].choices.size(), 2U);
  EXPECT_EQ(by_choice[0].choices[1].name, "2");
  EXPECT_THROW(static_cast<void>(wanted(step.switches, {"a=7"})), ConfigError);
  EXPECT_EQ(problem_of_candidates({"a=1", "treads"}, {"a", "threads"}),
            "there is no switch \"treads\" (known: a, threads); did you mean \"threads\"?");
}

TEST(Tuner, SelectsAllOrNothing) {
  SimulatedStep step;
  step.add("a", {{1}, {0.5}});
  EXPECT_EQ(select(step.switches, {"a=1", "b=1"}), std::vector<std::string>{"b=1"});
  EXPECT_EQ(step.time(), 0.1);
  EXPECT_TRUE(select(step.switches, {"a=1"}).empty());
  EXPECT_EQ(step.time(), 0.05);
}

}  // namespace
}  // namespace trireme::tune
