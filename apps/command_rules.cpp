// Rules about the values of options, beyond their types: what a parsed command line means.
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "apps/command_options.h"
#include "apps/eval_target.h"
#include "core/base/error.h"
#include "core/base/text.h"
#include "core/config/table.h"

namespace trireme::apps {

void refuse(const CLI::App& app, const std::string& what) {
  std::string path = "trireme";
  for (const CLI::App* at = &app; !at->get_subcommands().empty();) {
    at = at->get_subcommands().front();
    path += " " + at->get_name();
  }
  throw ConfigError(fmt::format("{}  ({} --help)", what, path));
}

namespace {

void check_range(const CLI::App& app, const char* option, std::optional<std::int64_t> value, std::int64_t least,
                 std::int64_t most) {
  if (value && (*value < least || *value > most))
    refuse(app, fmt::format("{} {}: must be at least {} and at most {}", option, *value, least, most));
}

void check_choice(const CLI::App& app, const char* option, const std::string& value,
                  const std::vector<std::string>& known) {
  if (std::find(known.begin(), known.end(), value) == known.end())
    refuse(app, fmt::format("{} {}: must be one of {}", option, value, text::join(known)));
}

void check_seed(const CLI::App& app, std::int64_t seed) {
  if (seed < 0) refuse(app, fmt::format("--seed {}: must be at least 0", seed));
}

constexpr std::int64_t kMostRanks = 4096, kMostRestarts = 1'000'000;

/// @throws ConfigError for an override (--set) that does not apply to an evaluation.
void check_eval_settings(const std::vector<std::string>& set) {
  constexpr const char* kOfTraining[] = {"optimizer.",
                                         "schedule.",
                                         "run.dir=",
                                         "run.resume=",
                                         "run.checkpoint_every=",
                                         "run.keep_checkpoints=",
                                         "train.epochs=",
                                         "train.max_steps=",
                                         "train.max_seconds=",
                                         "train.shuffle=",
                                         "train.drop_last=",
                                         "train.max_norm=",
                                         "run.export_dtype=",
                                         "run.export_shard_mb=",
                                         "run.checkpoint_shard_mb=",
                                         "lora.weights=",
                                         "lora.merge=",
                                         "lora.dropout=",
                                         "train.recompute=",
                                         "train.recompute_ratio=",
                                         "train.recompute_layers_per_stage=",
                                         "train.recompute_modules=",
                                         "train.offload_activations=",
                                         "train.label_smoothing="};
  for (const auto& assignment : set) {
    if (assignment.starts_with("model.weights="))
      throw ConfigError(fmt::format("--set {}: eval takes the weights as its first argument; remove it", assignment));
    for (const auto* key : kOfTraining)
      if (assignment.starts_with(key))
        throw ConfigError(fmt::format("--set {}: has no effect in an evaluation; remove it", assignment));
  }
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
  check_range(app, "-n", launch.ranks, 1, kMostRanks);
  check_range(app, "--max-restarts", launch.max_restarts, 0, kMostRestarts);
  check_range(app, "--grace", launch.grace, 1, 86400);
  if (launch.program.empty()) refuse(app, "PROGRAM is missing: what to run on the ranks");
  return launch;
}

Command finish_generate(CLI::App& app, GenerateCommand& generate) {
  const auto& given = *app.get_subcommand("generate");
  const bool has_prompt = given.count("--prompt") > 0;
  if (has_prompt == (given.count("--prompts") > 0))
    refuse(app, has_prompt
                    ? "--prompt and --prompts: both say what to continue; remove one"
                    : "there is no text to continue; give --prompt TEXT, or --prompts FILE with one in each line");
  if (has_prompt && generate.prompt.empty())
    refuse(app, "--prompt \"\": the text to continue is empty; give at least one character");
  if (!has_prompt && generate.prompts.empty())
    refuse(app, "--prompts \"\": name a file with a text to continue in each line");
  check_range(app, "--tokens", generate.tokens, 1, 1'000'000);
  if (!(generate.temperature >= 0 && generate.temperature <= 100))
    refuse(app, fmt::format("--temperature {}: must be at least 0 and at most 100", generate.temperature));
  check_range(app, "--top-k", generate.top_k, 0, 1'000'000'000);
  if (!(generate.top_p > 0 && generate.top_p <= 1))
    refuse(app, fmt::format("--top-p {}: must be above 0 and at most 1", generate.top_p));
  check_seed(app, generate.seed);
  for (const auto* name : {"--top-k", "--top-p", "--seed"})
    if (generate.temperature == 0 && given.count(name) > 0)
      refuse(app, fmt::format("{} has no effect with temperature 0, which always takes the most probable token; add "
                              "--temperature 1, or remove it",
                              name));
  if (generate.chat && generate.stop_at_end)
    refuse(app, "--stop-at-end has no effect with --chat, which stops where the answer ends; remove it");
  if (!generate.chat && given.count("--chat-template") > 0)
    refuse(app, "--chat-template has no effect without --chat; add that, or remove it");
  resolve_weights(app, generate);
  return generate;
}

/// The ranks of a command that also takes layouts.
void check_ranks(CLI::App& app, const std::optional<std::int64_t>& ranks, const std::string& layouts,
                 std::int64_t most) {
  check_range(app, "--ranks", ranks, 1, most);
  if (ranks && !layouts.empty())
    refuse(app,
           "--ranks is for the layout of the file, but each of --layouts has its own number of ranks; remove one of "
           "the two");
}

BenchCommand finish_bench(CLI::App& app, const BenchCommand& bench) {
  check_ranks(app, bench.ranks, bench.layouts, kMostRanks);
  check_range(app, "--seconds", bench.seconds, 1, 86400);
  if (bench.machine.empty() == bench.config.empty())
    refuse(app, bench.machine.empty() ? "CONFIG is missing: the TOML file whose steps to measure"
                                      : "--machine measures the machine alone; remove CONFIG");
  if (!bench.machine.empty() && !text::is_path(bench.machine, ".toml"))
    refuse(app, fmt::format("--machine {}: expected the path of a file to write, with a slash or named .toml",
                            bench.machine));
  if (!bench.profile.empty() && !bench.machine.empty())
    refuse(app, "--profile measures the operators of CONFIG's steps, not the machine; remove --machine");
  return bench;
}

PlanCommand finish_plan(CLI::App& app, const PlanCommand& plan) {
  constexpr std::int64_t kMostPlannedRanks = 1 << 20;
  check_ranks(app, plan.ranks, plan.layouts, kMostPlannedRanks);
  if (!plan.check && plan.paths.size() > 1)
    refuse(app, fmt::format("{}: one TOML file is planned; only --check takes several paths", plan.paths[1]));
  const auto* options = app.get_subcommand("plan");
  for (const auto* name : {"--layouts", "--search", "--ranks", "--machine", "--memory", "--set"})
    if (plan.check && options->count(name) > 0)
      refuse(app, fmt::format("{} has no effect with --check, which reads runs that have ended; remove one of the two",
                              name));
  if (plan.search && !plan.layouts.empty()) refuse(app, "--search chooses the layouts itself; remove --layouts");
  check_range(app, "--seconds", plan.seconds, 1, 86400);
  if (!plan.search && options->count("--seconds") > 0)
    refuse(app, "--seconds limits a search; add --search, or remove it");
  return plan;
}

Command finish_checkpoint(CLI::App& app, Parsed& parsed) {
  const auto& checkpoint = *app.get_subcommand("checkpoint");
  if (checkpoint.got_subcommand("ls")) return parsed.list;
  if (checkpoint.got_subcommand("inspect")) return parsed.inspect_checkpoint;
  if (checkpoint.got_subcommand("verify")) return parsed.verify_checkpoint;
  if (checkpoint.got_subcommand("diff")) return parsed.diff;
  const auto& chosen = parsed.export_checkpoint;
  if (chosen.dtype) check_choice(app, "--dtype", *chosen.dtype, {"fp32", "bf16", "fp16"});
  check_range(app, "--shard-mb", chosen.shard_mb, 0, 1'000'000'000);
  if (chosen.to.empty()) refuse(app, "--to \"\": the name of the folder is empty");
  return chosen;
}

Command finish_train(CLI::App& app, Parsed& parsed) {
  const auto& train = parsed.train;
  check_range(app, "--ranks", train.ranks, 1, kMostRanks);
  check_range(app, "--max-restarts", train.max_restarts, 0, kMostRestarts);
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

/// Without the rule about names, `--out run.toml` would replace the user's file.
Command finish_plot(CLI::App& app, PlotCommand& plot) {
  const bool is_page = !plot.chart;
  if (app.get_subcommand("plot")->count("--out") == 0) plot.out = is_page ? "plot.html" : "plot.svg";
  if (!plot.out.ends_with(is_page ? ".html" : ".svg"))
    refuse(app, fmt::format("--out {}: the name of {} must end in {}", plot.out, is_page ? "the page" : "one chart",
                            is_page ? ".html, or add --chart NAME for one chart as SVG" : ".svg"));
  return plot;
}

}  // namespace

Command finish(CLI::App& app, Parsed& parsed) {
  if (app.got_subcommand("train")) return finish_train(app, parsed);
  if (app.got_subcommand("eval")) {
    check_range(app, "--ranks", parsed.eval.ranks, 1, kMostRanks);
    if (app.get_subcommand("eval")->count("--report") > 0) parsed.eval.report = parsed.report;
    // Without this check, `--report run.toml` would replace the user's file.
    if (!parsed.report.empty() && !parsed.report.ends_with(".json"))
      refuse(app, fmt::format("--report {}: the name of the file must end in .json", parsed.report));
    resolve_weights(app, parsed.eval);
    return parsed.eval;
  }
  if (app.got_subcommand("predict")) {
    auto& predict = parsed.predict;
    check_range(app, "--top", predict.top, 1, 1000);
    check_range(app, "--batch", predict.batch, 1, 65536);
    if (predict.csv && predict.jsonl) refuse(app, "--csv and --jsonl: both say how to print; remove one");
    resolve_weights(app, predict);
    return predict;
  }
  if (app.got_subcommand("generate")) return finish_generate(app, parsed.generate);
  if (app.got_subcommand("tokenize")) {
    auto& tokenize = parsed.tokenize;
    for (const auto& text : app.get_subcommand("tokenize")->remaining()) {
      if (text.starts_with("--"))
        refuse(app, fmt::format("no option {}; a text that begins so is given by --file", text));
      tokenize.texts.push_back(text);
    }
    if (!tokenize.texts.empty() && !tokenize.file.empty())
      refuse(app, "--file and TEXT: both give texts; remove one of the two");
    if (tokenize.file.empty()) tokenize.file = "-";
    return tokenize;
  }
  if (app.got_subcommand("verify")) {
    check_choice(app, "--precision", parsed.verify.precision, {"fp64", "fp32", "tf32", "bf16", "fp16"});
    // Rounding differences grow from step to step during training, even on one rank.
    check_range(app, "--steps", parsed.verify.steps, 1, 50);
    return parsed.verify;
  }
  if (app.got_subcommand("record")) return parsed.record;
  if (app.got_subcommand("check-layouts")) return parsed.check;
  if (app.got_subcommand("measure")) return parsed.measure;
  if (app.got_subcommand("bench")) return finish_bench(app, parsed.bench);
  if (app.got_subcommand("tune")) {
    check_range(app, "--ranks", parsed.tune.ranks, 1, kMostRanks);
    return parsed.tune;
  }
  if (app.got_subcommand("plan")) return finish_plan(app, parsed.plan);
  if (app.got_subcommand("data")) {
    const auto& leaves = parsed.leaves;
    check_range(app, "--images", leaves.images, 30, 10'000'000);
    check_range(app, "--size", leaves.size, 16, 4096);
    check_seed(app, leaves.seed);
    return leaves;
  }
  if (app.got_subcommand("checkpoint")) return finish_checkpoint(app, parsed);
  if (app.got_subcommand("inspect")) return parsed.inspect;
  if (app.got_subcommand("runs")) return parsed.runs;
  if (app.got_subcommand("top")) return parsed.top;
  if (app.got_subcommand("plot")) return finish_plot(app, parsed.plot);
  if (app.got_subcommand("plugins")) return parsed.plugins;
  if (app.got_subcommand("env")) return EnvCommand{};
  if (app.got_subcommand("launch")) return finish_launch(app, parsed.launch);
  const auto& config = parsed.config;
  if (config.config.empty() && config.explain.empty() && !config.explain_all && !config.markdown)
    refuse(app, "name a TOML file, or use --explain KEY");
  return config;
}

}  // namespace trireme::apps
