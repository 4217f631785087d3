#include "tests/command/process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <stdexcept>
#include <thread>

namespace trireme::tests {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

/// The file's text, or "" when there is no file: a process may have ended.
std::string text_in(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream out;
  out << file.rdbuf();
  return out.str();
}

/// A terminal that a child writes to, and what it wrote.
struct Screen {
  int master = -1, slave = -1;
  std::string text;

  void open_with(int columns) {
    master = posix_openpt(O_RDWR | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
    if (master < 0 || grantpt(master) != 0 || unlockpt(master) != 0) throw std::runtime_error("no terminal");
    slave = open(ptsname(master), O_RDWR | O_NOCTTY | O_CLOEXEC);
    termios plain{};
    tcgetattr(slave, &plain);
    cfmakeraw(&plain);  // lines end as they were written
    tcsetattr(slave, TCSANOW, &plain);
    const winsize size{.ws_row = 24, .ws_col = static_cast<unsigned short>(columns), .ws_xpixel = 0, .ws_ypixel = 0};
    ioctl(slave, TIOCSWINSZ, &size);
  }
  void read_now() {
    char part[4096];
    for (ssize_t n = 0; master >= 0 && (n = ::read(master, part, sizeof(part))) > 0;)
      text.append(part, static_cast<std::size_t>(n));
  }
  void hang_up() {
    if (slave >= 0) close(slave);
    if (master >= 0) close(master);
    master = slave = -1;
  }
  ~Screen() { hang_up(); }
};

[[noreturn]] void become(const std::vector<std::string>& command, const ProcessOptions& options,
                         const std::string& folder, const Screen& out, const Screen& err) {
  options.columns > 0 ? (void)setsid() : (void)setpgid(0, 0);
  const auto redirect = [&](const std::string& path, int flags, int to) { dup2(open(path.c_str(), flags, 0600), to); };
  redirect("/dev/null", O_RDONLY, STDIN_FILENO);
  redirect(folder + "/out", O_WRONLY | O_CREAT | O_TRUNC, STDOUT_FILENO);
  redirect(folder + "/err", O_WRONLY | O_CREAT | O_TRUNC, STDERR_FILENO);
  if (options.columns > 0) {
    dup2(out.slave, STDOUT_FILENO);
    dup2(err.slave, STDERR_FILENO);
    ioctl(out.slave, TIOCSCTTY, 0);
  }
  for (const auto& variable : options.environment) {
    const auto equals = variable.find('=');
    if (equals == std::string::npos)
      unsetenv(variable.c_str());
    else
      setenv(variable.substr(0, equals).c_str(), variable.substr(equals + 1).c_str(), 1);
  }
  if (!options.folder.empty() && chdir(options.folder.c_str()) != 0) _exit(126);
  if (options.ignore_hang_up) signal(SIGHUP, SIG_IGN);
  if (options.file_limit > 0) {
    signal(SIGXFSZ, SIG_IGN);  // write() then fails with EFBIG, as it fails with ENOSPC on a full disk
    const rlimit limit{options.file_limit, options.file_limit};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  std::vector<char*> arguments;
  for (const auto& argument : command) arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);
  execvp(arguments[0], arguments.data());
  _exit(127);
}

}  // namespace

ProcessResult run_process(const std::vector<std::string>& command, const ProcessOptions& options) {
  const TemporaryFolder folder;
  Screen out, err;
  if (options.columns > 0) {
    out.open_with(options.columns);
    err.open_with(options.columns);
  }
  const auto begin = Clock::now();
  const auto elapsed = [&] { return std::chrono::duration<double>(Clock::now() - begin).count(); };
  const pid_t child = fork();
  if (child < 0) throw std::runtime_error("fork failed");
  if (child == 0) become(command, options, folder.path(), out, err);
  ProcessResult result;
  bool called = !options.meanwhile;
  int status = 0;
  while (waitpid(child, &status, WNOHANG) == 0) {
    if (!called && elapsed() >= options.after) {
      called = true;
      options.meanwhile(child);
      if (options.hang_up) out.hang_up();
    }
    out.read_now();
    err.read_now();
    if (elapsed() > options.time_limit) {
      result.hung = true;
      kill(-child, SIGKILL);
      waitpid(child, &status, 0);
      break;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  result.seconds = elapsed();
  result.code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  out.read_now();
  err.read_now();
  result.out = text_in(folder.path() + "/out") + out.text;
  result.err = text_in(folder.path() + "/err") + err.text;
  return result;
}

std::vector<pid_t> processes_with(const std::string& text) {
  std::vector<pid_t> found;
  for (const auto& entry : fs::directory_iterator("/proc")) {
    const pid_t id = std::atoi(entry.path().filename().c_str());
    if (id > 0 && text_in((entry.path() / "cmdline").string()).find(text) != std::string::npos) found.push_back(id);
  }
  return found;
}

std::vector<pid_t> ranks_with(const std::string& text) {
  std::multimap<int, pid_t> ranks;
  for (const pid_t id : processes_with(text)) {
    if (text_in("/proc/" + std::to_string(id) + "/comm") != "trireme-worker\n") continue;
    ranks.emplace(std::atoi(variable_of(id, "RANK").c_str()), id);
  }
  std::vector<pid_t> processes;
  for (const auto& [rank, id] : ranks) processes.push_back(id);
  return processes;
}

std::string variable_of(pid_t process, const std::string& name) {
  const auto variables = '\0' + text_in("/proc/" + std::to_string(process) + "/environ");
  const auto begin = '\0' + name + '=';
  const auto at = variables.find(begin);
  if (at == std::string::npos) return "";
  const auto value = at + begin.size();
  return variables.substr(value, variables.find('\0', value) - value);
}

std::string printed_by(pid_t process) {
  const auto output = "/proc/" + std::to_string(process) + "/fd/1";
  // Before it is redirected it may be a pipe, and reading that would not end.
  return fs::is_regular_file(fs::status(output)) ? text_in(output) : "";
}

char state_of(pid_t process) {
  const auto stat = text_in("/proc/" + std::to_string(process) + "/stat");
  const auto name_end = stat.rfind(')');
  return name_end == std::string::npos ? '?' : stat[name_end + 2];
}

bool runs(pid_t process) {
  const char state = state_of(process);
  return state != '?' && state != 'Z' && state != 'X';
}

bool has_signal(pid_t process, const std::string& mask, int signal) {
  const auto status = text_in("/proc/" + std::to_string(process) + "/status");
  const auto at = status.find("\n" + mask + ":");
  return at != std::string::npos &&
         (std::stoull(status.substr(at + mask.size() + 2), nullptr, 16) >> (signal - 1)) % 2 == 1;
}

bool wait_until(const std::function<bool()>& condition, double seconds, std::chrono::microseconds between) {
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  while (!condition()) {
    if (Clock::now() > end) return false;
    std::this_thread::sleep_for(between);
  }
  return true;
}

TemporaryFolder::TemporaryFolder() {
  auto name = (fs::temp_directory_path() / "trireme-test-XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("no temporary folder");
  path_ = name;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

std::string TemporaryFolder::write(const std::string& name, const std::string& content) const {
  const auto path = fs::path(path_) / name;
  fs::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << content;
  return path.string();
}

}  // namespace trireme::tests
