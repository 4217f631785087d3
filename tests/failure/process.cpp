#include "tests/failure/process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <thread>

namespace trireme::tests {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

std::string content_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream out;
  out << file.rdbuf();
  return out.str();
}

[[noreturn]] void become(const std::vector<std::string>& command, const ProcessOptions& options,
                         const std::string& folder) {
  setpgid(0, 0);
  const auto redirect = [&](const std::string& path, int flags, int to) { dup2(open(path.c_str(), flags, 0600), to); };
  redirect("/dev/null", O_RDONLY, STDIN_FILENO);
  redirect(folder + "/out", O_WRONLY | O_CREAT | O_TRUNC, STDOUT_FILENO);
  redirect(folder + "/err", O_WRONLY | O_CREAT | O_TRUNC, STDERR_FILENO);
  for (const auto& variable : options.environment) {
    const auto equals = variable.find('=');
    if (equals == std::string::npos)
      unsetenv(variable.c_str());
    else
      setenv(variable.substr(0, equals).c_str(), variable.substr(equals + 1).c_str(), 1);
  }
  if (!options.folder.empty() && chdir(options.folder.c_str()) != 0) _exit(126);
  if (options.file_limit > 0) {
    signal(SIGXFSZ, SIG_IGN);  // write() then says EFBIG, as it says ENOSPC on a full disk
    const rlimit limit{options.file_limit, options.file_limit};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  std::vector<char*> words;
  for (const auto& word : command) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  execvp(words[0], words.data());
  _exit(127);
}

}  // namespace

Outcome run_process(const std::vector<std::string>& command, const ProcessOptions& options) {
  const TemporaryFolder folder;
  const auto begin = Clock::now();
  const auto elapsed = [&] { return std::chrono::duration<double>(Clock::now() - begin).count(); };
  const pid_t child = fork();
  if (child < 0) throw std::runtime_error("fork failed");
  if (child == 0) become(command, options, folder.path());
  Outcome outcome;
  bool called = !options.meanwhile;
  int status = 0;
  while (waitpid(child, &status, WNOHANG) == 0) {
    if (!called && elapsed() >= options.after) {
      called = true;
      options.meanwhile(child);
    }
    if (elapsed() > options.time_limit) {
      outcome.hung = true;
      kill(-child, SIGKILL);
      waitpid(child, &status, 0);
      break;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  outcome.seconds = elapsed();
  outcome.code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  outcome.out = content_of(folder.path() + "/out");
  outcome.err = content_of(folder.path() + "/err");
  return outcome;
}

std::vector<pid_t> processes_with(const std::string& text) {
  std::vector<pid_t> found;
  for (const auto& entry : fs::directory_iterator("/proc")) {
    const pid_t id = std::atoi(entry.path().filename().c_str());
    if (id > 0 && content_of((entry.path() / "cmdline").string()).find(text) != std::string::npos) found.push_back(id);
  }
  return found;
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
