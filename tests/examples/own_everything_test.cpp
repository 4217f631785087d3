// examples/own_everything: an extension's kinds are selected, checked and explained like built-in ones, and
// docs/extensions.md and docs/pipeline.md show its code as it is.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "tests/command/refusal.h"
#include "tests/examples/document.h"

namespace trireme::tests {
namespace {

const std::string kFile = TRIREME_SOURCE_DIR "/examples/own_everything/own_everything.toml";
const std::string kExtensions = "run.extensions=[\"" OWN_EVERYTHING "\"]";

ProcessResult trireme(std::vector<std::string> arguments, const std::string& folder) {
  arguments.insert(arguments.begin(), TRIREME_COMMAND);
  arguments.insert(arguments.end(), {"--set", kExtensions});
  return run_process(arguments, {.environment = {"OMP_NUM_THREADS=1", "XDG_CACHE_HOME=" + folder}, .folder = folder});
}

TEST(OwnEverything, TrainsFromAFileAndIsEvaluated) {
  const TemporaryFolder folder;
  const auto run = trireme({"train", kFile, "--set", "train.epochs=6"}, folder.path());
  ASSERT_EQ(run.code, 0) << run.err;
  EXPECT_NE(run.out.find("RMSprop, inverse_sqrt with 40 warm-up steps"), std::string::npos) << run.out;
  std::stringstream written;
  written << std::ifstream(folder.path() + "/runs/own_everything/config.toml").rdbuf();
  const auto resolved = written.str();
  for (const auto* line : {"name = \"wave_net\"", "width = 24", "name = \"waves\"", "samples = 480", "points = 32",
                           "task = \"robust_regression\"", "delta = 0.2", "close = 0.1", "name = \"rmsprop\"",
                           "alpha = 0.95", "name = \"inverse_sqrt\"", "extensions = [\"" OWN_EVERYTHING "\"]"})
    EXPECT_NE(resolved.find(line), std::string::npos) << line << "\n" << resolved;
  EXPECT_NE(run.out.find("fastest   a step in "), std::string::npos) << run.out;
  // The last epoch is the best one, or has a line of its own.
  const auto last = run.out.substr(std::min(run.out.find("\nlast "), run.out.find(", the last: ")));
  const auto close = last.substr(last.find("close "), last.find(" %") - last.find("close "));
  const auto eval = trireme({"eval", "runs/own_everything", "--ranks", "2"}, folder.path());
  ASSERT_EQ(eval.code, 0) << eval.err;
  EXPECT_NE(eval.out.find(close), std::string::npos) << eval.out << "\nexpected: " << close;
}

TEST(OwnEverything, TunesItsOwnSwitch) {
  const TemporaryFolder folder;
  const auto run = trireme({"tune", kFile, "--set", "optimize.candidates=[\"denormals\"]"}, folder.path());
  ASSERT_EQ(run.code, 0) << run.err;
  EXPECT_NE(run.out.find("denormals=zero"), std::string::npos) << run.out;
  EXPECT_EQ(run.out.find("rejected"), std::string::npos) << run.out;
}

TEST(OwnEverything, ComputesTheSameInEveryLayout) {
  const TemporaryFolder folder;
  const auto run =
      trireme({"verify", kFile, "--steps", "4", "--layouts",
               "dp=1; dp=2; tp=2; pp=2; pp=2,schedule=breadth_first; dp=2,zero=2; dp=2,zero=3; plugin=gemini,dp=2; "
               "dp=2,tp=2,zero=1"},
              folder.path());
  EXPECT_EQ(run.code, 0) << run.out << run.err;
  EXPECT_NE(run.out.find("all 9 layouts compute the same"), std::string::npos) << run.out;
}

// The experts of a layer are one parameter, which ranks divide, and each is a tensor of its own in a model's files.
TEST(OwnEverything, ExportsAndLoadsEachExpert) {
  const TemporaryFolder folder;
  const std::string run = "runs/own_everything";
  const auto train = [&](std::vector<std::string> sets) {
    std::vector<std::string> arguments{
        "train", kFile, "--ranks", "2", "--set", "data.samples=128", "--set", "schedule.warmup_steps=2"};
    for (auto& set : sets) arguments.insert(arguments.end(), {"--set", std::move(set)});
    const auto out = trireme(arguments, folder.path());
    EXPECT_EQ(out.code, 0) << out.err;
    EXPECT_EQ(out.out.find("not in this model"), std::string::npos) << out.out;
  };
  const auto expect_equal = [&](const std::string& a, const std::string& b) {
    const auto out = run_process({TRIREME_COMMAND, "checkpoint", "diff", a, b, "--weights"}, {.folder = folder.path()});
    EXPECT_EQ(out.code, 0) << out.out << out.err;
  };
  train({"train.epochs=1", "parallel.tp=2"});
  std::stringstream file;
  file << std::ifstream(folder.path() + "/" + run + "/model/model.safetensors").rdbuf();
  for (const auto* name :
       {"mixed.mixture.gate", "mixed.mixture.experts.0.up.weight", "mixed.mixture.experts.2.down.weight"})
    EXPECT_NE(file.str().find(std::string("\"") + name + "\""), std::string::npos) << name;
  EXPECT_EQ(file.str().find("\"mixed.mixture.up\""), std::string::npos);
  expect_equal(run, run + "/model");
  expect_equal(run + "/model", run + "/model-best");
  const auto exported =
      run_process({TRIREME_COMMAND, "checkpoint", "export", run, "--to", "exported"}, {.folder = folder.path()});
  EXPECT_EQ(exported.code, 0) << exported.err;
  expect_equal(run + "/model", "exported");
  train({"train.epochs=2", "parallel.zero=3"});  // goes on from the other layout
  expect_equal(run, run + "/model");
  train({"train.epochs=1", "parallel.pp=2", "run.dir=runs/tuned", "model.weights=exported"});
}

TEST(OwnEverything, ExplainsAndChecksItsKeys) {
  const TemporaryFolder folder;
  const auto explained = trireme({"config", kFile, "--explain", "train.delta"}, folder.path());
  EXPECT_EQ(explained.out,
            "train.delta\n  Errors above this count linearly.\n  value    a number, above 0\n  default  0.5\n"
            "  applies  only with task = robust_regression\n");
  const auto schedules = trireme({"config", kFile, "--explain", "pp_style"}, folder.path());
  EXPECT_NE(schedules.out.find("\"1f1b\" or \"breadth_first\" or \"gpipe\""), std::string::npos) << schedules.out;
  const auto refused = [&](const std::vector<std::string>& sets, const char* says) {
    std::vector<std::string> arguments{"train", kFile, "--ranks", "2"};
    for (const auto& set : sets) arguments.insert(arguments.end(), {"--set", set});
    expect_only_refusal(trireme(arguments, folder.path()), 2, says);
  };
  refused({"train.delta=0"}, "train.delta=0: it must be above 0");
  refused({"data.noize=1"}, "no key \"noize\" in [data]; did you mean \"noise\"?");
  refused({"model.experts=1", "parallel.tp=2"},
          "parallel.tp=2: 2 ranks cannot share 1 experts of \"mixed.mixture\"; choose at most 1");
  refused({"data.flip=true"}, "has no effect with name = \"waves\"; remove it, or set name to cifar10 or ");
  refused({"optimizer.name=rmspro"},
          "must be one of hybrid_adam, lamb, lars, lion, rmsprop, sgd; did you mean \"rmsprop\"?");
  refused({"parallel.pp=2", "parallel.schedule=breath_first"},
          "must be one of 1f1b, breadth_first, gpipe, interleaved, zb_h1, zbv; did you mean \"breadth_first\"?");
  refused({"train.best=validation.accuracy"}, "is no metric of this task (known: validation.loss, validation.close)");
}

TEST(OwnEverything, RefusesFilesThatAreNotExtensions) {
  const TemporaryFolder folder;
  const auto refused = [&](const std::string& paths, const char* says) {
    expect_only_refusal(
        run_process({TRIREME_COMMAND, "train", kFile, "--ranks", "2", "--set", "run.extensions=" + paths},
                    {.folder = folder.path()}),
        2, says);
  };
  refused("[\"/nowhere.so\"]", "/nowhere.so is not a file that can be read; give the path of an extension's .so");
  refused("[\"" MY_PLUGIN "\"]", "exports no trireme_extend; it is a plugin: name it in parallel.plugin");
  refused("[\"" TRIREME_COMMAND "\"]", "it is no Trireme plugin or extension");
  refused("[\"" OWN_EVERYTHING "\", \"" OWN_EVERYTHING "\"]",
          "the model \"wave_net\" exists already; choose another name");
}

TEST(OwnEverything, DocumentShowsItsCode) {
  const auto code = read("examples/own_everything/own_everything.cpp");
  auto shown = code_blocks(read("docs/extensions.md"), "cpp");
  for (auto& block : code_blocks(read("docs/pipeline.md"), "cpp")) shown.push_back(std::move(block));
  EXPECT_EQ(shown.size(), 6U);
  for (const auto& block : shown) EXPECT_NE(code.find(block), std::string::npos) << block;
}

}  // namespace
}  // namespace trireme::tests
