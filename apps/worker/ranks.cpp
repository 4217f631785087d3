#include "apps/worker/ranks.h"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>

#include "core/base/cores.h"
#include "core/base/error.h"
#include "core/comm/flight/lost_peer.h"
#include "core/comm/flight/recorder.h"

namespace trireme::apps {
namespace {

// Waits so that rank 0 can report the same error and end all ranks, but not too long for the user. When ranks share
// cores, more of them means a later start.
void let_others_speak(const LaunchInfo& info, int exit_code) {
  // Our launcher ends the ranks that have lost a peer, and reports why that one ended.
  if (info.launcher == Launcher::launch && exit_code == static_cast<int>(ExitCode::communication))
    std::this_thread::sleep_for(std::chrono::seconds(2));
  if (info.rank == 0) return;
  const auto wait = std::chrono::milliseconds(3000 + 100 * std::min(info.rank, 50));
  std::this_thread::sleep_for(wait * std::max(1, info.local_size / usable_cores()));
}

std::atomic<bool> said_early = false;

void say_message(const Verdict& verdict, const LaunchInfo& info) {
  say_error(message_of(verdict), info.rank > 0 ? fmt::format("rank {}: ", info.rank) : "");
}

// The first thread with an error reports it; the process then ends.
int say(const Verdict& verdict, const LaunchInfo& info) {
  static std::atomic_flag spoken;
  while (spoken.test_and_set()) std::this_thread::sleep_for(std::chrono::hours(1));
  if (said_early) return verdict.exit_code;
  if (comm::flight::report_lost_peer("trireme", verdict.exit_code, message_of(verdict), info)) return verdict.exit_code;
  let_others_speak(info, verdict.exit_code);
  if (!said_early.exchange(true)) say_message(verdict, info);
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

/// Reports a signal that ends a process without ranks. With ranks the front reports it, once for all of them.
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
  try {
    info = detect_launch();
    if (info.launcher == Launcher::alone) report_signals();
    world = comm::World::start(info, prepare(info));
  } catch (...) {
    return say(verdict_on(std::current_exception()), info);
  }
  try {
    body(*world);
  } catch (...) {
    // Abort here, because the world's destructor would wait for ranks that never arrive.
    world->abort(say(verdict_on(std::current_exception()), info));
  }
  return 0;
}

void say_early(const std::exception_ptr& error, const LaunchInfo& info) {
  const auto verdict = verdict_on(error);
  if (verdict.exit_code == static_cast<int>(ExitCode::communication)) return;
  comm::flight::end_with_error(verdict.exit_code, message_of(verdict));  // so that its end explains the others'
  const auto say_once = [verdict, info] {
    let_others_speak(info, verdict.exit_code);
    if (!said_early.exchange(true)) say_message(verdict, info);
  };
  if (info.rank == 0)
    say_once();
  else
    std::thread(say_once).detach();
}

void end_with(const std::exception_ptr& error) {
  LaunchInfo info;
  try {
    info = detect_launch();
  } catch (const Error&) {
    // Without a rank there is no other process that reports the error.
  }
  _exit(say(verdict_on(error), info));
}

}  // namespace trireme::apps
