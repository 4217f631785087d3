#include "apps/launcher/installation.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <glob.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>
#include <vector>

#include "core/base/environment.h"
#include "core/base/error.h"
#include "core/base/version.h"

namespace trireme::apps {

std::string prefix() {
  std::error_code error;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) throw ConfigError("cannot read /proc/self/exe to find the worker program; is /proc mounted?");
  return program.parent_path().parent_path().string();
}

bool is_program(const std::string& path) {
  struct stat status {};
  return stat(path.c_str(), &status) == 0 && !S_ISDIR(status.st_mode) && access(path.c_str(), X_OK) == 0;
}

std::string on_path(const std::string& name) {
  auto rest = environment("PATH");
  while (!rest.empty()) {
    const auto colon = rest.find(':');
    const auto candidate = rest.substr(0, colon) + "/" + name;
    if (is_program(candidate)) return candidate;
    rest = colon == std::string::npos ? "" : rest.substr(colon + 1);
  }
  return "";
}

std::string find_program(const std::string& name) {
  if (name.find('/') == std::string::npos) return on_path(name);
  return is_program(name) ? name : "";
}

namespace {

constexpr const char* kVersion = TRIREME_TORCH_VERSION;

bool exists(const std::string& path) { return access(path.c_str(), F_OK) == 0; }
bool is_libtorch(const std::string& folder) { return exists(folder + "/lib/libtorch_cpu.so"); }

std::string contents(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// The version ("2.11.0") in the CMake package, which both wheels and archives of LibTorch contain; "" if missing.
std::string version_of(const std::string& folder) {
  const auto text = contents(folder + "/share/cmake/Torch/TorchConfigVersion.cmake");
  const std::string before = "PACKAGE_VERSION \"";
  const auto begin = text.find(before);
  if (begin == std::string::npos) return "";
  const auto from = begin + before.size();
  return text.substr(from, text.find_first_of("+\"", from) - from);
}

// The first folder that matches and contains a LibTorch; "" if there is none.
std::string first_libtorch(const std::string& pattern) {
  glob_t found{};
  std::string folder;
  if (glob(pattern.c_str(), 0, nullptr, &found) == 0)
    for (std::size_t i = 0; i < found.gl_pathc && folder.empty(); ++i)
      if (is_libtorch(found.gl_pathv[i])) folder = found.gl_pathv[i];
  globfree(&found);
  return folder;
}

/// A folder that may contain LibTorch, or a pattern of such folders.
struct Place {
  std::string pattern;
  std::string source;   ///< for messages
  bool linked = false;  ///< the run path of the programs points there
};

struct LibTorch {
  std::string folder;  ///< contains lib/libtorch_cpu.so
  Place place;
};

std::vector<Place> places(const std::string& prefix) {
  std::vector<Place> all;
  auto linked = contents(prefix + "/share/trireme/libtorch");
  while (!linked.empty() && linked.back() == '\n') linked.pop_back();
  if (!linked.empty()) all.push_back({linked, "the LibTorch that Trireme was built with", true});
  for (const char* name : {"VIRTUAL_ENV", "CONDA_PREFIX"})
    if (const auto root = environment(name); !root.empty())
      all.push_back({root + "/lib/python3*/site-packages/torch", fmt::format("the Python environment {}", root)});
  if (const auto python = on_path("python3"); !python.empty()) {
    const auto bin = python.substr(0, python.rfind('/'));
    const auto root = bin.substr(0, bin.rfind('/'));
    for (const char* below : {"/lib/python3*/site-packages/torch", "/local/lib/python3*/dist-packages/torch",
                              "/lib/python3/dist-packages/torch"})
      all.push_back({root + below, fmt::format("the packages of {}", python)});
    if (const auto home_dir = environment("HOME"); !home_dir.empty())
      all.push_back({home_dir + "/.local/lib/python3*/site-packages/torch", fmt::format("the packages of {}", python)});
  }
  for (const auto& folder : {prefix + "/libtorch", prefix.substr(0, prefix.rfind('/')) + "/libtorch"})
    all.push_back({folder, "the folder beside Trireme"});
  return all;
}

std::string remedy() {
  return fmt::format(
      "install it with `pip install torch=={0}` in a Python environment and activate that, unpack a LibTorch {0} "
      "beside Trireme, or set TRIREME_TORCH to a folder that holds lib/libtorch_cpu.so",
      kVersion);
}

/// "" if the version is the one that Trireme was built with, else a description of it.
std::string mismatch(const LibTorch& torch) {
  const auto version = version_of(torch.folder);
  if (version == kVersion) return "";
  return fmt::format("{} ({}) is LibTorch {}", torch.folder, torch.place.source,
                     version.empty() ? "of an unknown version" : version);
}

[[noreturn]] void refuse_libtorch(const std::string& others) {
  throw ConfigError(fmt::format("{}, but Trireme {} needs {}: {}", others, TRIREME_VERSION, kVersion, remedy()));
}

/// Search order: the environment variable TRIREME_TORCH; the LibTorch that this build or installation was linked with
/// (a bundle has none); the torch package of the active Python environment, else of the first python3 on PATH;
/// `libtorch` in this installation's folder or next to it.
/// @throws ConfigError if there is none, or it has another version
LibTorch find_libtorch(const std::string& prefix) {
  if (const auto named = environment("TRIREME_TORCH"); !named.empty()) {
    if (!is_libtorch(named))
      throw ConfigError(
          fmt::format("TRIREME_TORCH is {}, but there is no lib/libtorch_cpu.so in it; set it to the folder of a "
                      "LibTorch {}, or unset it",
                      named, kVersion));
    const LibTorch found{named, {named, "named by TRIREME_TORCH"}};
    if (const auto other = mismatch(found); !other.empty()) refuse_libtorch(other);
    return found;
  }
  std::vector<std::string> looked, others;
  for (const auto& place : places(prefix)) {
    if (const LibTorch found{first_libtorch(place.pattern), place}; !found.folder.empty()) {
      const auto other = mismatch(found);
      if (other.empty()) return found;
      others.push_back(other);
    }
    if (looked.empty() || looked.back() != place.source) looked.push_back(place.source);
  }
  if (!others.empty()) refuse_libtorch(fmt::format("{}", fmt::join(others, ", and ")));
  throw ConfigError(fmt::format("Trireme {} needs LibTorch {}, which is not in {}: {}", TRIREME_VERSION, kVersion,
                                fmt::join(looked, ", nor in "), remedy()));
}

void put_first(const char* variable, const std::string& folders) {
  const auto old = environment(variable);
  setenv(variable, (old.empty() ? folders : folders + ":" + old).c_str(), 1);
}

/// For the Open MPI of a bundle.
void set_mpi_paths(const std::string& prefix) {
  const auto mpi = prefix + "/lib/trireme/openmpi";
  if (!exists(mpi)) return;
  put_first("LD_LIBRARY_PATH", mpi + "/lib");
  // Without these variables Open MPI and PMIx look for their components in the folders of the original installation.
  for (const auto& [variable, below] : {std::pair{"OPAL_PREFIX", ""},
                                        {"OPAL_LIBDIR", "/lib"},
                                        {"OPAL_PKGLIBDIR", "/lib/openmpi3"},
                                        {"OPAL_BINDIR", "/bin"},
                                        {"OPAL_DATADIR", "/share"},
                                        {"OPAL_PKGDATADIR", "/share/openmpi"},
                                        {"OPAL_SYSCONFDIR", "/etc"},
                                        {"PMIX_PREFIX", "/pmix"}})
    setenv(variable, (mpi + below).c_str(), 1);
}

}  // namespace

void set_library_paths(const std::string& prefix) {
  const auto torch = find_libtorch(prefix);
  // The worker finds a linked LibTorch by itself, unless the environment names folders, which may hold another one.
  if (!torch.place.linked || !environment("LD_LIBRARY_PATH").empty())
    put_first("LD_LIBRARY_PATH", torch.folder + "/lib");
  set_mpi_paths(prefix);
}

}  // namespace trireme::apps
