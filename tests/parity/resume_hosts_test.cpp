// Hosts without a shared file system: each keeps what its ranks have written, and the same layout goes on from it; what
// another layout lacks is named. A script plays the hosts: it sets which host and which rank there mpirun names, and
// the working folder, in which the run's folder is.
#include <gtest/gtest.h>

#include "tests/parity/resume.h"

namespace trireme::tests {
namespace {

/// 4 ranks on two hosts, whose folders are host-0 and host-1.
class HostsResume : public Resume {
 protected:
  void SetUp() override {
    Resume::SetUp();
    std::ofstream(root_ / "rank") << "#!/bin/sh\nexport OMPI_COMM_WORLD_LOCAL_RANK=$((OMPI_COMM_WORLD_RANK % 2)) "
                                     "OMPI_COMM_WORLD_LOCAL_SIZE=2\ncd "
                                  << root_.string()
                                  << "/host-$((OMPI_COMM_WORLD_RANK / 2)) && exec " TRIREME_COMMAND " \"$@\"\n";
    fs::permissions(root_ / "rank", fs::perms::owner_all);
    for (const char* host : {"host-0", "host-1"}) {
      fs::create_directories(root_ / host / "texts");
      std::ofstream text(root_ / host / "texts/a.txt");
      for (int i = 0; i < 300; ++i) text << "line " << i * i << " of a text\n";
    }
  }

  /// Returns the exit code; the output is in NAME.log.
  int try_on_hosts(const std::string& name, const std::string& keys) const {
    return run(name, TRIREME_TEST_MPIRUN
                         " -n 4 --oversubscribe --allow-run-as-root --bind-to none --quiet --mca "
                         "mpi_yield_when_idle 1 " +
                         (root_ / "rank").string() + " train ../run.toml" + common(name) + keys);
  }
  void on_hosts(const std::string& name, const std::string& keys) const {
    ASSERT_EQ(try_on_hosts(name, keys), 0) << keys << "\n" << log(name);
  }
  /// One process on the first host.
  int try_alone(const std::string& name, const std::string& keys) const {
    return run(name,
               "cd " + (root_ / "host-0").string() + " && " TRIREME_COMMAND " train ../run.toml" + common(name) + keys);
  }
  /// Of `trireme checkpoint WHAT` of the run on the first host.
  std::string shown(const std::string& what, const std::string& name) const {
    EXPECT_EQ(run("shown", TRIREME_COMMAND " checkpoint " + what + " " + (root_ / "host-0" / name).string()), 0);
    return log("shown");
  }
  fs::path saved(int host, const std::string& name, const std::string& step) const {
    return root_ / ("host-" + std::to_string(host)) / name / "checkpoints" / step;
  }

