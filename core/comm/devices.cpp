// CUDA queries without LibTorch, whose own device count would load libtorch_cuda.
#include "core/comm/devices.h"

#include <cuda.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <set>

#include "core/base/cores.h"
#include "core/base/error.h"

namespace trireme::comm {
namespace {

namespace fs = std::filesystem;

/// What LibTorch 2.11 needs: a driver of the toolkit's major version, and GPUs that its kernels are built for.
constexpr int kDriver = CUDA_VERSION / 1000 * 1000;
constexpr int kCapability = 75;

/// A function of the CUDA driver; null when there is no driver. Once initialised, the driver stays loaded: it does not
/// support being unloaded.
template <class Function>
Function* driver_function(const char* name) {
  void* driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
  return driver == nullptr ? nullptr : reinterpret_cast<Function*>(dlsym(driver, name));
}

/// Calls a function of the driver, without which the call fails.
template <class Function, class... Arguments>
CUresult call_driver(const char* name, Arguments... arguments) {
  auto* function = driver_function<Function>(name);
  return function == nullptr ? CUDA_ERROR_NOT_FOUND : function(arguments...);
}
#define TRIREME_DRIVER(function, ...) call_driver<decltype(function)>(#function __VA_OPT__(, ) __VA_ARGS__)

std::string version_text(int version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); }

/// Why the first device that LibTorch cannot use is unusable; "" if it can use all.
std::string problem_of_devices(int count) {
  for (int index = 0; index < count; ++index) {
    int major = 0, minor = 0;
    if (TRIREME_DRIVER(cuDeviceGetAttribute, &major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, index) != 0 ||
        TRIREME_DRIVER(cuDeviceGetAttribute, &minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, index) != 0)
      continue;
    if (10 * major + minor >= kCapability) continue;
    char name[256] = "";
    (void)TRIREME_DRIVER(cuDeviceGetName, name, static_cast<int>(sizeof name), index);
    return fmt::format("GPU {} ({}) has compute capability {}.{}, but this LibTorch needs {}.{} or higher{}", index,
                       static_cast<const char*>(name), major, minor, kCapability / 10, kCapability % 10,
                       count > 1 ? "; if another one is newer, select that with CUDA_VISIBLE_DEVICES" : "");
  }
  return "";
}

/// The NUMA node of a PCI device; -1 if it is unknown, or the machine has none.
int numa_node(const fs::path& root, const std::string& address) {
  const auto line = line_of(root / "sys/bus/pci/devices" / address / "numa_node");
  return line.empty() ? -1 : std::atoi(line.c_str());
}

}  // namespace

int installed_gpus() {
  std::error_code none;
  const fs::directory_iterator gpus("/proc/driver/nvidia/gpus", none);
  return none ? 0 : static_cast<int>(std::distance(begin(gpus), end(gpus)));
}

void set_cuda_environment(const LaunchInfo& info, int gpus) {
  // cuDNN's attention builds a plan for each shape and thread, which takes up to a second: texts of varying length
  // stall.
  setenv("TORCH_CUDNN_SDPA_DEPRIORITIZED", "1", /*overwrite=*/0);
  if (info.size == 1) return;
  if (gpus == 0 || info.local_size <= gpus) setenv("CUDA_MODULE_LOADING", "EAGER", /*overwrite=*/0);
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", /*overwrite=*/0);
}

CudaDevices cuda_devices() {
  int version = 0, count = 0;
  if (TRIREME_DRIVER(cuDriverGetVersion, &version) != 0) return {};  // no driver
  if (version < kDriver)
    return {0, fmt::format("the CUDA driver supports CUDA {}, but this LibTorch needs {} or newer: update the NVIDIA "
                           "driver, or use a LibTorch for an older CUDA",
                           version_text(version), version_text(kDriver))};
  try {
    set_cuda_environment(detect_launch(), installed_gpus());
  } catch (const ConfigError&) {
    // An incomplete environment of a launcher is reported elsewhere.
  }
  const auto failed = TRIREME_DRIVER(cuInit, 0U);
  if (failed == CUDA_ERROR_NO_DEVICE) return {};
  if (failed != CUDA_SUCCESS) {
    const char* name = nullptr;
    (void)TRIREME_DRIVER(cuGetErrorName, failed, &name);
    return {0, fmt::format("the CUDA driver does not start: {} ({}); `nvidia-smi` and the kernel's log may say why",
                           name == nullptr ? "an error" : name, static_cast<int>(failed))};
  }
  if (TRIREME_DRIVER(cuDeviceGetCount, &count) != 0) return {};
  if (auto problem = problem_of_devices(count); !problem.empty()) return {0, std::move(problem)};
  return {count};
}

