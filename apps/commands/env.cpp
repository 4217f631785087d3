// trireme env: information for a bug report.
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <cuda.h>
#include <dlfcn.h>
#include <fmt/format.h>
#include <gnu/libc-version.h>
#include <nccl.h>
#include <sys/utsname.h>
#include <torch/version.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>

#include "apps/commands/commands.h"
#include "apps/report.h"
#include "core/base/cores.h"
#include "core/base/environment.h"
#include "core/base/error.h"
#include "core/base/text.h"
#include "core/base/version.h"
#include "core/booster/plugin_loader.h"
#include "core/comm/world.h"

namespace trireme::apps {
namespace {

namespace fs = std::filesystem;

std::string first_line_with(const std::string& path, const std::string& key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);)
    if (line.rfind(key, 0) == 0) return line;
  return "";
}

// "MemTotal: 8 kB" -> "8 kB"; `NAME="Debian"` -> "Debian".
std::string value_after(const std::string& line, char separator) {
  const auto at = line.find(separator);
  if (at == std::string::npos) return "unknown";
  const auto begin = line.find_first_not_of(" \t\"", at + 1);
  if (begin == std::string::npos) return "unknown";
  return line.substr(begin, line.find_last_not_of(" \t\"") + 1 - begin);
}

std::string memory() {
  const auto kib = [](const char* key) {
    const auto text = value_after(first_line_with("/proc/meminfo", key), ':');
    return 1024.0 * std::atof(text.c_str());
  };
  auto out = fmt::format("{}, {} free", text::bytes(kib("MemTotal")), text::bytes(kib("MemAvailable")));
  std::string limit;
  if (std::ifstream("/sys/fs/cgroup/memory.max") >> limit && limit != "max")
    out += fmt::format(", limited to {} by the cgroup", text::bytes(std::atof(limit.c_str())));
  return out;
}

std::string cores() {
  const auto quota = cgroup_quota("/");
  return fmt::format("{} usable of {}{}", usable_cores(), sysconf(_SC_NPROCESSORS_ONLN),
                     quota ? fmt::format(", limited to {:.3g} by the cgroup", *quota) : "");
}

std::string gpus() {
  const auto found = comm::cuda_devices();
  auto out = fmt::format("{}{}{}", found.count, found.problem.empty() ? "" : "; ", found.problem);
  std::error_code none;
  for (const auto& entry : fs::directory_iterator("/proc/driver/nvidia/gpus", none))
    out += fmt::format("; {}", value_after(first_line_with((entry.path() / "information").string(), "Model:"), ':'));
  const auto driver = first_line_with("/proc/driver/nvidia/version", "NVRM version:");
  return out + (driver.empty() ? "; no NVIDIA driver" : "; driver " + value_after(driver, ':'));
}

// The MPI found at run time; the build-time version is printed next to it.
std::string mpi_found() {
  std::FILE* pipe = popen("mpirun --version 2>/dev/null </dev/null", "r");
  if (pipe == nullptr) return "no mpirun on PATH";
  char line[256] = "";
  const bool any = std::fgets(line, sizeof(line), pipe) != nullptr;
  pclose(pipe);
  std::string out = line;
  while (!out.empty() && out.back() == '\n') out.pop_back();
  return any ? out : "no mpirun on PATH";
}

// Prints only variables that change how a run behaves; others could contain secrets.
std::string variables() {
  static const std::vector<std::string> prefixes{
      "OMP_",         "MKL_",  "KMP_",       "CUDA_",           "NCCL_",       "TORCH_",       "OMPI_",
      "TRIREME_",     "PMIX_", "MALLOC_",    "LD_LIBRARY_PATH", "LD_PRELOAD",  "SLURM_JOB_ID", "SLURM_NTASKS",
      "SLURM_NNODES", "RANK",  "LOCAL_RANK", "WORLD_SIZE",      "MASTER_ADDR", "MASTER_PORT"};
  std::set<std::string> found;
  for (const auto& variable : whole_environment())
    for (const auto& prefix : prefixes)
      if (variable.starts_with(prefix) && !variable.starts_with("TRIREME_TERMINAL")) found.insert(variable);
  return found.empty() ? "none set"
                       : text::join(std::vector<std::string>(found.begin(), found.end()), "\n                ");
}

/// The folder of the LibTorch that this process has loaded, which is the parent of its lib folder.
std::string libtorch_folder() {
  Dl_info library{};
  if (dladdr(reinterpret_cast<const void*>(&at::get_num_threads), &library) == 0 || library.dli_fname == nullptr)
    return "";
  return std::filesystem::path(library.dli_fname).parent_path().parent_path().string();
}

std::string nccl_version() { return fmt::format("{}.{}.{}", NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH); }

void row(const char* name, const std::string& value) {
  const auto columns = static_cast<std::size_t>(terminal_columns(STDOUT_FILENO));
  put(text::wrap(fmt::format("{:<15} {}\n", name, value), columns, 16));
}

}  // namespace

int run(const EnvCommand&) {
  utsname system{};
  uname(&system);
  char host_path[4096] = "";
  if (readlink("/proc/self/exe", host_path, sizeof(host_path) - 1) < 0) host_path[0] = '\0';
  row("Trireme", TRIREME_VERSION);
  row("program", host_path);
  row("plugins", text::join(plugin_folders()));
  row("LibTorch", fmt::format("{} ({})", TORCH_VERSION, libtorch_folder()));
  row("compiler", fmt::format("{} {}", TRIREME_COMPILER_ID, __VERSION__));
  row("C library", gnu_get_libc_version());
  row("CUDA toolkit", fmt::format("{}.{} (built with)", CUDA_VERSION / 1000, CUDA_VERSION % 1000 / 10));
  row("GPUs", gpus());
  row("NCCL", nccl_version() + " (built with)");
  row("MPI", fmt::format("{} (built with); {} (found)", TRIREME_MPI_BUILT, mpi_found()));
  row("system", fmt::format("{}; {} {} {}", value_after(first_line_with("/etc/os-release", "PRETTY_NAME="), '='),
                            system.sysname, system.release, system.machine));
  row("CPU", cpu_name().empty() ? "unknown" : cpu_name());
  row("cores", cores());
  row("LibTorch uses", fmt::format("{} threads, {}", at::get_num_threads(), at::get_cpu_capability()));
  row("memory", memory());
  try {
    row("started by", detect_launch().text());
  } catch (const ConfigError& error) {
    row("started by", error.what());
  }
  row("environment", variables());
  return 0;
}

}  // namespace trireme::apps
