#include "apps/front/launch.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <utility>

#include "apps/command_line.h"
#include "apps/front/child.h"
#include "apps/front/flight_watch.h"
#include "apps/front/libraries.h"
#include "apps/front/mpirun.h"
#include "apps/front/programs.h"
#include "apps/front/start_ranks.h"
#include "apps/front/verdict.h"
#include "apps/report.h"
#include "core/base/cores.h"
#include "core/base/environment.h"
#include "core/base/error.h"
#include "core/base/text.h"

namespace trireme::apps {
namespace {

/// "; the environment sets OMPI_MCA_pml, OMPI_MCA_btl": the most frequent reason why Open MPI does not start.
std::string mpi_settings() {
  std::vector<std::string> names;
  for (const auto& variable : whole_environment())
    if (variable.starts_with("OMPI_MCA_")) names.push_back(variable.substr(0, variable.find('=')));
  return names.empty() ? "" : fmt::format("; the environment sets {}", text::join(names));
}

/// mpirun failed without a message: in quiet mode it prints none, and neither did a rank.
int silent_failure(const ChildEnd& end) {
  if (end.printed)
    say_error(
        fmt::format("mpirun ended with exit code {} before its ranks had: it was stopped from outside", end.code));
  else
    say_error(
        fmt::format("Open MPI could not start the ranks (mpirun: exit code {}){}; `mpirun -n 2 hostname` shows "
                    "its own message",
                    end.code, mpi_settings()));
  return static_cast<int>(ExitCode::communication);
}

// Reports what a quiet mpirun does not: that a signal ended a rank or mpirun itself.
RunEnd verdict_on(const ChildEnd& end, Ranks ranks, int size, FlightWatch* watch = nullptr) {
  constexpr int kCommunication = static_cast<int>(ExitCode::communication);
  const bool news = end.sent == SIGUSR1 || end.sent == SIGUSR2;  // the program may handle these without ending
  const int number = end.code > 128 && end.code < 128 + NSIG ? end.code - 128 : 0;
  if (watch != nullptr && watch->stopped_as_asked() && end.sent == 0 && !end.by_signal && asks_to_stop(number))
    return {report_stop(number)};  // a signal to one of the ranks
  const bool died = number != 0 && (end.sent == 0 || (end.asked && number != SIGUSR1));
  if (watch != nullptr && (end.sent == 0 || died)) watch->all_ended(end.by_signal ? 0 : number);
  if (watch != nullptr && watch->printed()) return {kCommunication, watch->headline()};
  // Ranks that were asked to stop may have been at their end, or have failed with an error of their own.
  if (end.asked && end.code < 128) return {end.code};
  if (end.sent != 0 && !died && (!news || end.code == 128 + end.sent))
    return {report_stop(end.sent, watch != nullptr ? watch->unsaved() : "")};
  const auto say = [&](const std::string& death) {
    say_error(death);
    return RunEnd{ranks == Ranks::of_trireme && size > 1 ? kCommunication : end.code, death};
  };
  if (end.by_signal)
    return say(fmt::format("mpirun was ended from outside by signal {} ({}), and its ranks with it", number,
                           strsignal(number)));
  if (number != 0) return say(ended_by_signal(size == 1 ? "the training" : "a rank", number, ranks, size));
  if (end.code != 0 && !end.complained) return {silent_failure(end)};
  const bool may_start_again = end.code == kCommunication || (end.code != 0 && ranks == Ranks::of_any_program);
  return {end.code, may_start_again ? kLostRanks : ""};
}

}  // namespace

std::string worker_path() {
  const auto path = prefix() + "/" TRIREME_LIBEXEC "/trireme-worker";
  if (!is_program(path))
    throw ConfigError(fmt::format("{} is missing: the build or the installation is not complete", path));
  return path;
}

bool in_launched_world() {
  const auto set = [](const char* name) { return std::getenv(name) != nullptr; };
  if (set("OMPI_COMM_WORLD_SIZE") || set("TORCHELASTIC_RUN_ID")) return true;
  if (set("RANK") && set("WORLD_SIZE") && set("MASTER_ADDR")) return true;
  const char* of_another_mpi = std::getenv("PMI_SIZE");  // the worker rejects this launcher
  if (of_another_mpi != nullptr && std::atoi(of_another_mpi) > 1) return true;
  // An interactive step of Slurm is a shell, which may start ranks.
  const char* tasks = std::getenv("SLURM_STEP_NUM_TASKS");
  return set("SLURM_STEP_ID") && set("SLURM_PROCID") && tasks != nullptr && std::strcmp(tasks, "1") != 0;
}

int launched_rank() {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "RANK", "PMI_RANK", "SLURM_PROCID"})
    if (const char* rank = std::getenv(name)) return std::atoi(rank);
  return 0;
}

