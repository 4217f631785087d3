// Tests where the command finds LibTorch when it was not built on this machine, with an installation of the launcher
// alone, a worker that prints the library path, and folders that look like LibTorch.
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tests/command/refusal.h"

namespace trireme::tests {
namespace {

namespace fs = std::filesystem;

class LibTorchSearch : public ::testing::Test {
 protected:
  LibTorchSearch() {
    for (const auto* below : {"/bin", "/libexec/trireme", "/share/trireme", "/tools", "/home"})
      fs::create_directories(prefix + below);
    fs::copy_file(TRIREME_COMMAND, prefix + "/bin/trireme");
    script(prefix + "/libexec/trireme/trireme-worker", "echo \"path=$LD_LIBRARY_PATH\"");
  }
  static void script(const std::string& path, const std::string& text) {
    std::FILE* file = std::fopen(path.c_str(), "w");
    std::fputs(("#!/bin/sh\n" + text + "\n").c_str(), file);
    std::fclose(file);
    fs::permissions(path, fs::perms::owner_all);
  }
  // Makes a folder that looks like LibTorch of this version.
  std::string libtorch(const std::string& subfolder, const std::string& version = TRIREME_TORCH_VERSION) const {
    const auto root = folder.path() + "/" + subfolder;
    fs::create_directories(root + "/lib");
    fs::create_directories(root + "/share/cmake/Torch");
    std::ofstream(root + "/lib/libtorch_cpu.so").put('\n');
    std::ofstream(root + "/share/cmake/Torch/TorchConfigVersion.cmake")
        << "set(PACKAGE_VERSION \"" << version << "\")\n";
    return root;
  }
  // Runs the command with no Python to be found, unless `environment` names one.
  [[nodiscard]] ProcessResult run(std::vector<std::string> environment) const {
    environment.insert(environment.begin(), {"PATH=" + prefix + "/tools", "HOME=" + prefix + "/home", "VIRTUAL_ENV",
                                             "CONDA_PREFIX", "TRIREME_TORCH", "LD_LIBRARY_PATH"});
    ProcessOptions options;
    options.environment = environment;
    return run_process({prefix + "/bin/trireme", "env"}, options);
  }

  TemporaryFolder folder;
  const std::string prefix = folder.path() + "/trireme";
};

TEST_F(LibTorchSearch, SaysWhereItLookedAndWhatToDo) {
  expect_only_refusal(run({"VIRTUAL_ENV=/none"}), 2,
                      std::string("needs LibTorch ") + TRIREME_TORCH_VERSION +
                          ", which is not in the Python environment /none, nor in the folder beside Trireme: install "
                          "it with `pip install torch==" +
                          TRIREME_TORCH_VERSION + "`");
}

TEST_F(LibTorchSearch, SearchesTheFoldersInOrder) {
  const auto expect = [&](const std::string& torch, const std::vector<std::string>& environment) {
    const auto result = run(environment);
    EXPECT_EQ(result.code, 0) << result.err;
    EXPECT_EQ(result.out, "path=" + torch + "/lib\n");
  };
  const auto beside = libtorch("libtorch");
  expect(beside, {});
  const auto nested = libtorch("trireme/libtorch");
  expect(nested, {});
  script(prefix + "/tools/python3", "");
  const auto of_python = libtorch("trireme/lib/python3.11/site-packages/torch");
  expect(of_python, {});
  const auto active = libtorch("venv/lib/python3.12/site-packages/torch");
  expect(active, {"VIRTUAL_ENV=" + folder.path() + "/venv"});
  expect(active, {"CONDA_PREFIX=" + folder.path() + "/venv"});
  const auto named = libtorch("elsewhere");
  expect(named, {"TRIREME_TORCH=" + named, "VIRTUAL_ENV=" + folder.path() + "/venv"});
  // The LibTorch that the programs were linked with needs no path while the user sets none.
  std::ofstream(prefix + "/share/trireme/libtorch") << named << "\n";
  EXPECT_EQ(run({"VIRTUAL_ENV=" + folder.path() + "/venv"}).out, "path=\n");
  // Our folder comes before the user's, which may contain another LibTorch.
  EXPECT_EQ(run({"LD_LIBRARY_PATH=/mine"}).out, "path=" + named + "/lib:/mine\n");
  EXPECT_EQ(run({"TRIREME_TORCH=" + active, "LD_LIBRARY_PATH=/mine"}).out, "path=" + active + "/lib:/mine\n");
}

TEST_F(LibTorchSearch, RefusesAnotherVersion) {
  const auto older = libtorch("older", "2.10.0");
  const std::string needed = std::string("needs ") + TRIREME_TORCH_VERSION + ": install it";
  expect_only_refusal(run({"TRIREME_TORCH=" + older}), 2, older + " (named by TRIREME_TORCH) is LibTorch 2.10.0, but");
  expect_only_refusal(run({"TRIREME_TORCH=" + older}), 2, needed);
  libtorch("venv/lib/python3.11/site-packages/torch", "2.12.0");
  expect_only_refusal(run({"VIRTUAL_ENV=" + folder.path() + "/venv"}), 2,
                      "(the Python environment " + folder.path() + "/venv) is LibTorch 2.12.0");
  // A LibTorch of another version does not hide one that fits.
  const auto beside = libtorch("libtorch");
  EXPECT_EQ(run({"VIRTUAL_ENV=" + folder.path() + "/venv"}).out, "path=" + beside + "/lib\n");
  expect_only_refusal(run({"TRIREME_TORCH=/none"}), 2, "there is no lib/libtorch_cpu.so in it");
}

TEST_F(LibTorchSearch, SetsThePrefixOfABundledMpi) {
  const auto torch = libtorch("libtorch");
  const auto mpi = prefix + "/lib/trireme/openmpi";
  fs::create_directories(mpi + "/bin");
  script(prefix + "/libexec/trireme/trireme-worker",
         "echo \"$LD_LIBRARY_PATH $OPAL_PREFIX $OPAL_PKGLIBDIR $PMIX_PREFIX\"");
  EXPECT_EQ(run({}).out, mpi + "/lib:" + torch + "/lib " + mpi + " " + mpi + "/lib/openmpi3 " + mpi + "/pmix\n");
}

}  // namespace
}  // namespace trireme::tests
