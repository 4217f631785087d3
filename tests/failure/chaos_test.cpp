// Whatever ends a training at whatever moment, the same command goes on from its newest checkpoint, and the results are
// those of a run that was never disturbed: weights bit for bit, and each number of metrics.jsonl once. A disturbance is
// the death (SIGKILL) of a random rank or of all processes at a random time, the death of a rank at a random one of its
// file operations, or an operation that fails. save_faults_test fails each operation of a save in turn.
//   TRIREME_TEST_REPEAT=32   32 times as many disturbances: more than 2,000 (1: 64)
//   TRIREME_TEST_SEED=N      the random numbers of an earlier run, which has printed N
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <random>

#include "tests/command/metrics.h"
#include "tests/command/small_run.h"
#include "tests/failure/file_faults.h"

namespace trireme::tests {
namespace {

constexpr int kDisturbances = 16;       // of each layout
constexpr std::size_t kMostOfARun = 6;  // then it may end

// 36 steps with dropout, augmentation and an average of the weights, and a checkpoint after every second one.
const char* const kData =
    "[data]\nname = \"leaves\"\nimages = 60\nimage_size = 16\nflip = true\nrandom_resized_crop = true\nworkers = 1\n";
const char* const kTrain =
    "epochs = 6\nglobal_batch = 8\neval_every = 4\nmax_norm = 1.0\nema_decay = 0.9\nbest = \"validation.loss\"\n";

struct Layout {
  std::string what;
  int ranks;
  std::vector<std::string> before, after;  ///< of the command's own words
};
void PrintTo(const Layout& layout, std::ostream* out) { *out << layout.what; }

const std::vector<Layout>& layouts() {
  static const std::vector<Layout> all{
      {"one_process", 1, {}, {}},
      {"zero", 2, {}, {"--ranks", "2", "--set", "parallel.plugin=low_level_zero"}},
      {"pipeline", 2, {}, {"--ranks", "2", "--set", "parallel.pp=2", "--set", "train.micro_batch=2"}},
      {"trireme_launch", 2, {"launch", "-n", "2"}, {}},
  };
  return all;
}

struct Run : SmallRun {
  Run() : SmallRun(kData, kTrain) {}
  [[nodiscard]] ProcessResult start(const Layout& layout, const ProcessOptions& options = {}) const {
    std::vector<std::string> words;
    if (!layout.before.empty()) words.emplace_back(TRIREME_COMMAND);
    words.insert(words.end(), layout.before.begin(), layout.before.end());
    words.insert(words.end(), {TRIREME_COMMAND, "train", config, "--set", "run.checkpoint_every=2", "--set",
                               "model.dropout=0.1", "--set", "model.num_layers=2"});
    words.insert(words.end(), layout.after.begin(), layout.after.end());
    return run_process(words, options);
  }
  /// The path of the newest complete checkpoint; "" if there is none.
  [[nodiscard]] std::string newest() const {
    std::string out;
    std::error_code none;
    for (const auto& entry : fs::directory_iterator(dir() + "/checkpoints", none))
      if (!entry.path().has_extension()) out = std::max(out, entry.path().string());
    return out;
  }
  [[nodiscard]] bool is_finished() const {
    return fs::exists(dir() + "/summary.json") && json_of(dir() + "/summary.json").value("finished", false);
  }
  /// What must not depend on disturbances: the weights, and the metrics without times.
  [[nodiscard]] std::vector<std::string> results() const {
    std::vector<std::string> out;
    for (const char* name : {"/model/model.safetensors", "/model-best/model.safetensors"})
      out.push_back(content_of(dir() + name));
    for (const auto& text : lines_of(content_of(dir() + "/metrics.jsonl"))) {
      auto line = nlohmann::json::parse(text);
      if (line.value("event", "") == "start" || line.value("event", "") == "save") continue;
      for (const char* key :
           {"time", "seconds", "epoch_seconds", "data_wait", "samples_per_s", "flops_per_s", "worker_samples_per_s"})
        line.erase(key);
      out.push_back(line.dump());
    }
    return out;
  }
  void expect_nothing_temporary() const {
    for (const auto& entry : fs::recursive_directory_iterator(dir()))
      EXPECT_EQ(entry.path().filename().string().find("tmp"), std::string::npos) << entry.path();
  }
};

/// An undisturbed run, and how long the disturbances may wait.
struct Straight {
  std::vector<std::string> results;
  double seconds = 0;
  std::vector<std::int64_t> operations;  ///< of each rank
};

Straight run_straight(const Layout& layout) {
  const Run run;
  const auto counts = run.folder.path() + "/count";
  const auto result = run.start(
      layout, {.environment = {"LD_PRELOAD=" TRIREME_FAULTS, "FAULT_FOLDER=" + run.dir(), "FAULT_COUNT=" + counts}});
  EXPECT_EQ(result.code, 0) << result.err;
  Straight out{run.results(), 1.3 * result.seconds, {}};  // with syncs it takes longer
  for (int rank = 0; rank < layout.ranks; ++rank) {
    const auto suffix = layout.ranks == 1 ? "" : std::to_string(rank);
    out.operations.push_back(0);
    std::ifstream(counts + "." + suffix).read(reinterpret_cast<char*>(&out.operations.back()), sizeof(std::int64_t));
    EXPECT_GT(out.operations.back(), 50) << layout.what << ", rank " << rank;
  }
  return out;
}

class Disturber {
 public:
  explicit Disturber(unsigned seed) : random_(seed) {}