/// libgomp crashes when it cannot create the threads that OMP_NUM_THREADS asks for. @throws ConfigError
static void check_openmp_threads() {
  constexpr long kMost = 4096;
  const auto text = environment("OMP_NUM_THREADS");
  if (text.empty()) return;
  char* end = nullptr;
  const long threads = std::strtol(text.c_str(), &end, 10);
  const bool ends = *end == '\0' || *end == ',';  // a list has a number for each level of nesting
  if (end == text.c_str() || !ends || threads < 1 || threads > kMost)
    throw ConfigError(fmt::format("OMP_NUM_THREADS={}: must be a number from 1 to {}", text, kMost));
}

// OpenMP threads spin while they wait unless configured otherwise. With loader threads and other ranks on the same
// cores, that costs more than it saves.
static void prepare_process() {
  export_terminal(in_launched_world());
  setenv("OMP_WAIT_POLICY", "passive", 0);
}

/// The worker's command line with these arguments. Also sets the library paths of the worker in the environment.
static std::vector<std::string> worker_command(const std::vector<std::string>& arguments) {
  check_openmp_threads();
  std::vector<std::string> command{worker_path()};
  static const bool once = (set_library_paths(prefix()), true);
  (void)once;
  command.insert(command.end(), arguments.begin(), arguments.end());
  return command;
}

/// Replaces this process by the program. @throws ConfigError
[[noreturn]] static void replace_by(std::vector<std::string> command) {
  execv(command.at(0).c_str(), pointers(command).data());
  throw ConfigError(fmt::format("cannot run {}: {}", command[0], std::strerror(errno)));
}

void become_worker(const std::vector<std::string>& arguments) {
  auto command = worker_command(arguments);
  prepare_process();
  replace_by(std::move(command));
}

RunEnd check(const std::vector<std::string>& arguments, Report report) {
  const auto prepare = [] {
    prepare_process();
    setenv(kCheckVariable, "1", 1);
  };
  const auto end = Child(worker_command(arguments), prepare, OnStop::end, report).wait();
  // If a signal ended the check, the ranks report errors themselves, unless the user stopped the check.
  if (end.sent == 0) return {end.by_signal ? 0 : end.code};
  return {.code = verdict_on(end, Ranks::of_trireme, 1).code, .stopped = end.stopped};
}

/// A pipe on which ranks wait before they start.
class Gate {
 public:
  Gate() {
    if (pipe2(ends_, O_CLOEXEC) != 0) throw ConfigError(fmt::format("cannot make a pipe: {}", std::strerror(errno)));
  }
  ~Gate() {
    for (const int end : ends_) close(end);
  }
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;
  [[nodiscard]] std::vector<std::string> waiting(const std::vector<std::string>& program) const {
    std::vector<std::string> command{own_program(), kStartRank, fmt::format("/proc/{}/fd/{}", getpid(), ends_[0])};
    command.insert(command.end(), program.begin(), program.end());
    return command;
  }
  void open(std::int64_t ranks) const {
    const std::string bytes(static_cast<std::size_t>(ranks), '.');
    (void)!write(ends_[1], bytes.data(), bytes.size());
  }

 private:
  int ends_[2] = {-1, -1};
};

void start_rank(const std::vector<std::string>& command) {
  const int gate = open(command.at(0).c_str(), O_RDONLY | O_CLOEXEC);
  char byte = 0;
  if (gate < 0 || read(gate, &byte, 1) != 1) _exit(0);  // the check failed, or the front has ended
  replace_by({command.begin() + 1, command.end()});
}

