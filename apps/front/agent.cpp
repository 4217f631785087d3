#include "apps/front/agent.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>

#include "apps/front/event_loop.h"
#include "apps/front/frames.h"
#include "apps/front/local_ranks.h"
#include "core/base/environment.h"
#include "core/base/error.h"

namespace trireme::apps {
namespace {

constexpr int kFromLauncher = STDIN_FILENO, kToLauncher = STDOUT_FILENO;
constexpr int kSecondsAfterLoss = 5;

/// Adds this host's own variables that the launcher does not send, and sets the search path for the program.
void complete_environment(RankJob& job) {
  const auto is_sent = [&](std::string_view name) {
    for (const auto& variable : job.environment)
      if (variable.starts_with(name) && variable[name.size()] == '=') return true;
    return false;
  };
  for (const auto& variable : job.environment)
    if (variable.starts_with("PATH=")) setenv("PATH", variable.substr(5).c_str(), 1);
  for (const auto& text : whole_environment())
    if (!is_sent(text.substr(0, text.find('=')))) job.environment.push_back(text);
}

class Agent {
 public:
  int run();

 private:
  void start(const std::string& text);
  void on_launcher();
  void on_signals();
  /// The launcher is gone.
  void on_closed();

  EventLoop loop_;
  SignalQueue signals_;
  FrameReader reader_;
  std::optional<comm::StoreSocket> store_;
  std::unique_ptr<LocalRanks> ranks_;
  bool closed_ = false;
  std::optional<std::chrono::steady_clock::time_point> kill_at_;
};

void Agent::start(const std::string& text) {
  auto [folder, job] = parse_job(text);
  if (chdir(folder.c_str()) != 0)
    throw ConfigError(
        fmt::format("{}: {}; ranks start in the folder in which launch was called", folder, std::strerror(errno)));
  complete_environment(job);
  if (job.first == 0) {
    store_.emplace(/*this_host_only=*/false, job.store.port);
    job.store.port = store_->port();
    (void)write_frame(kToLauncher, FrameKind::port, 0, store_->port());
  }
  const RankEvents events{
      .output = [](int rank, int stream,
                   std::string_view part) { (void)write_frame(kToLauncher, FrameKind::output, rank, stream, part); },
      .ended = [](const RankEnd& end) { (void)write_frame(kToLauncher, FrameKind::end, end.rank, end.status); }};
  ranks_ = std::make_unique<LocalRanks>(loop_, job, store_ ? store_->descriptor() : -1, events);
  store_.reset();  // rank 0 has it
}

void Agent::on_launcher() {
  const bool open = reader_.read_from(kFromLauncher);
  while (const auto frame = reader_.next()) {
    if (frame->kind == FrameKind::job && !ranks_) start(frame->text);
    if (frame->kind == FrameKind::signal && ranks_) ranks_->send(frame->value);
  }
  if (!open) on_closed();
}

void Agent::on_closed() {
  loop_.forget(kFromLauncher);
  closed_ = true;
  if (!ranks_) return;
  ranks_->send(SIGTERM);
  kill_at_ = std::chrono::steady_clock::now() + std::chrono::seconds(kSecondsAfterLoss);
}

void Agent::on_signals() {
  while (const int number = signals_.next()) {
    if (number == SIGCHLD && ranks_) ranks_->collect();
    if (number == SIGTERM || number == SIGHUP) on_closed();  // the remote shell's server stops it
  }
}

int Agent::run() {
  const auto greeting = greeting_line();
  if (write(kToLauncher, greeting.data(), greeting.size()) < 0) return 1;
  loop_.watch(kFromLauncher, [this] { on_launcher(); });
  loop_.watch(signals_.descriptor(), [this] { on_signals(); });
  try {
    while (ranks_ ? ranks_->busy() : !closed_) {
      (void)loop_.run_once(200);
      if (kill_at_ && std::chrono::steady_clock::now() >= *kill_at_) ranks_->send(SIGKILL);
    }
  } catch (const Error& error) {
    (void)write_frame(kToLauncher, FrameKind::error, 0, static_cast<int>(error.code()), error.what());
    return static_cast<int>(error.code());
  }
  return 0;
}

}  // namespace

int run_agent() {
  signal(SIGPIPE, SIG_IGN);
  // A test's shell ignores some.
  for (const int number : {SIGINT, SIGQUIT, SIGHUP, SIGTERM, SIGTSTP}) signal(number, SIG_DFL);
  return Agent().run();
}

}  // namespace trireme::apps