  /// Disturbs runs of the layout until there were so many disturbances.
  void disturb(const Layout& layout, const Straight& straight, int wanted) {
    const int before = total();
    while (total() - before < wanted && !::testing::Test::HasFailure()) {
      const Run run;
      for (std::size_t starts = 1;; ++starts) {
        const bool in_peace = starts > kMostOfARun || total() - before >= wanted;
        // A process may die when all is done but its exit: the same command then trains anew.
        const auto newest = run.is_finished() ? "" : run.newest();
        history_ += " " + fs::path(newest).filename().string();
        const auto result = in_peace ? run.start(layout) : start_disturbed(run, layout, straight);
        check_start(run, result, newest, in_peace);
        if (::testing::Test::HasFailure()) return;
        if (result.code == 0) break;
      }
      EXPECT_TRUE(run.results() == straight.results) << layout.what << history_ << difference(run, straight);
      history_.clear();
      ++runs_;
    }
  }
  [[nodiscard]] int total() const { return ranks_killed_ + jobs_killed_ + killed_at_operation_ + errors_; }
  void report(unsigned seed) const {
    std::printf(
        "seed %u: %d disturbances of %d runs: %d ranks and %d jobs killed, %d ranks killed at an operation, %d "
        "errors; %d in a save\n",
        seed, total(), runs_, ranks_killed_, jobs_killed_, killed_at_operation_, errors_, in_saves_);
  }

 private:
  std::int64_t below(std::int64_t end) { return std::uniform_int_distribution<std::int64_t>(0, end - 1)(random_); }

  ProcessResult start_disturbed(const Run& run, const Layout& layout, const Straight& straight) {
    const auto kind = below(4);
    const auto result = kind < 2 ? start_and_kill(run, layout, straight, kind == 0)
                                 : start_with_fault(run, layout, straight, kind == 2);
    std::error_code none;
    for (const auto& entry : fs::directory_iterator(run.dir() + "/checkpoints", none))
      if (entry.path().extension() == ".tmp") {
        ++in_saves_;
        break;
      }
    return result;
  }

  ProcessResult start_and_kill(const Run& run, const Layout& layout, const Straight& straight, bool one) {
    const double after = straight.seconds * static_cast<double>(below(1000)) / 1000;
    history_ += std::string(one ? ", a rank" : ", all") + " killed after " + std::to_string(after) + " s:";
    const auto choice = below(1 << 20);
    const auto result =
        run.start(layout, {.meanwhile =
                               [&](pid_t launcher) {
                                 auto victims = one ? run.ranks() : processes_with(run.config);
                                 if (victims.empty()) victims = {launcher};
                                 if (one) victims = {victims[static_cast<std::size_t>(choice) % victims.size()]};
                                 for (const pid_t id : victims) kill(id, SIGKILL);
                               },
                           .after = after});
    if (result.code != 0) ++(one ? ranks_killed_ : jobs_killed_);
    EXPECT_FALSE(result.hung) << history_;
    return result;
  }

