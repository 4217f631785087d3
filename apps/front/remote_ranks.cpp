#include "apps/front/remote_ranks.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <thread>
#include <utility>

#include "apps/front/agent.h"
#include "apps/front/child.h"
#include "apps/front/programs.h"
#include "core/base/environment.h"
#include "core/base/error.h"
#include "core/base/text.h"
#include "core/base/version.h"
#include "core/comm/flight/record.h"

namespace trireme::apps {
namespace {

void close_end(int& descriptor) {
  if (descriptor >= 0) close(std::exchange(descriptor, -1));
}

/// `failure` gets errno when the shell cannot be executed, and is closed by exec().
[[noreturn]] void become_shell(char* const* command, int in, int out, int err, int failure, pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (getppid() != parent) _exit(1);
  dup2(in, STDIN_FILENO);
  dup2(out, STDOUT_FILENO);
  dup2(err, STDERR_FILENO);
  signal(SIGPIPE, SIG_DFL);
  // A key on the terminal is for the launcher, which sends the signal on. The shell stays in the terminal's process
  // group, because it may ask for a password there.
  for (const int number : {SIGINT, SIGQUIT, SIGHUP, SIGTSTP}) signal(number, SIG_IGN);
  SignalQueue::restore();
  execvp(command[0], command);
  const int error = errno;
  (void)!write(failure, &error, sizeof error);
  _exit(127);
}

/// The last line that is not empty, as text for any terminal.
std::string last_line(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n";
  const auto end = text.find_last_not_of(kSpace);
  if (end == std::string_view::npos) return "";
  text = text.substr(0, end + 1);
  return text::printable(text.substr(text.find_last_of('\n') + 1));
}

}  // namespace

std::vector<std::string> environment_for_hosts() {
  std::vector<std::string> out;
  for (const auto& text : whole_environment()) {
    const auto name = text.substr(0, text.find('='));
    if (name == "TRIREME_ADDRESS" || name == "TRIREME_HOST_IDENTITY" || name == "TRIREME_STORE_FD" ||
        name == comm::flight::kFolderVariable)
      continue;
    for (const std::string_view prefix : {"TRIREME_", "OMP_", "NCCL_", "CUDA_", "MASTER_", "LD_LIBRARY_PATH=", "PATH="})
      if (text.starts_with(prefix)) out.push_back(text);
  }
  return out;
}

RemoteRanks::RemoteRanks(EventLoop& loop, std::string name, const std::vector<std::string>& shell, const RankJob& job,
                         RemoteEvents events)
    : loop_(loop),
      name_(std::move(name)),
      job_(job_text(job, std::filesystem::current_path().string())),
      events_(std::move(events)),
      missing_(job.count) {
  start_shell(shell);
  loop_.watch(from_agent_, [this] { on_frames(); });
  loop_.watch(complaints_, [this] { on_complaint(); });
}

void RemoteRanks::start_shell(const std::vector<std::string>& shell) {
  auto words = shell;
  words.push_back(name_);
  words.push_back(fmt::format("exec {} {}", text::shell_word(own_program()), kStartAgent));
  const auto command = pointers(words);
  int ends[4][2];
  for (auto& pair : ends)
    if (pipe2(pair, O_CLOEXEC) != 0) throw ConfigError(fmt::format("cannot make a pipe: {}", std::strerror(errno)));
  const pid_t parent = getpid();
  shell_ = fork();
  if (shell_ == 0) become_shell(command.data(), ends[0][0], ends[1][1], ends[2][1], ends[3][1], parent);
  close(ends[0][0]);
  close(ends[1][1]);
  close(ends[2][1]);
  close(ends[3][1]);
  to_agent_ = ends[0][1];
  from_agent_ = ends[1][0];
  complaints_ = ends[2][0];
  for (const int descriptor : {from_agent_, complaints_}) fcntl(descriptor, F_SETFL, O_NONBLOCK);
  if (shell_ < 0) throw ConfigError(fmt::format("cannot start {}: {}", words[0], std::strerror(errno)));
  int reason = 0;
  const bool failed = read(ends[3][0], &reason, sizeof reason) == sizeof reason;
  close(ends[3][0]);
  if (!failed) return;
  (void)end_shell();
  throw ConfigError(fmt::format("{}: {}; install this remote shell, or name another one by --rsh or TRIREME_RSH",
                                words[0], std::strerror(reason)));
}

RemoteRanks::~RemoteRanks() { (void)end_shell(); }

int RemoteRanks::end_shell() {
  for (int* descriptor : {&from_agent_, &complaints_}) {
    if (*descriptor >= 0) loop_.forget(*descriptor);
    close_end(*descriptor);
  }
  close_end(to_agent_);
  if (shell_ < 0) return 0;
  int status = 0;
  // It ends by itself when the agent has. Otherwise the connection may hang.
  for (int tries = 0; waitpid(shell_, &status, WNOHANG) == 0; ++tries) {
    if (tries == 100) kill(shell_, SIGTERM);
    if (tries == 200) kill(shell_, SIGKILL);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  shell_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

void RemoteRanks::send(int signal) {
  if (to_agent_ < 0 || missing_ == 0) return;
  if (greeted_)
    (void)write_frame(to_agent_, FrameKind::signal, 0, signal);
  else if (signal != SIGUSR1 && signal != SIGUSR2 && signal != SIGTSTP && signal != SIGCONT) {
    missing_ = 0;  // nothing has started there
    (void)end_shell();
  }
}

void RemoteRanks::on_frames() {
  const bool open = reader_.read_from(from_agent_);
  try {
    if (!greeted_) {
      if (const auto version = reader_.greeting()) {
        if (*version != TRIREME_VERSION)
          return fail(fmt::format("host {} has Trireme {} and this machine {}; install the same version on all hosts",
                                  name_, text::printable(*version), TRIREME_VERSION),
                      static_cast<int>(ExitCode::config));
        greeted_ = true;
        (void)write_frame(to_agent_, FrameKind::job, 0, 0, job_);
      }
    }
    while (greeted_ && from_agent_ >= 0) {
      const auto frame = reader_.next();
      if (!frame) break;
      handle(*frame);
    }
  } catch (const CommError& error) {
    return fail(fmt::format("host {}: {}", name_, error.what()), static_cast<int>(error.code()));
  }
  if (!open && from_agent_ >= 0) on_closed();
}

void RemoteRanks::handle(const Frame& frame) {
  switch (frame.kind) {
    case FrameKind::output:
      return events_.ranks.output(frame.rank, frame.value, frame.text);
    case FrameKind::end:
      --missing_;
      return events_.ranks.ended({frame.rank, frame.value});
    case FrameKind::port:
      return events_.port(frame.value);
    case FrameKind::error:
      return fail(fmt::format("host {}: {}", name_, frame.text), frame.value);
    case FrameKind::job:
    case FrameKind::signal:
      break;
  }
  throw CommError(fmt::format("the agent sent a message \"{}\", which it never does", static_cast<char>(frame.kind)));
}

void RemoteRanks::on_complaint() {
  std::array<char, 4096> part{};
  const auto length = read(complaints_, part.data(), part.size());
  if (length < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (length > 0) {
    complaint_.append(part.data(), static_cast<std::size_t>(length));
    if (complaint_.size() > 2 * part.size()) complaint_.erase(0, complaint_.size() - part.size());
    return;
  }
  loop_.forget(complaints_);
  close_end(complaints_);
}

void RemoteRanks::on_closed() {
  if (missing_ == 0) {
    (void)end_shell();
    return;
  }
  while (complaints_ >= 0) {  // the reason, which may arrive a little later
    const auto before = complaint_.size();
    on_complaint();
    if (complaints_ >= 0 && complaint_.size() == before) break;
  }
  const auto said = last_line(complaint_);
  const int code = end_shell();
  const auto reason = said.empty() ? fmt::format("the remote shell ended with exit code {}", code) : said;
  const auto communication = static_cast<int>(ExitCode::communication);
  constexpr int kNoProgram = 127, kNoConnection = 255;
  if (greeted_)
    fail(fmt::format("host {} is down, or the connection to it was lost, with {} running ({})", name_,
                     text::quantity(missing_, "rank"), reason),
         communication);
  else if (code == kNoProgram)
    fail(fmt::format("host {} has no {}: install Trireme there in the same folder ({})", name_, own_program(), reason),
         static_cast<int>(ExitCode::config));
  else if (code == kNoConnection)
    fail(fmt::format("host {} cannot be reached: {}", name_, reason), communication);
  else
    fail(fmt::format("host {}: trireme could not be started there: {}", name_, reason), communication);
}

void RemoteRanks::fail(const std::string& message, int code) {
  missing_ = 0;
  (void)end_shell();
  events_.failed({message, code});
}

}  // namespace trireme::apps
