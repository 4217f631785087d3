// trireme-worker: `trireme` starts it, as one process or as ranks. It links libtrireme and LibTorch and does the work.
#include <c10/util/Logging.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdlib>
#include <exception>
#include <stdexcept>
#include <variant>

#include "apps/commands/commands.h"
#include "apps/report.h"
#include "apps/worker/ranks.h"
#include "core/base/error.h"
#include "core/base/mapped_bytes.h"

namespace trireme::apps {
namespace {

// Handles an exception that leaves a thread: reports it without a core dump.
[[noreturn]] void on_terminate() {
  const auto error = std::current_exception();
  end_with(error ? error : std::make_exception_ptr(std::runtime_error("terminated without an exception")));
}

/// The commands that the launcher executes itself.
template <class Chosen>
constexpr bool kRunsInLauncher = std::is_same_v<Chosen, VerifyCommand> || std::is_same_v<Chosen, BenchCommand> ||
                                 std::is_same_v<Chosen, LaunchCommand> || std::is_same_v<Chosen, RunsCommand> ||
                                 std::is_same_v<Chosen, TopCommand> || std::is_same_v<Chosen, PlotCommand>;

int run_command(int argc, char** argv) {
  const auto command = parse_command_line(argc, argv);
  return std::visit(
      [](const auto& chosen) {
        using Chosen = std::decay_t<decltype(chosen)>;
        if constexpr (std::is_same_v<Chosen, Answer>) {
          put(fitted(chosen.text));
          return check_output(0);
        } else if constexpr (kRunsInLauncher<Chosen>) {
          throw ConfigError("this is a command of trireme, not of its worker");
          return 0;
        } else if constexpr (std::is_same_v<Chosen, TrainCommand>) {
          return check_run_output(run(chosen));
        } else {
          return check_output(run(chosen));
        }
      },
      command);
}

// LibTorch's warnings are for programmers, and each rank would print them. TORCH_CPP_LOG_LEVEL=WARNING enables them.
void quieten_libtorch() {
  if (std::getenv("TORCH_CPP_LOG_LEVEL") == nullptr) setenv("TORCH_CPP_LOG_LEVEL", "ERROR", 1);
  c10::initLogging();
}

// Each rank of a world is a connection of rank 0, which serves the store.
void allow_open_files() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace
}  // namespace trireme::apps

int main(int argc, char** argv) {
  using namespace trireme::apps;
  keep_standard_streams();
  std::set_terminate(on_terminate);
  trireme::say_shortened_files();
  signal(SIGXFSZ, SIG_IGN);  // a file size limit makes the write fail, which is reported like a full disk
  quieten_libtorch();
  allow_open_files();
  int code = 0;
  try {
    code = run_command(argc, argv);
  } catch (...) {
    const auto verdict = trireme::verdict_on(std::current_exception());
    code = verdict.exit_code;
    say_common_error(message_of(verdict), code);
  }
  // Not exit(): unloading LibTorch takes time, and other ranks wait until this one ends.
  _exit(code);
}