  ProcessResult start_with_fault(const Run& run, const Layout& layout, const Straight& straight, bool dies) {
    const auto rank = below(layout.ranks), count = straight.operations[static_cast<std::size_t>(rank)];
    // The few operations of a start, and those of the end, as often as all others.
    const std::int64_t edge = std::min<std::int64_t>(count, 80);
    const std::int64_t at[] = {1 + below(edge), count - below(edge), 1 + below(count), 1 + below(count)};
    const int error = dies ? 0 : std::vector{ENOSPC, EIO, EROFS, EDQUOT}[static_cast<std::size_t>(below(4))];
    const auto which = static_cast<std::size_t>(below(4));
    history_ += ", rank " + std::to_string(rank) + " error " + std::to_string(error) + " at " +
                std::to_string(at[which]) + " of " + std::to_string(count) + ":";
    ProcessOptions options{.environment = {"LD_PRELOAD=" TRIREME_FAULTS, "FAULT_FOLDER=" + run.dir(),
                                           "FAULT_AT=" + std::to_string(at[which]),
                                           "FAULT_ERROR=" + std::to_string(error)}};
    if (layout.ranks > 1) options.environment.push_back("FAULT_RANK=" + std::to_string(rank));
    if (below(2) == 1) options.environment.emplace_back("FAULT_LASTING=1");
    const auto result = run.start(layout, options);
    if (result.code == 0) return result;  // the operation was not reached, or may fail
    ++(dies ? killed_at_operation_ : errors_);
    if (!dies && layout.before.empty()) expect_refusal(result, 7, strerror(error));
    if (!dies && !layout.before.empty()) {
      // `trireme launch` names the rank in a message of its own. Its code is that of the rank that ends first, which
      // may be one that missed the failed one (5).
      EXPECT_TRUE(result.code == 7 || result.code == 5) << history_ << result.code << result.err;
      EXPECT_NE(result.err.find(strerror(error)), std::string::npos) << history_ << result.err;
    }
    return result;
  }

  /// The start went on from the checkpoint that was the newest then, and no process is left of it.
  void check_start(const Run& run, const ProcessResult& result, const std::string& newest, bool in_peace) const {
    run.expect_all_gone();
    EXPECT_EQ(result.err.find("skipped"), std::string::npos) << history_ << result.err;
    if (!newest.empty()) {
      EXPECT_EQ(result.out.find("no checkpoint"), std::string::npos) << history_ << newest << result.out;
    }
    const auto from = result.out.find("resume    from ");
    if (from != std::string::npos) {
      EXPECT_EQ(result.out.substr(from).find("resume    from " + newest), 0U) << history_ << newest << result.out;
    }
    if (!in_peace) return;
    EXPECT_EQ(result.code, 0) << history_ << result.err;
    EXPECT_EQ(from == std::string::npos, newest.empty()) << history_ << newest << result.out;
    run.expect_nothing_temporary();
  }

  static std::string difference(const Run& run, const Straight& straight) {
    const auto results = run.results();
    std::string out = "\n" + std::to_string(results.size()) + " results for " + std::to_string(straight.results.size());
    for (std::size_t i = 0; i < std::min(results.size(), straight.results.size()); ++i)
      if (results[i] != straight.results[i])
        return out + (i < 2 ? "\nother weights" : "\n" + results[i] + "\n" + straight.results[i]);
    return out;
  }

  std::mt19937 random_;
  std::string history_;  ///< of the present run: what was done, and the newest checkpoint after it
  int ranks_killed_ = 0, jobs_killed_ = 0, killed_at_operation_ = 0, errors_ = 0, in_saves_ = 0, runs_ = 0;
};

class Chaos : public testing::TestWithParam<Layout> {};

TEST_P(Chaos, ADisturbedRunEndsAsAnUndisturbedOne) {
  const char *wanted = std::getenv("TRIREME_TEST_REPEAT"), *given = std::getenv("TRIREME_TEST_SEED");
  const int repeats = wanted == nullptr ? 1 : std::max(1, std::atoi(wanted));
  const auto seed = given == nullptr ? std::random_device()() : static_cast<unsigned>(std::atoll(given));
  std::printf("TRIREME_TEST_SEED=%u\n", seed);
  std::fflush(stdout);
  Disturber disturber(seed);
  const auto straight = run_straight(GetParam());
  for (int repeat = 0; repeat < repeats && !HasFailure(); ++repeat) {
    disturber.disturb(GetParam(), straight, kDisturbances);
    disturber.report(seed);
    std::fflush(stdout);
  }
  EXPECT_TRUE(HasFailure() || disturber.total() >= kDisturbances * repeats);
}

INSTANTIATE_TEST_SUITE_P(Layouts, Chaos, testing::ValuesIn(layouts()),
                         [](const auto& test) { return test.param.what; });

}  // namespace
}  // namespace trireme::tests
