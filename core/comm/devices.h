// What the CUDA driver and the kernel say about this machine's GPUs, without a CUDA library of LibTorch.
#pragma once

#include <string>
#include <vector>

#include "core/comm/world.h"

namespace trireme::comm {

/// The device's name, such as "NVIDIA H100 80GB HBM3"; "" if there is no such device. `index`: among the devices that
/// this process can use.
std::string cuda_device_name(int index);
/// The PCI addresses of the devices that this process can use, as in /sys/bus/pci/devices: "0000:3b:00.0".
std::vector<std::string> cuda_addresses();

/// The number of GPUs in this machine or container, visible to this process or not; 0: unknown. Asks the kernel's
/// module, so it may be called before the driver is initialised.
int installed_gpus();

/// To be called before the CUDA driver is initialised; variables that the user has set are kept. LibTorch's flash
/// attention comes before cuDNN's, which the key attention_kernel still selects. Ranks whose messages
/// are kernels (NCCL's) need every kernel loaded at the start, because loading one may wait for running kernels, and
/// these for a peer. They also need a device queue for each of their streams, so that a message does not delay another
/// kernel. Ranks that share GPUs (more ranks than `gpus` on this host; 0: unknown) have no such messages, and load
/// kernels when they use them: loading all takes seconds and memory of each rank.
void set_cuda_environment(const LaunchInfo& info, int gpus);

/// The cores for a rank with a GPU.
struct Binding {
  std::vector<int> cores{};  ///< empty: not to be bound
  int numa_node = -1;
};
/// The cores of the NUMA node of this rank's GPU, divided over the ranks of this host whose GPUs are on that node;
/// whole cores with all of their hardware threads. Nothing for a single rank, where the node is unknown, or where the
/// process is bound already: `allowed`, its affinity, lacks a CPU of the machine (a cpuset, taskset, Slurm or mpirun).
/// Where each rank sees only GPUs of its own, the other ranks' nodes are unknown: the node is not divided then. `gpus`:
/// cuda_addresses(). `root`: "/", or a test's folder. `installed`: installed_gpus().
Binding choose_cores(const LaunchInfo& info, const std::vector<std::string>& gpus, int installed,
                     const std::vector<int>& allowed, const std::string& root);
/// Binds all threads of this process, and those that they start. Returns false where the system refuses; nothing has
/// changed then.
bool bind_process(const std::vector<int>& cores);

}  // namespace trireme::comm
