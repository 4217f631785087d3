// The cores that this process may use: what its affinity and its cgroups' CPU quotas allow. Needs no LibTorch.
#pragma once

#include <sched.h>

#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace trireme {

/// The number of cores that this process may use, at least 1: the least of the cores in its affinity mask (a cpuset,
/// taskset, Slurm) and of the CPU quotas of its cgroups, v1 and v2, in whole cores.
int usable_cores();
/// The part of one of `ranks` processes that a launcher has started on this machine, in whole cores; 0 where there are
/// more ranks than cores. All ranks share the cores equally, unless the launcher (the parent process) may use more of
/// them: then it is taken to have bound the ranks evenly to its own, and only some of them share these.
int cores_of_rank(int ranks);
/// The same, for a rank that may use `own` cores and a launcher that may use `of_launcher`.
int share_of_cores(std::size_t own, std::size_t of_launcher, std::optional<double> quota, int ranks);

/// The least CPU quota of the cgroups that `/proc/self/cgroup` below `root` names, and of those above them, in cores;
/// unset where there is none. Source: Documentation/admin-guide/cgroup-v2.rst (cpu.max), scheduler/sched-bwc.rst
/// (cpu.cfs_quota_us). `root`: "/", or a test's folder.
std::optional<double> cgroup_quota(const std::string& root);

/// The name that the kernel has for the CPU: "AMD EPYC 7763"; "" if it cannot be read.
std::string cpu_name();

/// The first line of a file, such as those of /sys and /proc; "" if it cannot be read.
std::string line_of(const std::filesystem::path& file);

/// The CPUs in the kernel's list format, such as "0-3,8,10-11". Entries that cannot be read are skipped.
std::vector<int> parse_cpu_list(const std::string& text);
/// The same format; "" for none. @pre sorted
std::string cpu_list_text(const std::vector<int>& cpus);

/// The CPUs that a process may use, in ascending order; 0: the calling thread. Empty if they cannot be read.
std::vector<int> affinity(int process = 0);
/// Sets the affinity of a thread (0: the calling one), and with it that of the threads that it starts. Returns false
/// where the system refuses.
bool set_affinity(const std::vector<int>& cpus, int thread = 0);

}  // namespace trireme
