#include "apps/worker/ranks.h"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

#include "core/base/error.h"
#include "core/comm/flight/failure.h"
#include "core/comm/flight/recorder.h"
#include "core/launch/parent.h"

namespace trireme::apps {
namespace {

enum class Whose { own, of_all };

std::atomic<bool> is_said = false;  // the error that ends this process

/// Says it, unless it is said elsewhere, or was said early.
void say(const Verdict& verdict, const LaunchInfo& info, Whose whose) {
  comm::flight::report_failure(
      {.code = verdict.exit_code, .message = message_of(verdict), .of_all = whose == Whose::of_all}, info,
      [](const std::string& message) {
        if (!is_said.exchange(true)) say_error(message);
      });
}

/// Says an error that ends this process; that of the first thread, if several have one. Returns the exit code.
int say_last(const std::exception_ptr& error, const LaunchInfo& info, Whose whose) {
  static std::atomic_flag spoken;
  while (spoken.test_and_set()) std::this_thread::sleep_for(std::chrono::hours(1));
  const auto verdict = verdict_on(error);
  say(verdict, info, whose);
  return verdict.exit_code;
}

// Only write() and signal() may be called in a handler, so the texts exist before.
std::string stop_texts[NSIG];
void on_stop(int number) {
  const auto& text = stop_texts[number];
  (void)!write(STDERR_FILENO, text.data(), text.size());
  signal(number, SIG_DFL);
  raise(number);
}

/// Reports a signal that ends a process without ranks. With ranks the launcher reports it, once for all of them.
void report_signals() {
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) {
    const char* line_end = isatty(STDERR_FILENO) != 0 ? "\n" : "";  // ends a line with ^C or a progress bar
    stop_texts[number] = fmt::format("{}trireme: stopped by signal {} ({})\n", line_end, number, strsignal(number));
    if (signal(number, on_stop) == SIG_IGN) signal(number, SIG_IGN);  // nohup, or a shell's background job
  }
}

}  // namespace

std::string message_of(const Verdict& verdict) {
  if (!verdict.unexpected) return verdict.message;
  return verdict.message + ". This should not happen; please report it with the output of `trireme env`";
}

int run_on_ranks(const std::function<comm::WorldOptions(const LaunchInfo&)>& prepare,
                 const std::function<void(comm::World&)>& body) {
  LaunchInfo info;
  std::unique_ptr<comm::World> world;
  auto whose = Whose::of_all;
  try {
    info = detect_launch();
    if (!parent::listens()) comm::flight::open(info);  // the ranks of a host say once what they refuse
    if (info.launcher == Launcher::alone) report_signals();
    const auto options = prepare(info);
    whose = Whose::own;
    world = comm::World::start(info, options);
  } catch (...) {
    return say_last(std::current_exception(), info, whose);
  }
  try {
    body(*world);
  } catch (...) {
    // Abort here, because the world's destructor would wait for ranks that never arrive.
    world->abort(say_last(std::current_exception(), info, Whose::own));
  }
  return 0;
}

void say_early(const std::exception_ptr& error, const LaunchInfo& info) {
  const auto verdict = verdict_on(error);
  if (verdict.exit_code == static_cast<int>(ExitCode::communication)) return;
  const auto say_now = [verdict, info] { say(verdict, info, Whose::own); };
  if (info.rank == 0 || parent::listens())
    say_now();
  else
    std::thread(say_now).detach();  // it waits for ranks below it
}

void end_with(const std::exception_ptr& error) {
  LaunchInfo info;
  try {
    info = detect_launch();
  } catch (const Error&) {
    // Without a rank there is no other process that reports the error.
  }
  _exit(say_last(error, info, Whose::own));
}

}  // namespace trireme::apps
