// trireme train
#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>

#include "apps/command_line.h"
#include "apps/commands/commands.h"
#include "apps/commands/load_config.h"
#include "apps/commands/process.h"
#include "apps/report.h"
#include "apps/worker/ranks.h"
#include "core/base/log.h"
#include "core/base/text.h"
#include "core/plan/auto_layout.h"
#include "core/plan/machine.h"
#include "core/resume/run_folder.h"
#include "core/setup/run_setup.h"
#include "core/train/run.h"
#include "core/train/stop.h"

namespace trireme::apps {
namespace {

namespace fs = std::filesystem;

/// Checks that config.toml of a run folder names that folder. In a copy of the folder it names the original one, and
/// the user would not expect a run to continue there. @throws ConfigError
void check_own_folder(const TrainCommand& command, const train::RunConfig& config) {
  const auto file = fs::absolute(command.config);
  const auto folder = file.parent_path();
  std::error_code none;
  if (file.filename() != "config.toml" || !fs::exists(folder / "metrics.jsonl", none)) return;
  if (fs::weakly_canonical(config.run.dir, none) == fs::weakly_canonical(folder, none)) return;
  for (const auto& set : command.set)
    if (set.starts_with("run.dir=")) return;
  config::fail(config.root.table("run"), "dir",
               fmt::format("this run folder was copied or moved to {0}; choose where to resume it with --set "
                           "run.dir={0} (or another folder)",
                           folder.string()));
}

train::RunConfig load(const TrainCommand& command) {
  auto config = load_config(command.config, command.set);
  check_own_folder(command, config);
  if (!config.run.machine.empty()) plan::Machine::load(config.run.machine);  // what is wrong with it is said at once
  return config;
}

/// Whether the command or its file says where to start, so that the same command would not go on with the run.
bool says_where_to_start(const train::RunConfig& config) {
  return config.run.resume != train::kResumeAuto && config.run.resume != train::kResumeMust;
}

/// The command that goes on with the run: this one, but not from where it was told to start.
std::string command_to_go_on(const TrainCommand& command, bool said_where) {
  std::string out = "trireme train " + text::shell_word(command.config);
  if (command.ranks) out += fmt::format(" --ranks {}", *command.ranks);
  if (command.max_restarts > 0) out += fmt::format(" --max-restarts {}", command.max_restarts);
  if (command.min_ranks) out += fmt::format(" --min-ranks {}", *command.min_ranks);
  for (const auto& set : command.set)
    if (!set.starts_with("run.resume=")) out += " --set " + text::shell_word(set);
  if (said_where) out += " --resume auto";
  return out;
}

/// Whether `trireme train --ranks N` has started this rank, and says how it ended.
bool is_rank_of_command() { return std::getenv(kRanksVariable) != nullptr; }

/// What the user sees last of a run that a signal has stopped. Our launcher names the signal itself.
void say_how_to_go_on(const TrainCommand& command, const LaunchInfo& info, const train::StoppedBySignal& stop,
                      bool said_where) {
  const bool is_whole = is_rank_of_command() || info.launcher == Launcher::alone;
  const char* same = said_where ? "with the same command and --resume auto" : "with the same command";
  // Not broken into lines, so that it can be copied.
  if (!stop.saved().empty())
    put(fmt::format("go on     {}\n", is_whole ? command_to_go_on(command, said_where) : same));
  if (!is_rank_of_command() && info.launcher != Launcher::launch) say_error(stop.what());
}

/// Says an error that ends the training before the training waits for a checkpoint in flight, whose disk may hang.
struct SayErrors final : train::RunCallback {
  explicit SayErrors(const LaunchInfo& info) : info_(info) {}
  void on_exception(const std::exception_ptr& error) override { say_early(error, info_); }

 private:
  LaunchInfo info_;
};

}  // namespace

int run(const TrainCommand& command) {
  if (std::getenv(kCheckVariable) != nullptr) {
    train::check_run(check_for_ranks(load(command), command.ranks.value_or(1)));
    return 0;
  }
  std::optional<train::RunConfig> config;
  std::optional<train::RunSetup> setup;
  const auto prepare = [&](const LaunchInfo& info) {
    const auto file = config->run.rank_logs ? std::make_shared<LogFile>() : nullptr;
    setup = train::prepare_training(*std::move(config), info, Log(info.rank, stderr, file));
    setup->began = process_begin();
    // Without our launcher, rank 0 must not end before the others can learn why.
    if (info.rank == 0 && is_rank_of_command()) train::check_run(*setup);
  };
  int stopped = 0;
  const int failed = run_on_ranks(
      [&](const LaunchInfo& info) {
        config = load(command);
        const auto options = world_options(*config);
        tune_process(*config, info);
        if (!plan::is_auto(*config)) prepare(info);
        return options;
      },
      [&](comm::World& world) {
        const auto* name = command.timeline ? "train --timeline" : "train";
        if (!setup) {
          check_same_settings(world, name, *config);
          auto chosen = plan::with_auto_layout(*config, world, Log(world.rank()));
          config = std::move(chosen.config);
          prepare(world.info());
          setup->planned = std::move(chosen.said);
        }
        check_same_settings(world, name, *setup);
        if (setup->config.run.memory_mb > 0 && !world.device().is_cpu())
          config::fail(setup->config.root.table("run"), "memory_mb",
                       "applies only to CPU ranks, but these ranks use GPUs; remove it");
        if (setup->config.train.on_oom == train::kOomRetry && !is_rank_of_command())
          setup->log.warn(
              "train.on_oom = \"retry\" has no effect, because another launcher started the ranks; let `trireme train "
              "--ranks N` start them");
        auto folder = train::open_run(*setup);
        const bool said_where = says_where_to_start(setup->config);
        try {
          train::run_training(std::move(*setup), world, std::move(folder),
                              {.terminal = {.columns = terminal_columns(STDOUT_FILENO)},
                               .timeline = command.timeline,
                               .callbacks = {std::make_shared<SayErrors>(world.info())}});
        } catch (const train::StoppedBySignal& stop) {
          if (world.rank() == 0) say_how_to_go_on(command, world.info(), stop, said_where);
          world.group().barrier();  // the launcher ends the others when the first rank ends
          stopped = 128 + stop.signal();
        }
      });
  return failed != 0 ? failed : stopped;
}

}  // namespace trireme::apps
