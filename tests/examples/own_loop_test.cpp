// examples/own_loop: a stopped training resumes with the same losses, also on another number of ranks, and docs/cpp.md
// shows its code as it is. examples/my_plugin passes `trireme verify`.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "tests/command/process.h"
#include "tests/examples/document.h"

namespace trireme::tests {
namespace {

const ProcessOptions kOptions{.environment = {"OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM",
                                              "OMP_NUM_THREADS=1", "TRIREME_PLUGIN_PATH=" TRIREME_TEST_PLUGINS}};

/// Runs the example with the command that it and docs/cpp.md give.
ProcessResult own_loop(int ranks, std::vector<std::string> arguments) {
  std::vector<std::string> command;
  if (ranks > 1) command = {TRIREME_TEST_MPIRUN, "--allow-run-as-root", "--oversubscribe", "-n", std::to_string(ranks)};
  command.emplace_back(OWN_LOOP);
  command.insert(command.end(), arguments.begin(), arguments.end());
  return run_process(command, kOptions);
}

TEST(OwnLoop, ResumesWithTheSameLosses) {
  const TemporaryFolder folder;
  const auto straight = own_loop(1, {folder.path() + "/straight"});
  ASSERT_EQ(straight.code, 0) << straight.err;
  const auto expected = lines_of(straight.err);
  ASSERT_EQ(expected.size(), 9U) << straight.err;
  EXPECT_EQ(expected.back(), "accuracy 100.0 %");

  for (const int ranks : {1, 4}) {
    const auto dir = folder.path() + "/stopped" + std::to_string(ranks);
    ASSERT_EQ(own_loop(1, {dir, "3"}).code, 0);
    const auto rest = own_loop(ranks, {dir});
    ASSERT_EQ(rest.code, 0) << rest.err;
    const auto got = lines_of(rest.err);
    ASSERT_EQ(got.size(), 7U) << rest.err;
    EXPECT_EQ(got[0], "goes on after step 39");
    for (std::size_t i = 1; i < 6; ++i) {
      const auto& wanted = expected[i + 2];
      EXPECT_EQ(got[i].substr(0, 7), wanted.substr(0, 7));
      const auto loss = [](const std::string& line) { return std::stod(line.substr(line.find("loss ") + 5)); };
      if (ranks == 1)
        EXPECT_EQ(got[i], wanted);
      else  // fp32 sums are taken in another order
        EXPECT_NEAR(loss(got[i]), loss(wanted), 1e-3 * loss(wanted));
    }
  }
}

TEST(OwnLoop, RefusesWrongArgumentsAndAFolderInUse) {
  const TemporaryFolder folder;
  const auto& dir = folder.path();
  std::vector<std::pair<std::vector<std::string>, std::string>> cases{
      {{}, "usage: own_loop RUN_DIR [EPOCHS]"},
      {{""}, "the folder for the results has an empty name; write . for the working directory"}};
  for (const std::string epochs : {"abc", "2x", "-1", "0", "20", ""})
    cases.push_back({{dir + "/run", epochs}, "EPOCHS: \"" + epochs + "\" is not a whole number from 1 to 8"});
  for (const auto& [arguments, message] : cases) {
    const auto result = own_loop(1, arguments);
    EXPECT_EQ(result.code, 2);
    EXPECT_EQ(result.err, "own_loop: " + message + "\n");
  }
  EXPECT_FALSE(std::filesystem::exists(dir + "/run"));
  const auto second = run_process({"flock", folder.write(".lock", ""), OWN_LOOP, dir}, kOptions);
  EXPECT_EQ(second.code, 2);
  EXPECT_EQ(second.err,
            "own_loop: another run is writing to " + dir + "; wait until it ends, or name another folder\n");
  EXPECT_FALSE(std::filesystem::exists(dir + "/checkpoints"));
}

TEST(OwnLoop, DocumentShowsItsCode) {
  const auto code = read("examples/own_loop/own_loop.cpp") + read("examples/own_loop/CMakeLists.txt");
  const auto shown = code_blocks(read("docs/cpp.md"), "cpp");
  EXPECT_GE(shown.size(), 9U);
  for (const auto& block : shown) EXPECT_NE(code.find(block), std::string::npos) << block;
}

TEST(MyPlugin, PassesVerify) {
  const TemporaryFolder folder;
  const auto file = folder.write("run.toml",
                                 "[run]\ndevice = \"cpu\"\n[model]\nname = \"vit\"\nhidden_size = 16\nnum_layers = 1\n"
                                 "num_heads = 2\nintermediate_size = 32\npatch_size = 8\n[data]\nname = \"leaves\"\n"
                                 "images = 60\nimage_size = 16\n[train]\nglobal_batch = 8\n");
  const std::string mine = "plugin=" MY_PLUGIN;
  const auto result = run_process(
      {TRIREME_COMMAND, "verify", file, "--layouts", "dp=1; dp=2," + mine + "; dp=2,train.micro_batch=1," + mine},
      kOptions);
  EXPECT_EQ(result.code, 0) << result.out << result.err;
  EXPECT_NE(result.out.find("all 3 layouts compute the same"), std::string::npos) << result.out;
}

}  // namespace
}  // namespace trireme::tests