int cuda_device_count() { return cuda_devices().count; }

std::string cuda_device_name(int index) {
  CUdevice device = 0;
  char name[256] = "";
  if (index >= cuda_device_count() || TRIREME_DRIVER(cuDeviceGet, &device, index) != 0 ||
      TRIREME_DRIVER(cuDeviceGetName, name, static_cast<int>(sizeof name), device) != 0)
    return "";
  return name;
}

std::vector<std::string> cuda_addresses() {
  std::vector<std::string> addresses;
  const int count = cuda_device_count();
  for (int index = 0; index < count; ++index) {
    char text[64] = "";
    (void)TRIREME_DRIVER(cuDeviceGetPCIBusId, text, static_cast<int>(sizeof text), index);
    std::string address = text;
    std::transform(address.begin(), address.end(), address.begin(), [](unsigned char c) { return std::tolower(c); });
    addresses.push_back(std::move(address));
  }
  return addresses;
}

bool wants_cuda(const std::string& device, const CudaDevices& available) {
  if (device == "cpu") return false;
  if (device == "auto") return available.count > 0;
  if (device != "cuda") throw ConfigError(fmt::format("device \"{}\": must be auto, cpu or cuda", device));
  if (!available.problem.empty()) throw ConfigError(fmt::format("{}; or use device = \"cpu\"", available.problem));
  if (available.count == 0)
    throw ConfigError(
        "the CUDA driver reports no device; use device = \"auto\" or \"cpu\", or check "
        "CUDA_VISIBLE_DEVICES");
  return true;
}

Binding choose_cores(const LaunchInfo& info, const std::vector<std::string>& gpus, int installed,
                     const std::vector<int>& allowed, const std::string& root) {
  if (info.local_size < 2 || gpus.empty()) return {};
  const auto system = fs::path(root) / "sys/devices/system";
  const auto online = parse_cpu_list(line_of(system / "cpu/online"));
  if (!std::includes(allowed.begin(), allowed.end(), online.begin(), online.end())) return {};
  const auto count = static_cast<int>(gpus.size());
  const auto node_of = [&](int local_rank) {
    return numa_node(root, gpus[static_cast<std::size_t>(local_rank % count)]);
  };
  const int node = node_of(info.local_rank);
  if (node < 0) return {};
  const auto cpus = parse_cpu_list(line_of(system / fmt::format("node/node{}/cpulist", node)));
  int sharers = 0, mine = 0;
  const bool sees_all = installed > 0 ? installed == count : info.local_size <= count;
  for (int rank = 0; sees_all && rank < info.local_size; ++rank) {
    if (node_of(rank) != node) continue;
    if (rank < info.local_rank) ++mine;
    ++sharers;
  }
  std::vector<std::vector<int>> cores;  // each with its hardware threads
  std::set<int> listed;
  for (const int cpu : cpus) {
    if (listed.contains(cpu)) continue;
    auto& threads = cores.emplace_back();
    const auto siblings = parse_cpu_list(line_of(system / fmt::format("cpu/cpu{}/topology/thread_siblings_list", cpu)));
    for (const int sibling : siblings.empty() ? std::vector<int>{cpu} : siblings)
      if (std::binary_search(cpus.begin(), cpus.end(), sibling) && listed.insert(sibling).second)
        threads.push_back(sibling);
  }
  const auto total = static_cast<int>(cores.size());
  const bool divided = sharers > 1 && total >= sharers;
  const int first = divided ? total * mine / sharers : 0, last = divided ? total * (mine + 1) / sharers : total;
  Binding binding{{}, node};
  for (int core = first; core < last; ++core) {
    const auto& threads = cores[static_cast<std::size_t>(core)];
    binding.cores.insert(binding.cores.end(), threads.begin(), threads.end());
  }
  std::sort(binding.cores.begin(), binding.cores.end());
  return binding;
}

bool bind_process(const std::vector<int>& cores) {
  const auto bind_all = [](const std::vector<int>& cpus) {
    bool all = true;
    std::error_code none;
    for (const auto& thread : fs::directory_iterator("/proc/self/task", none))
      if (!set_affinity(cpus, std::atoi(thread.path().filename().c_str())) && errno != ESRCH) all = false;
    return all && !none;
  };
  const auto before = affinity();
  if (bind_all(cores)) return true;
  bind_all(before);
  return false;
}

}  // namespace trireme::comm