/// The environment of mpirun and its ranks.
static void prepare_mpirun() {
  setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
  setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
  setenv("PATH", "/usr/local/bin:/usr/bin:/bin", 0);  // Open MPI requires PATH
}

/// Waits for mpirun, with an eye on its ranks.
static RunEnd wait_for_ranks(Child& mpirun, Ranks ranks, FlightWatch& watch) {
  const auto look = [&] {
    if (!mpirun.is_ending()) watch.look();
    if (watch.overdue()) mpirun.kill_now();
  };
  const auto ended = mpirun.wait(look, watch.takes_signals_flag());
  auto end = watch.completed(verdict_on(ended, ranks, watch.world_size(), &watch));
  end.stopped = ended.stopped;
  return end;
}

/// Runs the workers by mpirun, and the check while mpirun starts, which takes about as long.
static RunEnd run_by_mpirun(std::int64_t ranks, const std::vector<std::string>& worker,
                            const std::vector<std::string>& arguments, const std::function<void()>& prepare,
                            Check first, OnStop on_stop) {
  const MpiFiles files(ranks);
  FlightWatch watch(static_cast<int>(ranks), /*here=*/true, Ranks::of_trireme);
  const auto prepare_all = [&] {
    prepare();
    prepare_mpirun();
    watch.set_variable();
  };
  if (first == Check::no) {
    Child mpirun(mpirun_command(ranks, files, worker), prepare_all, on_stop);
    return wait_for_ranks(mpirun, Ranks::of_trireme, watch);
  }
  auto gate = std::make_unique<Gate>();
  Child mpirun(mpirun_command(ranks, files, gate->waiting(worker)), prepare_all, on_stop);
  if (auto checked = check(arguments); checked.code != 0) {
    gate.reset();
    (void)mpirun.wait();
    return checked;
  }
  gate->open(ranks);
  return wait_for_ranks(mpirun, Ranks::of_trireme, watch);
}

RunEnd run_ranks(std::int64_t ranks, std::int64_t threads, const std::vector<std::string>& arguments, Check first,
                 OnStop on_stop) {
  const auto worker = worker_command(arguments);
  const auto prepare = [&] {
    prepare_process();
    if (threads > 0) setenv("OMP_NUM_THREADS", std::to_string(threads).c_str(), 1);
    setenv("TRIREME_RANKS", std::to_string(ranks).c_str(), 1);
  };
  const bool by_mpirun = !find_mpirun().empty();
  // With this many ranks, mpirun would be busy when the check fails.
  if (first == Check::yes && (!by_mpirun || ranks > 2 * usable_cores())) {
    if (auto checked = check(arguments); checked.code != 0) return checked;
    first = Check::no;
  }
  if (by_mpirun) return run_by_mpirun(ranks, worker, arguments, prepare, first, on_stop);
  prepare();
  return start_ranks({.program = worker,
                      .environment = whole_environment(),
                      .hosts = share_ranks(static_cast<int>(ranks), {}),
                      .ranks = Ranks::of_trireme,
                      .on_stop = on_stop});
}

RunEnd run_program_by_mpirun(const std::vector<std::string>& program, std::int64_t ranks,
                             const std::vector<Host>& hosts, const std::vector<std::string>& shell) {
  if (find_mpirun().empty())
    throw ConfigError(
        "--mpi needs mpirun, which is not on this machine, or Trireme was built without MPI; install Open MPI (apt-get "
        "install openmpi-bin), or leave out --mpi");
  const MpiFiles files(ranks);
  const auto command = mpirun_command(ranks, files, program, MpiHosts{hosts, shell});
  FlightWatch watch(static_cast<int>(ranks), hosts.empty(), Ranks::of_any_program);
  Child mpirun(command, [&] {
    set_mpi_paths(prefix());
    prepare_mpirun();
    watch.set_variable();
  });
  return wait_for_ranks(mpirun, Ranks::of_any_program, watch);
}

}  // namespace trireme::apps
