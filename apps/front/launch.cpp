#include "apps/front/launch.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <climits>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "apps/report.h"
#include "core/base/error.h"

namespace trireme::apps {
namespace {

// The folder above the one that this program stands in: the build folder, or the prefix of the installation.
std::string prefix() {
  char path[PATH_MAX];
  const auto length = readlink("/proc/self/exe", path, sizeof(path) - 1);
  if (length < 0) throw ConfigError("cannot read /proc/self/exe to find the worker program; is /proc mounted?");
  const std::string program(path, static_cast<std::size_t>(length));
  const auto folder = program.substr(0, program.rfind('/'));
  return folder.substr(0, folder.rfind('/'));
}

bool is_program(const std::string& path) { return access(path.c_str(), X_OK) == 0; }

// The program of this name that is first on PATH; "": there is none.
std::string on_path(const std::string& name) {
  const char* path = std::getenv("PATH");
  std::string rest = path == nullptr ? "" : path;
  while (!rest.empty()) {
    const auto colon = rest.find(':');
    const auto candidate = rest.substr(0, colon) + "/" + name;
    if (is_program(candidate)) return candidate;
    rest = colon == std::string::npos ? "" : rest.substr(colon + 1);
  }
  return "";
}

// The mpirun of the MPI that Trireme was built with, else the first on PATH.
std::string find_mpirun() {
  if (is_program(TRIREME_MPIRUN)) return TRIREME_MPIRUN;
  const auto found = on_path("mpirun");
  if (found.empty())
    throw ConfigError(
        "--ranks needs mpirun, which is not on this machine; install Open MPI (apt-get install openmpi-bin), or start "
        "the ranks with srun or torchrun");
  return found;
}

int cores() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return CPU_COUNT(&set);
  return static_cast<int>(std::thread::hardware_concurrency());
}

// Whether one process may read another's memory, which Open MPI's shared memory likes to do: in many containers the
// call is forbidden, and each message would complain.
bool may_read_other_processes() {
  char from = 1, to = 0;
  iovec source{&from, 1}, target{&to, 1};
  return process_vm_readv(getpid(), &target, 1, &source, 1, 0) == 1;
}

// Columns of the terminal behind a stream, 0 when it is none. mpirun gives the ranks pipes, so they cannot see it.
std::string columns_of(int stream) {
  winsize size{};
  if (isatty(stream) == 0) return "0";
  if (ioctl(stream, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return "80";
  return std::to_string(size.ws_col);
}

void tell_about_terminal() {
  setenv("TRIREME_TERMINAL", columns_of(STDOUT_FILENO).c_str(), 1);
  setenv("TRIREME_TERMINAL_ERR", columns_of(STDERR_FILENO).c_str(), 1);
  // OpenMP's threads spin while they wait unless told; beside loader threads and other ranks that costs more than it
  // saves.
  setenv("OMP_WAIT_POLICY", "passive", 0);
}

std::vector<char*> pointers(std::vector<std::string>& words) {
  std::vector<char*> out;
  for (auto& word : words) out.push_back(word.data());
  out.push_back(nullptr);
  return out;
}

// Open MPI keeps files of a run there, and hangs where they do not fit.
void check_scratch(std::int64_t ranks) {
  constexpr double kMi = 1024 * 1024;
  std::string folder = "/tmp";
  for (const char* name : {"TMPDIR", "TEMP", "TMP"})
    if (const char* named = std::getenv(name); named != nullptr && *named != '\0') {
      folder = named;
      break;
    }
  struct statvfs space {};
  if (access(folder.c_str(), W_OK | X_OK) != 0 || statvfs(folder.c_str(), &space) != 0)
    throw ConfigError(fmt::format("{}: {}; Open MPI keeps files there: set TMPDIR to a folder that can be written to",
                                  folder, std::strerror(errno)));
  const double left = static_cast<double>(space.f_bavail) * static_cast<double>(space.f_frsize) / kMi;
  const double needed = 8 + 2 * static_cast<double>(ranks);
  if (left < needed)
    throw ConfigError(
        fmt::format("{}: {:.1f} MiB are free, and Open MPI wants {:.0f} MiB for {} ranks; free some space, "
                    "or set TMPDIR to another folder",
                    folder, left, needed, ranks));
}

std::vector<std::string> mpirun_command(std::int64_t ranks, const std::vector<std::string>& arguments) {
  // Quiet: mpirun's own words about a failed rank. We say it once, and shorter.
  std::vector<std::string> command{
      find_mpirun(), "-n", std::to_string(ranks), "--oversubscribe", "--bind-to", "none", "--quiet", "--stdin", "none"};
  const auto set = [&](const char* name, const char* value) { command.insert(command.end(), {"--mca", name, value}); };
  set("opal_signal", "6");  // a crash is told by its signal, without Open MPI's stack trace
  // It wants a way to other hosts even where it needs none.
  if (on_path("ssh").empty() && on_path("rsh").empty()) set("plm_rsh_agent", "/bin/sh");
  // A waiting rank spins; where ranks and their loader threads share cores that would take time from the others.
  if (2 * ranks > cores()) set("mpi_yield_when_idle", "1");
  if (!may_read_other_processes()) set("btl_vader_single_copy_mechanism", "none");
  command.push_back(worker_path());
  command.insert(command.end(), arguments.begin(), arguments.end());
  return command;
}

// Signal handlers can reach nothing but statics.
volatile sig_atomic_t child_process = 0;
volatile sig_atomic_t last_signal = 0;
constexpr unsigned kSecondsToEnd = 15;

void on_signal(int number, siginfo_t* info, void*) {
  last_signal = number;
  // A key on the terminal reaches mpirun by itself; what was sent to this process alone is passed on.
  if (info->si_code <= 0 && child_process > 0) kill(static_cast<pid_t>(child_process), number);
  if (number != SIGUSR1 && number != SIGUSR2) alarm(kSecondsToEnd);
}

// An mpirun that is stuck (on a full disk it may be) ends its ranks no more; killed, it takes them with it.
void on_alarm(int) {
  if (child_process > 0) kill(static_cast<pid_t>(child_process), SIGKILL);
}

constexpr int kPassedOn[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2};

sigset_t passed_on() {
  sigset_t set;
  sigemptyset(&set);
  for (const int number : kPassedOn) sigaddset(&set, number);
  return set;
}

void handle_signals(bool ours) {
  signal(SIGALRM, ours ? on_alarm : SIG_DFL);
  struct sigaction action {};
  action.sa_flags = SA_SIGINFO | SA_RESTART;
  action.sa_sigaction = on_signal;
  if (!ours) action.sa_handler = SIG_DFL;
  for (const int number : kPassedOn) {
    struct sigaction before {};
    sigaction(number, nullptr, &before);
    if (before.sa_handler != SIG_IGN) sigaction(number, &action, nullptr);  // nohup's choice stands
  }
}

// What mpirun, kept quiet, does not say: that a rank was ended by a signal.
int verdict_on(int exit_code) {
  const bool ends_ranks_alone = last_signal == SIGUSR1 || last_signal == SIGUSR2;  // a program may take them as news
  if (last_signal != 0 && (!ends_ranks_alone || exit_code == 128 + last_signal)) {
    if (isatty(STDERR_FILENO) != 0) std::fputc('\n', stderr);  // the terminal's ^C, or a line of progress, stands there
    say_error(fmt::format("stopped by signal {} ({})", static_cast<int>(last_signal), strsignal(last_signal)));
    return 128 + last_signal;
  }
  const int number = exit_code > 128 && exit_code < 128 + NSIG ? exit_code - 128 : 0;
  switch (number) {
    case 0:
      break;
    case SIGKILL:
      say_error(
          "a rank was killed (signal 9), most often because the machine ran out of memory: take fewer ranks, a "
          "smaller train.micro_batch, or train.recompute = true");
      break;
    case SIGSEGV:
    case SIGBUS:
    case SIGFPE:
    case SIGILL:
    case SIGABRT:
    case SIGTRAP:
    case SIGSYS:
      say_error(
          fmt::format("a rank crashed by signal {} ({}). This is a bug in Trireme or below it; please report it with "
                      "what `trireme env` prints",
                      number, strsignal(number)));
      break;
    default:
      say_error(fmt::format("a rank was ended by signal {} ({})", number, strsignal(number)));
  }
  return exit_code;
}

[[noreturn]] void become_mpirun(const std::vector<char*>& words, pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (getppid() != parent) _exit(1);
  const int nothing = open("/dev/null", O_RDONLY);
  if (nothing >= 0) dup2(nothing, STDIN_FILENO);
  // What came since the fork, to a whole terminal say, ends this process here.
  handle_signals(false);
  const auto set = passed_on();
  sigprocmask(SIG_UNBLOCK, &set, nullptr);
  execv(words[0], words.data());
  _exit(127);
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
  const char* of_another_mpi = std::getenv("PMI_SIZE");  // which the worker refuses
  if (of_another_mpi != nullptr && std::atoi(of_another_mpi) > 1) return true;
  // An interactive step of Slurm is a shell, and may start ranks.
  const char* tasks = std::getenv("SLURM_STEP_NUM_TASKS");
  return set("SLURM_STEP_ID") && set("SLURM_PROCID") && tasks != nullptr && std::strcmp(tasks, "1") != 0;
}

int launched_rank() {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "RANK", "PMI_RANK", "SLURM_PROCID"})
    if (const char* rank = std::getenv(name)) return std::atoi(rank);
  return 0;
}

void become_worker(const std::vector<std::string>& arguments) {
  tell_about_terminal();
  std::vector<std::string> command{worker_path()};
  command.insert(command.end(), arguments.begin(), arguments.end());
  execv(command[0].c_str(), pointers(command).data());
  throw ConfigError(fmt::format("cannot run {}: {}", command[0], std::strerror(errno)));
}

int run_ranks(std::int64_t ranks, std::int64_t threads, const std::vector<std::string>& arguments) {
  check_scratch(ranks);
  auto command = mpirun_command(ranks, arguments);
  const auto words = pointers(command);
  // Held back until there is a child to pass them on to.
  const auto signals = passed_on();
  sigprocmask(SIG_BLOCK, &signals, nullptr);
  handle_signals(true);
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child == 0) {
    // Here, where the next run's ranks do not inherit it.
    tell_about_terminal();
    setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
    setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
    setenv("OMP_NUM_THREADS", std::to_string(threads > 0 ? threads : 1).c_str(), threads > 0 ? 1 : 0);
    setenv("TRIREME_RANKS", std::to_string(ranks).c_str(), 1);
    become_mpirun(words, parent);
  }
  child_process = child;
  sigprocmask(SIG_UNBLOCK, &signals, nullptr);
  if (child < 0) throw ConfigError(fmt::format("cannot start mpirun: {}", std::strerror(errno)));
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  alarm(0);
  return verdict_on(WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status));
}

}  // namespace trireme::apps
