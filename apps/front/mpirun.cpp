#include "apps/front/mpirun.h"

#include <fmt/format.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <unistd.h>

#include <string_view>

#include "apps/front/libraries.h"
#include "apps/front/programs.h"
#include "apps/front/remote_ranks.h"
#include "core/base/cores.h"
#include "core/base/environment.h"
#include "core/base/error.h"
#include "core/base/text.h"

namespace trireme::apps {
namespace {

// Whether a process may read another one's memory, as Open MPI's shared memory does by default. Many containers forbid
// the call, and each message would then print a warning.
bool may_read_other_processes() {
  char from = 1, to = 0;
  iovec source{&from, 1}, target{&to, 1};
  return process_vm_readv(getpid(), &target, 1, &source, 1, 0) == 1;
}

/// The root of temporary files. @throws ConfigError when it has too little space for the ranks
std::string root_with_room(std::int64_t ranks) {
  constexpr double kMi = 1024 * 1024;
  auto root = temporary_root();
  struct statvfs space {};
  if (statvfs(root.c_str(), &space) != 0) return root;
  const double left = static_cast<double>(space.f_bavail) * static_cast<double>(space.f_frsize) / kMi;
  const double needed = 8 + 2 * static_cast<double>(ranks);
  if (left >= needed) return root;
  throw ConfigError(
      fmt::format("{}: {:.1f} MiB are free, and Open MPI needs {:.0f} MiB for {}; free some space, or set "
                  "TMPDIR to another folder",
                  root, left, needed, text::quantity(ranks, "rank")));
}

/// The options for ranks on this machine alone: shared memory suffices, and the search for InfiniBand and Omni-Path
/// takes 0.2 s.
void add_local_options(std::vector<std::string>& command, const MpiFiles& files) {
  const auto set_unless_user = [&](const char* name, const std::string& value) {
    if (environment(fmt::format("OMPI_MCA_{}", name).c_str()).empty() && !value.empty())
      command.insert(command.end(), {"--mca", name, value});
  };
  set_unless_user("pml", "ob1");
  set_unless_user("btl", "self,vader,tcp");
  set_unless_user("orte_tmpdir_base", files.folder());
  set_unless_user("btl_vader_backing_directory", files.shared());
  // Open MPI requires a remote shell even if it does not use one.
  if (on_path("ssh").empty() && on_path("rsh").empty())
    command.insert(command.end(), {"--mca", "plm_rsh_agent", "/bin/sh"});
}

/// Names the hosts, and the variables that their ranks get. Which network Open MPI uses is its own choice.
void add_host_options(std::vector<std::string>& command, const MpiHosts& where) {
  std::vector<std::string> hosts;
  for (const auto& host : where.hosts) hosts.push_back(fmt::format("{}:{}", host.name, host.slots));
  command.insert(command.end(), {"-H", text::join(hosts, ",")});
  if (!where.shell.empty()) command.insert(command.end(), {"--mca", "plm_rsh_agent", text::join(where.shell, " ")});
  for (const auto& variable : environment_for_hosts())
    command.insert(command.end(), {"-x", variable.substr(0, variable.find('='))});
}

}  // namespace

std::string find_mpirun() {
  if (const auto bundled = bundled_mpirun(prefix()); !bundled.empty()) return bundled;
  if (std::string_view(TRIREME_MPIRUN).empty()) return "";  // our ranks could not connect
  return is_program(TRIREME_MPIRUN) ? TRIREME_MPIRUN : on_path("mpirun");
}

MpiFiles::MpiFiles(std::int64_t ranks)
    : folder_(root_with_room(ranks), "Open MPI needs a temporary folder: set TMPDIR to one that can be written to") {
  try {
    shared_.emplace("/dev/shm", "");
  } catch (const ConfigError&) {
    // Open MPI then chooses a place itself.
  }
}

std::vector<std::string> mpirun_command(std::int64_t ranks, const MpiFiles& files,
                                        const std::vector<std::string>& program, const MpiHosts& hosts) {
  // Quiet: without mpirun's own message about a failed rank; ours is shorter and printed once.
  std::vector<std::string> command{
      find_mpirun(), "-n", std::to_string(ranks), "--oversubscribe", "--bind-to", "none", "--quiet", "--stdin", "none"};
  const auto set = [&](const char* name, const std::string& value) {
    command.insert(command.end(), {"--mca", name, value});
  };
  set("opal_signal", "64");  // the last one, which nothing sends: no stack trace of Open MPI's when a rank crashes
  set("orte_forward_job_control", "1");  // SIGTSTP pauses the ranks, SIGCONT goes on
  if (hosts.hosts.empty())
    add_local_options(command, files);
  else
    add_host_options(command, hosts);
  // A waiting rank spins, which takes time from the others if ranks and their loader threads share cores.
  if (2 * ranks > usable_cores()) set("mpi_yield_when_idle", "1");
  if (!may_read_other_processes()) set("btl_vader_single_copy_mechanism", "none");
  command.insert(command.end(), program.begin(), program.end());
  return command;
}

}  // namespace trireme::apps
