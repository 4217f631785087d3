// `trireme`: understands the command line, refuses what is wrong in milliseconds, and starts the worker. It links
// neither LibTorch nor libtrireme, whose start would be paid twice.
#include <chrono>
#include <cstdio>
#include <thread>
#include <vector>

#include "apps/command_line.h"
#include "apps/front/launch.h"
#include "apps/front/verify.h"
#include "apps/report.h"
#include "core/base/error.h"
#include "core/config/run_config.h"

namespace trireme::apps {
namespace {

// train and eval: the file is checked before any process starts.
int start(const std::string& path, const std::vector<std::string>& set, const std::optional<std::int64_t>& ranks,
          const std::vector<std::string>& arguments) {
  if (in_launched_world()) {
    if (ranks)
      throw ConfigError(
          "--ranks stands beside a launcher (mpirun, srun or torchrun) that has started this process; remove one of "
          "the two");
    become_worker(arguments);  // every rank is here: the worker says what is wrong once
  }
  const auto config = config::load(path, set);
  if (!ranks || *ranks == 1) become_worker(arguments);
  return run_ranks(*ranks, config.run.threads, arguments);
}

int run(int argc, char** argv) {
  const auto command = parse_command_line(argc, argv);
  if (const auto* answer = std::get_if<Answer>(&command)) {
    std::fputs(answer->text.c_str(), stdout);
    if (std::fflush(stdout) == 0) return 0;
    say_error("standard output cannot be written");
    return 1;
  }
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  if (const auto* train = std::get_if<TrainCommand>(&command))
    return start(train->config, train->set, train->ranks, arguments);
  if (const auto* eval = std::get_if<EvalCommand>(&command))
    return start(eval->config, eval->set, eval->ranks, arguments);
  if (const auto* layouts = std::get_if<VerifyCommand>(&command)) {
    if (in_launched_world())
      throw ConfigError("verify starts the ranks of each layout itself; run it without mpirun, srun or torchrun");
    return verify(*layouts);
  }
  become_worker(arguments);
}

}  // namespace
}  // namespace trireme::apps

// Rank 0 says it for all, and its launcher ends the others.
static int say(const char* what, int code) {
  if (trireme::apps::launched_rank() > 0) std::this_thread::sleep_for(std::chrono::seconds(3));
  trireme::apps::say_error(what);
  return code;
}

int main(int argc, char** argv) {
  try {
    return trireme::apps::run(argc, argv);
  } catch (const trireme::Error& error) {
    return say(error.what(), static_cast<int>(error.code()));
  } catch (const std::exception& error) {
    return say(error.what(), 1);
  }
}
