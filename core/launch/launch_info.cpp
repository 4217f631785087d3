#include "core/launch/launch_info.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <initializer_list>
#include <limits>
#include <optional>
#include <sstream>

#include "core/base/environment.h"
#include "core/base/error.h"
#include "core/base/text.h"

namespace trireme {
namespace {

std::optional<std::string> variable(const char* name) {
  const auto value = environment(name);
  return value.empty() ? std::nullopt : std::optional(value);
}

/// A non-negative number from the environment. @throws ConfigError when the launcher's other variables are set and this
/// one is missing or not a number: an incomplete environment must not become a world of one rank.
int number(const char* launcher, const char* name) {
  const auto text = variable(name);
  if (!text)
    throw ConfigError(
        fmt::format("{} started this process, but {} is not set; unset the launcher's other variables, "
                    "or start with {} itself",
                    launcher, name, launcher));
  const auto value = text::integer(*text);
  if (value >= 0 && value <= std::numeric_limits<int>::max()) return static_cast<int>(*value);
  throw ConfigError(
      fmt::format("{}={}: {} sets this to a whole number; was it exported by hand?", name, *text, launcher));
}

int number_or(const char* launcher, const char* name, int fallback) {
  return variable(name) ? number(launcher, name) : fallback;
}

/// The entry of one node in Slurm's list of tasks per node, "4(x2),3".
int tasks_on_node(const std::string& list, int node, int fallback) {
  int at = 0;
  std::istringstream entries(list);
  for (std::string entry; std::getline(entries, entry, ',');) {
    int tasks = 0, times = 1;
    if (std::sscanf(entry.c_str(), "%d(x%d)", &tasks, &times) < 1 || tasks < 1 || times < 1) return fallback;
    at += times;
    if (node < at) return tasks;
  }
  return fallback;
}

/// The values of these variables, joined with dots; "" when the first is not set.
std::string job_of(std::initializer_list<const char*> names) {
  std::string job;
  for (const char* name : names) {
    const auto value = variable(name);
    if (!value && job.empty()) return "";
    job += value.value_or("") + ".";
  }
  return job;
}

LaunchInfo from_mpirun() {
  constexpr const char* kName = "mpirun";
  LaunchInfo info{.launcher = Launcher::mpirun,
                  .rank = number(kName, "OMPI_COMM_WORLD_RANK"),
                  .size = number(kName, "OMPI_COMM_WORLD_SIZE")};
  info.local_rank = number_or(kName, "OMPI_COMM_WORLD_LOCAL_RANK", info.rank);
  info.local_size = number_or(kName, "OMPI_COMM_WORLD_LOCAL_SIZE", info.size);
  info.job = job_of({"PMIX_NAMESPACE"});
  return info;
}

const char* launcher_name(Launcher launcher) {
  static constexpr std::array kNames{"alone", "mpirun", "srun", "torchrun", "trireme launch", "trireme::spawn"};
  return kNames.at(static_cast<std::size_t>(launcher));
}

/// Our own launchers set torchrun's variables, and TRIREME_LAUNCHER.
LaunchInfo from_torchrun(Launcher launcher) {
  const char* name = launcher_name(launcher);
  LaunchInfo info{.launcher = launcher, .rank = number(name, "RANK"), .size = number(name, "WORLD_SIZE")};
  info.local_rank = number_or(name, "LOCAL_RANK", info.rank);
  info.local_size = number_or(name, "LOCAL_WORLD_SIZE", info.size);
  info.job = job_of({"MASTER_PORT", "MASTER_ADDR", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"});
  return info;
}

LaunchInfo from_srun() {
  constexpr const char* kName = "srun";
  LaunchInfo info{.launcher = Launcher::srun, .rank = number(kName, "SLURM_PROCID")};
  // A step may be smaller than its job, so its own count has priority.
  info.size = variable("SLURM_STEP_NUM_TASKS") ? number(kName, "SLURM_STEP_NUM_TASKS") : number(kName, "SLURM_NTASKS");
  info.local_rank = number_or(kName, "SLURM_LOCALID", info.rank);
  auto per_node = variable("SLURM_STEP_TASKS_PER_NODE");
  if (!per_node) per_node = variable("SLURM_TASKS_PER_NODE");
  info.local_size = tasks_on_node(per_node.value_or(""), number_or(kName, "SLURM_NODEID", 0), info.size);
  info.job = job_of({"SLURM_JOB_ID", "SLURM_STEP_ID"});
  return info;
}

/// Rejects processes started by another MPI's launcher (MPICH, Intel MPI: Hydra): each would run as a world of one rank
/// and overwrite the others' files.
void refuse_other_mpi() {
  constexpr const char* kName = "mpiexec (of MPICH or a derivative)";
  const int size = number_or(kName, "PMI_SIZE", 1);
  if (size > 1)
    throw ConfigError(
        fmt::format("{} started {} processes (PMI_SIZE={}), which Trireme cannot connect: its MPI is Open MPI; start "
                    "with: trireme train ... --ranks {}, or with Open MPI's mpirun",
                    kName, size, size, size));
}

/// Rejects a rank of several that nothing leads to the others, such as a pod without MASTER_ADDR: each would run as a
/// world of one rank and overwrite the others' files.
void refuse_rank_without_address() {
  const auto rank = variable("RANK"), size = variable("WORLD_SIZE");
  if (rank && size && std::atoi(size->c_str()) > 1)
    throw ConfigError(fmt::format(
        "RANK={} and WORLD_SIZE={} say that this is one of several ranks, but MASTER_ADDR is not set; set it "
        "and MASTER_PORT to the address of rank 0 on every rank, or unset RANK to run alone",
        *rank, *size));
}

/// Whether a user has started this process in the shell of an interactive step. The shell has a task's variables and a
/// terminal, which the tasks of a step that it starts have not.
bool in_interactive_step() {
  const auto task = variable("SLURM_TASK_PID");
  if (!variable("SLURM_PTY_PORT") || task == std::to_string(getpid())) return false;
  const int terminal = open("/dev/tty", O_RDONLY | O_NOCTTY | O_CLOEXEC);
  if (terminal >= 0) close(terminal);
  return terminal >= 0;
}

/// A batch script has SLURM_PROCID too, but no step. srun may set PMI's variables as well; Hydra, inside a step of its
/// own, sets MPI_LOCALNRANKS.
bool is_task_of_srun() {
  return variable("SLURM_STEP_ID") && variable("SLURM_PROCID") && !variable("MPI_LOCALNRANKS") &&
         !in_interactive_step();
}

/// The value of TRIREME_LAUNCHER. @throws ConfigError when it is unknown.
std::optional<Launcher> own_launcher() {
  const auto name = variable("TRIREME_LAUNCHER");
  if (!name) return std::nullopt;
  if (*name == "launch") return Launcher::launch;
  if (*name == "spawn") return Launcher::spawn;
  throw ConfigError(
      fmt::format("TRIREME_LAUNCHER={}: must be launch or spawn, which `trireme launch` and trireme::spawn set; unset "
                  "it to start with another launcher",
                  *name));
}

}  // namespace

LaunchInfo detect_launch() {
  LaunchInfo info;
  if (const auto own = own_launcher()) {
    info = from_torchrun(*own);
  } else if (variable("OMPI_COMM_WORLD_SIZE") || variable("OMPI_COMM_WORLD_RANK")) {
    info = from_mpirun();
  } else if (variable("TORCHELASTIC_RUN_ID") ||
             (variable("RANK") && variable("WORLD_SIZE") && variable("MASTER_ADDR"))) {
    info = from_torchrun(Launcher::torchrun);
  } else if (is_task_of_srun()) {
    info = from_srun();
  } else {
    refuse_other_mpi();
    refuse_rank_without_address();
  }
  if (info.size < 1 || info.rank >= info.size || info.local_size < 1 || info.local_rank >= info.local_size)
    throw ConfigError(
        fmt::format("{} says rank {} of {}, local rank {} of {}, which is impossible; were its variables exported by "
                    "hand, or left over from another run?",
                    launcher_name(info.launcher), info.rank, info.size, info.local_rank, info.local_size));
  return info;
}

std::string LaunchInfo::text() const {
  if (launcher == Launcher::alone) return "1 process";
  const int hosts = (size + local_size - 1) / local_size;
  const bool ours = launcher == Launcher::launch || launcher == Launcher::spawn;
  return fmt::format("{}{}{} rank{} on {} host{}", ours ? "" : launcher_name(launcher), ours ? "" : ", ", size,
                     size == 1 ? "" : "s", hosts, hosts == 1 ? "" : "s");
}

}  // namespace trireme
