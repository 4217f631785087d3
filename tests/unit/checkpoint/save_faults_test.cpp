// Every file operation of a save fails once, in each way: with an error, with errors from then on, or the process dies
// at it. Afterwards the earlier or the new checkpoint is there, whole; nothing of a name that counts is damaged; and
// the next save leaves nothing temporary. The same for a folder with an exported model.
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <optional>
#include <stdexcept>

#include "core/base/files/files.h"
#include "core/checkpoint/checkpoint_save.h"
#include "core/checkpoint/formats/safetensors.h"
#include "core/checkpoint/train_state.h"
#include "core/checkpoint/weights/model_files.h"
#include "core/checkpoint/weights/model_folder.h"
#include "core/resume/export_checkpoint.h"
#include "tests/failure/file_faults.h"
#include "tests/unit/checkpoint/folder.h"
#include "trireme.h"

namespace trireme::checkpoint {
namespace {

namespace fs = std::filesystem;
using tests::FileFaults;
using Names = std::vector<std::string>;

/// The state of a run at a step: each value depends on it.
struct State {
  std::vector<nn::Parameter> parameters;
  explicit State(std::int64_t step) {
    for (const char* name : {"layer.weight", "layer.bias"})
      parameters.push_back({name, at::full({3, 5}, static_cast<double>(step)), shard::Placement::whole(name, {3, 5})});
  }
  [[nodiscard]] CheckpointContents contents(const std::string& run, std::int64_t step) const {
    CheckpointContents out;
    out.record.progress = {0, step, step, step * 8};
    out.record.config = "[run]\n";
    out.weights = out.optimizer = weights_of(parameters);
    out.average = out.weights;
    out.texts = {{"config.json", "{}\n"}};
    out.best = run + "/best.safetensors";
    out.best_digest = digest_file(out.best);
    return out;
  }
};

SavedCheckpoint save(const std::string& run, std::int64_t step, std::int64_t keep) {
  return CheckpointSave(run, State(step).contents(run, step), keep, alone(), Storage{}).run();
}

/// Expects that the checkpoint has its step's values.
void expect_values(const std::string& folder) {
  const auto step = step_of_folder(folder);
  const Checkpoint stored(folder);
  EXPECT_EQ(stored.record().progress.global_step, step) << folder;
  EXPECT_EQ(bytes_of(stored.best()), "the best") << folder;
  const State expected(step);
  for (const auto* file : {&stored.weights(), &stored.optimizer(), stored.average()})
    for (const auto& p : expected.parameters)
      EXPECT_TRUE(at::equal(file->read(p.name, p.placement), p.value)) << folder << " " << p.name;
}

/// How a save ended.
struct Outcome {
  std::optional<std::string> problem;
  std::string warning;
};

/// Whether `body` does file operation number `at`: it runs in a process that dies there.
template <class Body>
bool dies(std::int64_t at, const Body& body) {
  const auto child = ::fork();
  if (child < 0) throw std::runtime_error("cannot fork");
  if (child == 0) {
    FileFaults faults;
    faults.at = at;
    body(faults);
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  const bool died = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
  EXPECT_TRUE(died || status == 0);
  return died;
}

/// A run with checkpoints, in which one more is saved.
struct Scenario {
  const char* what;
  std::vector<std::int64_t> earlier;
  std::int64_t step, keep;
  bool no_exchange = false;

  void prepare(const std::string& run) const {
    put_bytes(run + "/best.safetensors", "the best");
    for (const auto at : earlier) save(run, at, 10);
    if (!earlier.empty()) fs::create_directories(checkpoint_folder(run, earlier.back() + 1) + kTemporary);  // a crash's
  }
  [[nodiscard]] Outcome save_with(const std::string& run, FileFaults& faults) const {
    faults.folder = run;
    faults.no_exchange = no_exchange;
    Outcome out;
    tests::file_faults = &faults;
    try {
      out.warning = save(run, step, keep).warning;
    } catch (const CheckpointError& error) {
      out.problem = error.what();
    }
    tests::file_faults = nullptr;
    return out;
  }
  void expect_earlier_kept(const std::string& run) const {
    for (const auto step_before : earlier) {
      EXPECT_TRUE(fs::exists(checkpoint_folder(run, step_before))) << step_before;
      if (step_before == step) {
        EXPECT_TRUE(fs::exists(checkpoint_folder(run, step) + (no_exchange ? kReplaced : kTemporary)));
      }
    }
  }
  /// Whatever has happened in the save: a start finds a good checkpoint, and the run goes on from it.
  void expect_good(const std::string& run, bool is_saved) const {
    const auto newest = newest_checkpoint(run, Log());
    for (const auto& folder : complete_checkpoints(run)) expect_values(folder);
    const auto found = newest.empty() ? -1 : step_of_folder(newest);
    const auto before = earlier.empty() ? -1 : earlier.back();
    EXPECT_TRUE(found == step || (found == before && !is_saved)) << "found step " << found;
    save(run, 90, 1);
    EXPECT_EQ(names_in(run + "/checkpoints"), Names{"step-00000090"});
  }
};

class SaveFaults : public ::testing::Test {
 protected:
  /// Thousands of small files are made: in memory, where the machine has such a folder.
  static void SetUpTestSuite() {
    if (::access("/dev/shm", W_OK) == 0) ::setenv("TMPDIR", "/dev/shm", 0);
  }
};

const std::vector<Scenario>& scenarios() {
  static const std::vector<Scenario> all{
      {"the first", {}, 3, 2},
      {"a later one", {1, 2}, 3, 2},
      {"the only one that is kept", {2}, 3, 1},
      {"of the same step", {1, 3}, 3, 1},
      {"of the same step, without an exchange of names", {3}, 3, 1, true},
  };
  return all;
}

Names operations_of(const Scenario& scenario) {
  const TestFolder run;
  scenario.prepare(run.path());
  FileFaults faults;
  faults.list = true;
  const auto [problem, warning] = scenario.save_with(run.path(), faults);
  EXPECT_FALSE(problem.has_value());
  EXPECT_EQ(warning, "");
  for (auto& operation : faults.operations) operation.erase(operation.find(run.path()), run.path().size());
  return faults.operations;
}

/// Runs `body` with a fresh copy of the scenario's run for each operation.
void for_each_operation(const std::function<void(const Scenario&, const std::string& run, std::int64_t at)>& body) {
  std::int64_t count = 0;
  for (const auto& scenario : scenarios()) {
    const TestFolder prepared;
    scenario.prepare(prepared.path());
    const auto operations = operations_of(scenario);
    ASSERT_GE(operations.size(), 50U) << scenario.what;
    for (std::size_t i = 0; i < operations.size(); ++i) {
      SCOPED_TRACE(std::string(scenario.what) + ", at " + operations[i]);
      const TestFolder run;
      fs::copy(prepared.path(), run.path(), fs::copy_options::recursive);
      body(scenario, run.path(), static_cast<std::int64_t>(i) + 1);
      ++count;
    }
  }
  ::testing::Test::RecordProperty("operations", static_cast<int>(count));
}

TEST_F(SaveFaults, TheProcessDiesAtEachOperation) {
  for_each_operation([](const Scenario& scenario, const std::string& run, std::int64_t at) {
    EXPECT_TRUE(dies(at, [&](FileFaults& faults) { (void)scenario.save_with(run, faults); }));
    scenario.expect_good(run, false);
  });
}

TEST_F(SaveFaults, EachOperationFailsOnceOrFromThenOn) {
  std::size_t refused = 0, warned = 0, all = 0;
  for (const bool lasting : {false, true})
    for_each_operation([&](const Scenario& scenario, const std::string& run, std::int64_t at) {
      FileFaults faults;
      faults.at = at;
      faults.error = std::vector{ENOSPC, EIO, EROFS, EDQUOT}[static_cast<std::size_t>(at) % 4];
      faults.lasting = lasting;
      faults.list = true;
      const auto [problem, warning] = scenario.save_with(run, faults);
      ++all;
      if (!warning.empty()) {
        // The new one has its name, which may not be on the disk. What the run would go on from without it is kept.
        ++warned;
        EXPECT_FALSE(problem.has_value());
        EXPECT_TRUE(warning.starts_with(run + "/checkpoints: cannot be ") &&
                    warning.ends_with(std::strerror(faults.error)))
            << warning;
        scenario.expect_earlier_kept(run);
      }
      if (problem) {
        ++refused;
        EXPECT_NE(problem->find(std::strerror(faults.error)), std::string::npos) << *problem;
        // A rename back is one more operation that may fail; the next start does it then.
        const bool could_remove = !(lasting && scenario.no_exchange) &&
                                  !faults.operations[static_cast<std::size_t>(at) - 1].starts_with("unlink");
        for (const auto& name : fs::exists(run + "/checkpoints") ? names_in(run + "/checkpoints") : Names{})
          EXPECT_FALSE(could_remove && name.ends_with(".tmp"))
              << name << " is left of a save that failed: " << *problem;
      }
      scenario.expect_good(run, !problem);
    });
  EXPECT_EQ(warned, 2 * 2 * scenarios().size());  // to open the folder, and to sync it
  EXPECT_GT(2 * refused, all);                    // the rest are removals, and what file systems need not have
}

/// A folder with a model, or none yet, which another model replaces.
struct Replacement {
  const char* what;
  bool has_model, no_exchange = false;

  /// Folders beside the model's that have nothing to do with it.
  static Names users_names() { return {"model.export.tmp", "model.old.tmp", "model.tmp"}; }
  /// Its values and its text say which model it is.
  static std::string write(const std::string& folder, int number) {
    ModelFolder model(folder);
    write_model(model.next(), {{"w", {3, 5}, at::kFloat}},
                [&](std::size_t) {
                  return at::full({3, 5}, number, at::kFloat);
                },
                {}, {{"config.json", std::to_string(number)}});
    model.keep_others();
    return model.publish();
  }
  /// Which model the folder has, of which nothing may be missing; 0: there is no folder.
  static int number_in(const std::string& folder) {
    if (!fs::exists(folder)) return 0;
    const auto text = bytes_of(folder + "/config.json");
    const auto number = text.empty() ? -1 : std::stoi(text);
    EXPECT_TRUE(at::equal(SafeTensors(folder + "/" + kModelTensors).read("w"), at::full({3, 5}, number, at::kFloat)))
        << folder;
    return number;
  }
  void prepare(const std::string& root) const {
    for (const auto& name : users_names()) {
      fs::create_directory(root + "/" + name);
      put_bytes(root + "/" + name + "/notes.txt", "a user's own");
    }
    if (!has_model) return;
    write(root + "/model", 1);
    put_bytes(root + "/model/notes.txt", "a user's own");
  }
  [[nodiscard]] Outcome write_with(const std::string& root, FileFaults& faults) const {
    faults.folder = root;
    faults.no_exchange = no_exchange;
    Outcome out;
    tests::file_faults = &faults;
    try {
      out.warning = write(root + "/model", 2);
    } catch (const CheckpointError& error) {
      out.problem = error.what();
    }
    tests::file_faults = nullptr;
    return out;
  }
  /// The earlier model or the new one is there, and the next export finds nothing in its way.
  void expect_one(const std::string& root, bool is_new) const {
    const auto folder = root + "/model";
    const auto number = number_in(folder);
    if (number == 0 && has_model)
      EXPECT_TRUE(no_exchange && number_in(replaced_model(folder)) == 1) << "no model is there";
    else
      EXPECT_TRUE(number == 2 || (!is_new && number == (has_model ? 1 : 0))) << number;
    write(folder, 3);
    EXPECT_EQ(number_in(folder), 3);
    auto expected = users_names();
    expected.insert(expected.begin(), "model");
    EXPECT_EQ(names_in(root), expected);
    for (const auto& name : users_names())
      EXPECT_EQ(bytes_of(root + "/" + name + "/notes.txt"), "a user's own") << name;
    EXPECT_EQ(fs::exists(folder + "/notes.txt"), has_model);
  }
};

/// Calls `body` for each operation, with a fresh copy of the folder.
void for_each_replacement(
    const std::function<void(const Replacement&, const std::string& root, std::int64_t at)>& body) {
  for (const auto& how : {Replacement{"a new folder", false},
                          {"over an earlier model", true},
                          {"without an exchange of names", true, true}}) {
    FileFaults counted;
    const TestFolder once;
    how.prepare(once.path());
    EXPECT_FALSE(how.write_with(once.path(), counted).problem.has_value());
    ASSERT_GE(counted.count->load(), 12) << how.what;
    for (std::int64_t at = 1; at <= counted.count->load(); ++at) {
      SCOPED_TRACE(fmt::format("{}, at operation {}", how.what, at));
      const TestFolder root;
      how.prepare(root.path());
      body(how, root.path(), at);
    }
  }
}

TEST_F(SaveFaults, AProcessThatExportsDiesAtEachOperation) {
  for_each_replacement([](const Replacement& how, const std::string& root, std::int64_t at) {
    EXPECT_TRUE(dies(at, [&](FileFaults& faults) { (void)how.write_with(root, faults); }));
    how.expect_one(root, false);
  });
}

TEST_F(SaveFaults, EachOperationOfAnExportFailsOnceOrFromThenOn) {
  for (const bool lasting : {false, true})
    for_each_replacement([&](const Replacement& how, const std::string& root, std::int64_t at) {
      FileFaults faults;
      faults.at = at;
      faults.error = ENOSPC;
      faults.lasting = lasting;
      const auto [problem, warning] = how.write_with(root, faults);
      how.expect_one(root, !problem);
    });
}

// A whole checkpoint with all its texts, exported anew over what the death before has left.
TEST_F(SaveFaults, AnExportOfACheckpointThatDiesLeavesAWholeModel) {
  const TestFolder root;
  const auto out = root.path() + "/out";
  const auto write = [&](const char* dtype) {
    train::export_checkpoint(TRIREME_SOURCE_DIR "/tests/golden/checkpoint_format_1", out, {.dtype = dtype},
                             builtin_kinds().models);
  };
  const auto written = [&] { return bytes_of(out + "/model.safetensors"); };
  Names whole;
  for (const auto* dtype : {"bf16", "fp32"}) {
    write(dtype);
    whole.push_back(written());
  }
  ASSERT_NE(whole[0], whole[1]);
  const auto names = names_in(out);
  EXPECT_EQ(names, (Names{"config.json", "model.safetensors", "preprocessor_config.json"}));
  for (const auto& name : {"out.export.tmp", "out.old.tmp"}) {
    fs::create_directory(root.path() + "/" + name);
    put_bytes(root.path() + "/" + name + "/notes.txt", "a user's own");
  }
  std::int64_t deaths = 0;
  const auto dies_next = [&] {
    return dies(deaths + 1, [&](FileFaults& faults) {
      faults.folder = root.path();
      tests::file_faults = &faults;
      write(deaths % 2 == 0 ? "fp32" : "bf16");
    });
  };
  for (; dies_next(); ++deaths) {
    SCOPED_TRACE(deaths);
    EXPECT_TRUE(written() == whole[0] || written() == whole[1]);
    EXPECT_EQ(names_in(out), names);
  }
  EXPECT_GE(deaths, 12);
  write("fp32");
  EXPECT_EQ(names_in(root.path()), (Names{"out", "out.export.tmp", "out.old.tmp"}));
  for (const auto& name : {"/out.export.tmp", "/out.old.tmp"})
    EXPECT_EQ(bytes_of(root.path() + name + "/notes.txt"), "a user's own");
}

}  // namespace
}  // namespace trireme::checkpoint
