// examples/own_model: a user's model with its policy has the same losses in each layout, and docs/add-a-model.md shows
// its code and its output as they are.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <sstream>
#include <string>
#include <vector>

#include "tests/command/process.h"
#include "tests/examples/document.h"

namespace trireme::tests {
namespace {

constexpr double kBound = 1e-9;

std::vector<std::string> split_arguments(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> arguments;
  for (std::string word; stream >> word;) arguments.push_back(word);
  return arguments;
}

enum class By { launch, mpirun };

/// `launch` costs less; the document's commands are run as they are.
ProcessResult own_model(int ranks, const std::vector<std::string>& keys, By launcher = By::launch) {
  std::vector<std::string> command;
  if (ranks > 1 && launcher == By::mpirun)
    command = {
        TRIREME_TEST_MPIRUN, "--oversubscribe", "--quiet", "--mca", "mpi_yield_when_idle", "1", "--bind-to", "none"};
  else if (ranks > 1)
    command = {TRIREME_COMMAND, "launch"};
  if (ranks > 1) command.insert(command.end(), {"-n", std::to_string(ranks)});
  command.push_back(OWN_MODEL);
  command.insert(command.end(), keys.begin(), keys.end());
  return run_process(command, {.environment = {"OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
                                               "OMP_NUM_THREADS=1", "TRIREME_PLUGIN_PATH=" TRIREME_TEST_PLUGINS}});
}

/// The numbers after "loss" in lines such as "step   3  loss 1.5" and "accuracy 25 %, loss 1.5".
std::vector<double> losses(const std::string& text) {
  std::vector<double> out;
  for (const auto& line : lines_of(text))
    if (const auto at = line.find("loss "); at != std::string::npos) out.push_back(std::stod(line.substr(at + 5)));
  return out;
}

struct Started {
  int ranks;
  std::string keys;
};

// 30 samples per step make the ranks' shares and the microbatches uneven.
TEST(OwnModel, HasTheSameLossesInEachLayout) {
  const std::vector<std::string> common{"train.max_steps=4", "train.global_batch=30"};
  const auto reference = own_model(1, common);
  ASSERT_EQ(reference.code, 0) << reference.err;
  const auto expected = losses(reference.err);
  ASSERT_EQ(expected.size(), 5U) << reference.err;
  EXPECT_GT(std::abs(expected[0] - expected[1]), 1e-3);  // the model learns
  for (const auto& [ranks, keys] :
       std::vector<Started>{{1, "train.micro_batch=7 train.recompute=true"},
                            {1, "parallel.plugin=torch_ddp"},
                            {2, ""},
                            {2, "parallel.zero=2 train.micro_batch=7"},
                            {2, "parallel.tp=2"},
                            {2, "parallel.pp=2"},
                            {2, "parallel.pp=2 parallel.schedule=zb_h1 train.micro_batch=7 train.recompute=true"},
                            {2, "parallel.plugin=gemini"},
                            {3, "parallel.tp=3 plugin.hybrid_parallel.zero_stage=0"},
                            {4, "parallel.tp=2 parallel.pp=2"},
                            {4, "parallel.pp=2 parallel.schedule=zbv"},
                            {4, "parallel.pp=2 parallel.schedule=zbv parallel.zero=2 train.recompute=true"},
                            {4, "parallel.pp=4 parallel.schedule=gpipe plugin.hybrid_parallel.num_microbatches=5"},
                            {4, "parallel.tp=2 parallel.zero=1"}}) {
    SCOPED_TRACE(std::to_string(ranks) + " ranks, " + keys);
    auto all = split_arguments(keys);
    all.insert(all.end(), common.begin(), common.end());
    const auto result = own_model(ranks, all);
    ASSERT_EQ(result.code, 0) << result.err;
    const auto got = losses(result.err);
    ASSERT_EQ(got.size(), expected.size()) << result.err;
    for (std::size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], expected[i], kBound * expected[i]) << i;
  }
}

TEST(OwnModel, RefusesKeysThatItDoesNotUse) {
  for (const std::string set :
       {"run.seed=3", "data.workers=3", "train.eval_batch=4", "optimizer.name=sgd", "schedule.name=cosine"}) {
    const auto result = own_model(1, {set});
    EXPECT_EQ(result.code, 2) << set;
    EXPECT_EQ(result.err, "own_model: --set " + set + ": own_model does not use this key\n");
  }
  const auto unknown = own_model(1, {"train.epohcs=3"});
  EXPECT_NE(unknown.err.find("did you mean \"epochs\"?"), std::string::npos) << unknown.err;
}

TEST(OwnModel, DocumentShowsItsCode) {
  const auto code = read("examples/own_model/reader.h") + read("examples/own_model/own_model.cpp");
  const auto shown = code_blocks(read("docs/add-a-model.md"), "cpp");
  EXPECT_GE(shown.size(), 3U);
  for (const auto& block : shown) EXPECT_NE(code.find(block), std::string::npos) << block;
}

// A block of the document holds commands such as "$ mpirun -n 2 own_model keys...", each followed by its output.
TEST(OwnModel, DocumentShowsItsOutput) {
  int commands = 0;
  for (const auto& block : code_blocks(read("docs/add-a-model.md"), "")) {
    ProcessResult result;
    std::size_t next_loss = 0;
    for (const auto& line : lines_of(block)) {
      if (auto arguments = split_arguments(line); line.rfind("$ ", 0) == 0) {
        const bool many = arguments[1] == "mpirun";
        const auto program = std::find(arguments.begin(), arguments.end(), "own_model");
        ASSERT_NE(program, arguments.end()) << line;
        const int ranks = many ? std::stoi(*(program - 1)) : 1;
        if (many) {  // the command works as root, and with more ranks than cores
          EXPECT_NE(line.find("mpirun --allow-run-as-root --oversubscribe -n "), std::string::npos) << line;
        }
        arguments.erase(arguments.begin(), program + 1);
        result = own_model(ranks, arguments, By::mpirun);
        next_loss = 0;
        ++commands;
      } else if (const auto shown = losses(line); !shown.empty()) {
        const auto got = losses(result.err);
        ASSERT_LT(next_loss, got.size()) << result.err;
        EXPECT_NEAR(got[next_loss++], shown[0], kBound * shown[0]) << line;
      } else if (line != "...") {
        EXPECT_NE(result.err.find(line + "\n"), std::string::npos) << line << "\nis not in\n" << result.err;
      }
    }
  }
  EXPECT_GE(commands, 5);
}

}  // namespace
}  // namespace trireme::tests
