#include "apps/command_rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "apps/eval_target.h"
#include "core/base/error.h"
#include "core/base/text.h"
#include "core/config/table.h"

namespace trireme::apps {
namespace {

std::string path_of(const CLI::App& app) {
  std::string path = "trireme";
  for (const CLI::App* at = &app; !at->get_subcommands().empty();) {
    at = at->get_subcommands().front();
    path += " " + at->get_name();
  }
  return path;
}

}  // namespace

[[noreturn]] void refuse(const CLI::App& app, const std::string& what) {
  throw ConfigError(fmt::format("{}  ({} --help)", what, path_of(app)));
}

namespace {

void check_restarts(const CLI::App& app, std::int64_t most) {
  if (most < 0 || most > 1'000'000)
    refuse(app, fmt::format("--max-restarts {}: must be at least 0 and at most 1000000", most));
}

void check_ranks(const CLI::App& app, const std::optional<std::int64_t>& ranks) {
  if (ranks && (*ranks < 1 || *ranks > 4096))
    refuse(app, fmt::format("--ranks {}: must be at least 1 and at most 4096", *ranks));
}

/// Finds the weights and, if no file is given, their configuration. A model that generates text needs no data, and its
/// config.json may describe it as well.
void resolve_weights(const CLI::App& app, WeightsArgument& eval) {
  check_eval_settings(eval.set);
  const auto target = find_eval_target(eval.weights);
  eval.own_config = eval.config.empty();
  if (eval.own_config && target.config.empty() && !app.got_subcommand("generate")) {
    std::error_code error;
    const auto status = std::filesystem::status(target.weights, error);
    const auto* problem =
        std::filesystem::is_regular_file(status)
            ? "a file that is neither in a run's model folder nor in a checkpoint, so it has no config.toml"
        : std::filesystem::exists(status) ? "not a run folder or a checkpoint, for it has no config.toml"
                                          : "no such file or folder";
    const bool unreadable = status.type() == std::filesystem::file_type::none;
    refuse(app, fmt::format("{}: {}; name a run folder or a checkpoint, or the weights and the TOML file{}",
                            eval.weights, unreadable ? error.message() : problem,
                            app.got_subcommand("predict") ? " (--config FILE)" : ""));
  }
  if (eval.own_config) eval.config = target.config;
  eval.weights = target.weights;
  eval.is_checkpoint = target.is_checkpoint;
}

LaunchCommand finish_launch(CLI::App& app, LaunchCommand& launch) {
  if (!launch.ranks) refuse(app, "-n N is missing: the number of ranks to start");
  if (*launch.ranks < 1 || *launch.ranks > 4096)
    refuse(app, fmt::format("-n {}: must be at least 1 and at most 4096", *launch.ranks));
  check_restarts(app, launch.max_restarts);
  if (launch.grace < 1 || launch.grace > 86400)
    refuse(app, fmt::format("--grace {}: must be at least 1 and at most 86400", launch.grace));
  if (launch.program.empty()) refuse(app, "PROGRAM is missing: what to run on the ranks");
  return launch;
}

Command finish_generate(CLI::App& app, GenerateCommand& generate) {
  if (generate.prompt.empty()) refuse(app, "--prompt \"\": the text to continue is empty; give at least one character");
  if (generate.tokens < 1 || generate.tokens > 1'000'000)
    refuse(app, fmt::format("--tokens {}: must be at least 1 and at most 1000000", generate.tokens));
  if (!(generate.temperature >= 0 && generate.temperature <= 100))
    refuse(app, fmt::format("--temperature {}: must be at least 0 and at most 100", generate.temperature));
  if (generate.top_k < 0 || generate.top_k > 1'000'000'000)
    refuse(app, fmt::format("--top-k {}: must be at least 0 and at most 1000000000", generate.top_k));
  if (generate.seed < 0) refuse(app, fmt::format("--seed {}: must be at least 0", generate.seed));
  const auto* options = app.get_subcommand("generate");
  for (const auto* name : {"--top-k", "--seed"})
    if (generate.temperature == 0 && options->count(name) > 0)
      refuse(app, fmt::format("{} has no effect with temperature 0, which always takes the most probable token; add "
                              "--temperature 1, or remove it",
                              name));
  resolve_weights(app, generate);
  return generate;
}

Command finish_checkpoint(CLI::App& app, Parsed& parsed) {
  const auto& checkpoint = *app.get_subcommand("checkpoint");
  if (checkpoint.got_subcommand("ls")) return parsed.list;
  if (checkpoint.got_subcommand("inspect")) return parsed.inspect_checkpoint;
  if (checkpoint.got_subcommand("verify")) return parsed.verify_checkpoint;
  if (checkpoint.got_subcommand("diff")) return parsed.diff;
  const auto& chosen = parsed.export_checkpoint;
  const std::vector<std::string> known{"fp32", "bf16", "fp16"};
  if (chosen.dtype && std::find(known.begin(), known.end(), *chosen.dtype) == known.end())
    refuse(app, fmt::format("--dtype {}: must be one of {}", *chosen.dtype, text::join(known)));
  if (chosen.shard_mb && (*chosen.shard_mb < 0 || *chosen.shard_mb > 1'000'000'000))
    refuse(app, fmt::format("--shard-mb {}: must be at least 0 and at most 1000000000", *chosen.shard_mb));
  if (chosen.to.empty()) refuse(app, "--to \"\": the name of the folder is empty");
  return chosen;
}

Command finish_train(CLI::App& app, Parsed& parsed) {
  const auto& train = parsed.train;
  check_ranks(app, train.ranks);
  check_restarts(app, train.max_restarts);
  if (train.min_ranks && train.max_restarts == 0)
    refuse(app, "--min-ranks is for restarts; add --max-restarts, or remove it");
  if (train.min_ranks && (*train.min_ranks < 1 || *train.min_ranks > train.ranks.value_or(1)))
    refuse(app, fmt::format("--min-ranks {}: must be at least 1 and at most --ranks ({})", *train.min_ranks,
                            train.ranks.value_or(1)));
  if (app.get_subcommand("train")->count("--resume") > 0 && (parsed.resume.empty() || parsed.resume.front() == '-'))
    refuse(app, fmt::format("--resume {}: give auto, must, a checkpoint or a run folder",
                            parsed.resume.empty() ? "\"\"" : parsed.resume));
  if (parsed.fresh && !parsed.resume.empty()) refuse(app, "--fresh starts a new run; remove it, or remove --resume");
  if (parsed.fresh) parsed.resume = "never";
  if (!parsed.resume.empty()) parsed.train.set.push_back("run.resume=" + config::to_toml(parsed.resume));
  return parsed.train;
}

}  // namespace

Command finish(CLI::App& app, Parsed& parsed) {
  if (app.got_subcommand("train")) return finish_train(app, parsed);
  if (app.got_subcommand("eval")) {
    check_ranks(app, parsed.eval.ranks);
    if (app.get_subcommand("eval")->count("--report") > 0) parsed.eval.report = parsed.report;
    // Without this check, `--report run.toml` would replace the user's file.
    if (!parsed.report.empty() && !parsed.report.ends_with(".json"))
      refuse(app, fmt::format("--report {}: the name of the file must end in .json", parsed.report));
    resolve_weights(app, parsed.eval);
    return parsed.eval;
  }
  if (app.got_subcommand("predict")) {
    auto& predict = parsed.predict;
    if (predict.top < 1 || predict.top > 1000)
      refuse(app, fmt::format("--top {}: must be at least 1 and at most 1000", predict.top));
    if (predict.batch && (*predict.batch < 1 || *predict.batch > 65536))
      refuse(app, fmt::format("--batch {}: must be at least 1 and at most 65536", *predict.batch));
    resolve_weights(app, predict);
    return predict;
  }
  if (app.got_subcommand("generate")) return finish_generate(app, parsed.generate);
  if (app.got_subcommand("verify")) {
    const auto& precision = parsed.verify.precision;
    const std::vector<std::string> known{"fp64", "fp32", "tf32", "bf16", "fp16"};
    if (std::find(known.begin(), known.end(), precision) == known.end())
      refuse(app, fmt::format("--precision {}: must be one of {}", precision, text::join(known)));
    // Rounding differences grow from step to step during training, even on one rank.
    if (parsed.verify.steps < 1 || parsed.verify.steps > 50)
      refuse(app, fmt::format("--steps {}: must be at least 1 and at most 50", parsed.verify.steps));
    return parsed.verify;
  }
  if (app.got_subcommand("record")) return parsed.record;
  if (app.got_subcommand("check-layouts")) return parsed.check;
  if (app.got_subcommand("data")) {
    const auto& leaves = parsed.leaves;
    if (leaves.images < 30 || leaves.images > 10'000'000)
      refuse(app, fmt::format("--images {}: must be at least 30 and at most 10000000", leaves.images));
    if (leaves.size < 16 || leaves.size > 4096)
      refuse(app, fmt::format("--size {}: must be at least 16 and at most 4096", leaves.size));
    if (leaves.seed < 0) refuse(app, fmt::format("--seed {}: must be at least 0", leaves.seed));
    return leaves;
  }
  if (app.got_subcommand("checkpoint")) return finish_checkpoint(app, parsed);
  if (app.got_subcommand("inspect")) return parsed.inspect;
  if (app.got_subcommand("plugins")) return parsed.plugins;
  if (app.got_subcommand("env")) return EnvCommand{};
  if (app.got_subcommand("launch")) return finish_launch(app, parsed.launch);
  const auto& config = parsed.config;
  if (config.config.empty() && config.explain.empty() && !config.explain_all && !config.markdown)
    refuse(app, "name a TOML file, or use --explain KEY");
  return config;
}

}  // namespace trireme::apps
