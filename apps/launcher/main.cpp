// `trireme`: parses the command line, reports errors within milliseconds, and starts the worker. It links neither
// LibTorch nor libtrireme, because their load time would then be spent twice.
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <climits>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <thread>
#include <vector>

#include "apps/command_line.h"
#include "apps/config_file.h"
#include "apps/launcher/bench.h"
#include "apps/launcher/installation.h"
#include "apps/launcher/restarts.h"
#include "apps/launcher/verify.h"
#include "apps/launcher/worker.h"
#include "apps/plot/plot_command.h"
#include "apps/report.h"
#include "apps/runs/list_runs.h"
#include "apps/runs/top.h"
#include "core/base/environment.h"
#include "core/base/error.h"
#include "core/launch/launch_info.h"
#include "core/launch/parent.h"

namespace trireme::apps {
namespace {

/// Fewer ranks change the number of data-parallel ranks. @throws ConfigError
void refuse_fixed_size(const config::Table& root) {
  if (root.find("parallel", "dp") != nullptr)
    config::fail(root.table("parallel"), "dp",
                 "fixes the number of data-parallel ranks, which --min-ranks lets shrink; remove one of the two");
}

// train, eval, tune and predict: the file is parsed before any process starts. What a rank can check alone it checks
// before it connects to the others.
int start(const std::string& path, const std::vector<std::string>& set, const std::optional<std::int64_t>& ranks,
          const std::vector<std::string>& arguments, const TrainCommand* train = nullptr) {
  keep_config(path);
  const auto root = read_config(path, set);
  if (train != nullptr && train->min_ranks) refuse_fixed_size(root);
  const bool starts_again = train != nullptr && (train->max_restarts > 0 || retries_on_oom(root));
  if (ranks.value_or(1) == 1 && !starts_again) become_worker(arguments);
  if (train != nullptr) return train_with_restarts(*train, threads_of(root), arguments);
  Supervisor supervisor;
  return run_ranks(supervisor, *ranks, threads_of(root), arguments).code;
}

/// trireme launch: any program on all ranks. @throws ConfigError before any rank starts
int launch(const LaunchCommand& command) {
  const auto& name = command.program.front();
  const auto path = find_program(name);
  if (path.empty())
    throw ConfigError(
        fmt::format("{}: no such program{}", name, name.find('/') == std::string::npos ? " on PATH" : ""));
  Supervisor supervisor;
  return with_restarts(supervisor, command.max_restarts, [&](const Attempt&) {
    return supervisor.run({.program = {.path = path, .words = command.program, .environment = whole_environment()},
                           .ranks = static_cast<int>(*command.ranks),
                           .tag_output = command.tag_output,
                           .grace = std::chrono::seconds(command.grace)});
  });
}

/// Whether the command is executed by each rank of a launcher.
bool runs_on_ranks(const Command& command) {
  return std::holds_alternative<TrainCommand>(command) || std::holds_alternative<EvalCommand>(command) ||
         std::holds_alternative<TuneCommand>(command);
}

bool starts_ranks(const Command& command) {
  return runs_on_ranks(command) || std::holds_alternative<VerifyCommand>(command) ||
         std::holds_alternative<BenchCommand>(command) || std::holds_alternative<LaunchCommand>(command);
}

int run(const Command& command, const LaunchInfo& info, const std::vector<std::string>& arguments) {
  if (const auto* answer = std::get_if<Answer>(&command)) {
    std::fputs(fitted(answer->text).c_str(), stdout);
    return check_output(0);
  }
  if (info.size > 1 && runs_on_ranks(command)) become_worker(arguments);  // a rank of a launcher
  signal(SIGPIPE, SIG_IGN);  // what ranks leave must be removed, and a training continues without a reader
  if (const auto* train = std::get_if<TrainCommand>(&command))
    return check_run_output(start(train->config, train->set, train->ranks, arguments, train));
  if (const auto* eval = std::get_if<EvalCommand>(&command))
    return check_output(start(eval->config, eval->set, eval->ranks, arguments));
  if (const auto* tuned = std::get_if<TuneCommand>(&command))
    return check_output(start(tuned->config, tuned->set, tuned->ranks, arguments));
  if (const auto* layouts = std::get_if<VerifyCommand>(&command)) {
    keep_config(layouts->config);
    return check_output(verify(*layouts));
  }
  if (const auto* measured = std::get_if<BenchCommand>(&command)) {
    keep_config(measured->config);
    return check_output(bench(*measured));
  }
  if (const auto* ranks = std::get_if<LaunchCommand>(&command)) return check_output(launch(*ranks));
  signal(SIGPIPE, SIG_DFL);
  if (const auto* runs = std::get_if<RunsCommand>(&command)) return check_output(list_runs(*runs));
  if (const auto* shown = std::get_if<TopCommand>(&command)) return check_output(top(*shown));
  if (const auto* plot = std::get_if<PlotCommand>(&command)) return check_output(plot_runs(*plot));
  if (const auto* predict = std::get_if<PredictCommand>(&command))
    return start(predict->config, predict->set, std::nullopt, arguments);
  if (const auto* generate = std::get_if<GenerateCommand>(&command); generate != nullptr && !generate->config.empty())
    return start(generate->config, generate->set, std::nullopt, arguments);
  become_worker(arguments);
}

// Rejects commands that would start ranks, or read a pipe, once for every rank of an outer launcher.
void refuse_beside_launcher(const Command& command) {
  const auto refuse = [](const auto& of) {
    if (of.ranks)
      throw ConfigError(
          "--ranks conflicts with the launcher (mpirun, srun or torchrun) that started this process; use only one of "
          "them");
    if (!can_be_read_again(of.config))
      throw ConfigError(fmt::format(
          "{}: every rank has to read this file, which can be read only once; name a file on disk", of.config));
  };
  if (const auto* train = std::get_if<TrainCommand>(&command)) {
    refuse(*train);
    if (train->max_restarts > 0)
      throw ConfigError(
          "--max-restarts starts ranks again that this command has started, but a launcher (mpirun, srun, torchrun or "
          "trireme launch) started this process; give it to `trireme launch`, or remove it");
  }
  if (const auto* eval = std::get_if<EvalCommand>(&command)) refuse(*eval);
  if (const auto* tuned = std::get_if<TuneCommand>(&command)) refuse(*tuned);
  if (std::holds_alternative<VerifyCommand>(command) || std::holds_alternative<BenchCommand>(command))
    throw ConfigError(
        "verify and bench start the ranks of each layout themselves; run them without mpirun, srun or torchrun");
  if (std::holds_alternative<LaunchCommand>(command))
    throw ConfigError(
        "launch starts ranks, and a launcher (mpirun, srun, torchrun or trireme launch) already started this process "
        "as one; use only one of them");
}

int fail(const char* what, int code) {
  say_common_error(what, code);
  return code;
}

int run(int argc, char** argv) {
  forget_config();
  LaunchInfo info;
  std::optional<ConfigError> unknown;  // which rank this is
  try {
    info = detect_launch();
  } catch (const ConfigError& error) {
    unknown = error;
    info.rank = std::atoi(environment("PMI_RANK").c_str());  // of another MPI
  }
  const bool first = info.rank == 0;
  std::array<char, PATH_MAX> working_dir{};
  if (getcwd(working_dir.data(), working_dir.size()) == nullptr && errno == ENOENT)
    return !first
               ? 0
               : fail("the current folder was deleted; change to another one (cd)", static_cast<int>(ExitCode::config));
  std::optional<Command> command;
  try {
    command = parse_command_line(argc, argv);
    if (unknown && starts_ranks(*command)) throw ConfigError(*unknown);
    if (info.size > 1) refuse_beside_launcher(*command);
  } catch (const Error& error) {
    // A failure of another rank would end the run before rank 0 has printed it.
    return first ? fail(error.what(), static_cast<int>(error.code())) : 0;
  }
  if (!first && !runs_on_ranks(*command)) return 0;  // only one process executes other commands
  try {
    return run(*command, info, {argv + 1, argv + argc});
  } catch (const Error& error) {
    // Under mpirun and the like, rank 0 usually prints the same error.
    if (!first && !parent::listens()) std::this_thread::sleep_for(std::chrono::seconds(3));
    return fail(error.what(), static_cast<int>(error.code()));
  }
}

}  // namespace
}  // namespace trireme::apps

int main(int argc, char** argv) {
  trireme::apps::keep_standard_streams();
  try {
    return trireme::apps::run(argc, argv);
  } catch (const std::exception& error) {
    trireme::apps::say_error(error.what());
    return 1;
  }
}