 private:
  /// The first epoch's 6 steps and two more; the curve of the learning rate must not depend on their number.
  static std::string common(const std::string& name) {
    return " --set run.device=" + test_device() + " " + kConstant +
           "--set train.max_steps=8 --set run.checkpoint_every=6 --set run.dir=" + name + " ";
  }
  int run(const std::string& name, const std::string& command) const {
    const int status = std::system(("{ " + command + "; } > " + (root_ / (name + ".log")).string() + " 2>&1").c_str());
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
};

// A checkpoint that one host could not give its name is none on the others either.
TEST_F(HostsResume, APublicationThatFailsOnOneHostIsNone) {
  std::ofstream(root_ / "run.toml") << kConfig;
  const std::string keys = "--set train.max_steps=6 --set run.checkpoint_every=3 ";
  const auto script = bytes_of(root_ / "rank");
  // The first rank of the second host.
  std::ofstream(root_ / "rank") << "#!/bin/sh\nexport LD_PRELOAD=" TRIREME_FAULTS " FAULT_RANK=2 FAULT_FOLDER=broken "
                                << "FAULT_NAMED='rename broken/checkpoints/step-00000006' FAULT_ERROR=5\n"
                                << script.substr(script.find("cd "));
  EXPECT_EQ(try_on_hosts("broken", keys), 7);
  const std::string problem = "step-00000006: cannot be renamed into place: Input/output error";
  EXPECT_NE(log("broken").find(problem), std::string::npos) << log("broken");
  for (const int host : {0, 1}) {
    EXPECT_TRUE(fs::exists(saved(host, "broken", "step-00000003"))) << host;
    EXPECT_FALSE(fs::exists(saved(host, "broken", "step-00000006"))) << host;
  }
  std::ofstream(root_ / "rank") << script;
  // A run that goes on removes a part of a checkpoint on each host, and saves nothing if it has nothing left to train.
  for (const int host : {0, 1}) fs::create_directories(saved(host, "broken", "step-00000006.tmp"));
  on_hosts("broken", "--set train.max_steps=3 ");
  for (const int host : {0, 1}) EXPECT_FALSE(fs::exists(saved(host, "broken", "step-00000006.tmp"))) << host;
  on_hosts("broken", "--resume must ");
}

/// A model whose first and last layer share a weight.
const char* const kTied = R"(
[model]
name = "gpt2"
hidden_size = 24
num_layers = 2
num_heads = 3
max_positions = 16
[data]
name = "text"
path = "texts"
block = 16
[train]
epochs = 1
global_batch = 8
)";

TEST_F(HostsResume, EachKeepsItsPart) {
  const struct {
    const char *what, *config, *keys;
    std::string other_keys;  ///< of the run in one process
    bool has_all;            ///< whether the first host's ranks hold all tensors
  } layouts[]{
      {"data parallel", kConfig, "--set train.ema_decay=0.9 --set train.best=validation.loss ",
       "--set train.ema_decay=0.9 --set train.best=validation.loss ", true},
      {"the optimizer's state on all ranks", kConfig, "--set parallel.plugin=low_level_zero ", "", false},
      {"tensors on each host", kConfig, "--set parallel.tp=2 --set run.async_save=true ", "", true},
      {"a pipeline over the hosts", kConfig, "--set parallel.pp=4 --set model.num_layers=4 --set train.micro_batch=2 ",
       "--set model.num_layers=4 ", false},
      {"a tied weight at both ends of a pipeline over the hosts", kTied,
       "--set parallel.pp=2 --set parallel.dp=2 --set train.micro_batch=2 ", "", true},
  };
  const std::string step = "step-00000006";
  for (const auto& [what, config, keys, other_keys, has_all] : layouts) {
    SCOPED_TRACE(what);
    std::ofstream(root_ / "run.toml") << config;
    on_hosts("run", keys);
    const auto model = root_ / "host-0/run/model/model.safetensors";
    const auto whole = bytes_of(model);
    for (const int host : {0, 1}) {  // what is there if the run dies after this step
      fs::remove_all(saved(host, "run", "../model"));
      fs::remove(saved(host, "run", "../summary.json"));
      std::vector<fs::path> later;
      for (const auto& entry : fs::directory_iterator(saved(host, "run", "")))
        if (entry.path().filename().string() > step) later.push_back(entry.path());
      EXPECT_FALSE(later.empty());
      for (const auto& path : later) fs::remove_all(path);
    }
    for (const char* file : {"manifest.json", "state.json", "config.toml"})
      EXPECT_TRUE(fs::exists(saved(1, "run", step) / file)) << file;
    std::size_t shards = 0;
    for (const auto& entry : fs::directory_iterator(saved(1, "run", step))) {
      const auto name = entry.path().filename().string();
      shards += name.find("-00002-") != name.npos || name.find("-00003-") != name.npos ? 1U : 0U;
      EXPECT_FALSE(name.find("-00000-") != name.npos || name.find("-00001-") != name.npos) << name;
    }
    EXPECT_GE(shards, 2U);
    on_hosts("run", keys + std::string("--resume must "));
    EXPECT_NE(log("run").find(step + ": "), std::string::npos) << log("run");
    EXPECT_TRUE(bytes_of(model) == whole);
    const auto other = other_keys + "--resume run/checkpoints/" + step + " ";
    const int code = try_alone("alone", other);
    EXPECT_EQ(code, has_all ? 0 : 7) << log("alone");
    if (!has_all) {
      for (const std::string& says : {step + ": lacks ", std::string("optimizer-00002-00.safetensors"),
                                      std::string(" of host "), std::string("copy these files")})
        EXPECT_NE(log("alone").find(says), std::string::npos) << says << log("alone");
      EXPECT_NE(shown("ls", "run").find(" part\n"), std::string::npos) << log("shown");
      EXPECT_NE(shown("verify", "run").find("; not here: optimizer-00002-00.safetensors"), std::string::npos)
          << log("shown");
      for (const auto& entry : fs::directory_iterator(saved(1, "run", step)))
        fs::copy(entry.path(), saved(0, "run", step), fs::copy_options::skip_existing);
      EXPECT_EQ(try_alone("alone", other), 0) << log("alone");
    }
    for (const char* host : {"host-0", "host-1"})
      for (const char* name : {"run", "alone"}) fs::remove_all(root_ / host / name);
  }
}

}  // namespace
}  // namespace trireme::tests
