#include "apps/command_line.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <regex>

#include "apps/eval_target.h"
#include "apps/report.h"
#include "core/base/error.h"
#include "core/base/text.h"
#include "core/base/version.h"
#include "core/config/table.h"

namespace trireme::apps {
namespace {

constexpr const char* kFooter = R"(Examples:
  trireme train configs/leaves_vit.toml --ranks 2
  trireme train configs/leaves_vit.toml --set train.epochs=5 --set optimizer.lr=1e-3
  trireme train configs/leaves_vit.toml --resume auto
  trireme eval runs/leaves_vit
  trireme verify configs/leaves_vit.toml --layouts "dp=1; dp=2; tp=2; dp=2,tp=2,zero=2"
  trireme config configs/leaves_vit.toml --print
  trireme config --explain train.micro_batch

Ranks are started by --ranks, mpirun, srun or torchrun. Exit codes: 0 done, 1 a bug (verify: layouts differ), 2 config or
command line, 3 data, 4 out of memory, 5 communication, 6 not finite, 7 checkpoint, 128 + n signal n (docs/errors.md).
)";

constexpr const char* kSetHelp =
    "Override one option of the file. VALUE is TOML; a string needs no quotes. May be given several times";
constexpr const char* kRanksHelp =
    "Number of ranks to start on this machine, by mpirun; with GPUs, use one rank per GPU";

// Otherwise CLI11 would take the arguments after `--set a=b` as further values.
void add_set(CLI::App& command, std::vector<std::string>& set) {
  command.add_option("--set", set, kSetHelp)->type_name("SECTION.KEY=VALUE")->allow_extra_args(false);
}

// Everything that CLI11 writes to. Its callbacks would need globals, so parsed subcommands are evaluated later.
struct Parsed {
  TrainCommand train;
  std::string resume;
  EvalCommand eval;
  VerifyCommand verify;
  RecordCommand record;
  CheckCommand check;
  LeavesCommand leaves;
  PluginsCommand plugins;
  ConfigCommand config;
};

void add_train(CLI::App& app, Parsed& out) {
  auto& command = *app.add_subcommand("train", "Train a model from a TOML file, on one rank or many");
  command.add_option("CONFIG", out.train.config, "The TOML file")->type_name("")->required();
  add_set(command, out.train.set);
  command.add_option("--ranks", out.train.ranks, kRanksHelp)->type_name("N");
  command
      .add_option("--resume", out.resume,
                  "Resume from a checkpoint, or from the newest checkpoint of a run folder; auto: of this run's folder "
                  "(run.dir)")
      ->type_name("auto|DIR");
  command.add_flag(
      "--timeline", out.train.timeline,
      "Record three steps of every rank in the run folder's timeline.json, and draw the pipeline, if there is one");
}

void add_eval(CLI::App& app, Parsed& out) {
  auto& command = *app.add_subcommand("eval", "Evaluate weights on the validation and test samples");
  command.add_option("WEIGHTS", out.eval.weights, "A run folder, a checkpoint, or weights in Hugging Face's layout")
      ->type_name("")
      ->required();
  command.add_option("CONFIG", out.eval.config, "The TOML file; without it, the run's or checkpoint's own")
      ->type_name("");
  add_set(command, out.eval.set);
  command.add_option("--ranks", out.eval.ranks, kRanksHelp)->type_name("N");
}

void add_verify(CLI::App& app, Parsed& out) {
  auto& command = *app.add_subcommand("verify", "Prove that layouts compute the same: losses, gradients, weights");
  command.add_option("CONFIG", out.verify.config, "The TOML file")->type_name("")->required();
  command
      .add_option("--layouts", out.verify.layouts,
                  "Two or more layouts, separated by semicolons; each is compared with the first: \"dp=1; tp=2; "
                  "dp=2,tp=2,zero=1; plugin=gemini,dp=2\"")
      ->type_name("LAYOUTS")
      ->required();
  command.add_option("--steps", out.verify.steps, "Steps to train")->type_name("N")->capture_default_str();
  command
      .add_option("--precision", out.verify.precision,
                  "Precision of the steps: fp64 (rounding cannot hide an error), fp32, tf32, bf16 or fp16")
      ->type_name("P")
      ->capture_default_str();
  add_set(command, out.verify.set);
}

void add_record(CLI::App& app, Parsed& out) {
  auto& command = *app.add_subcommand("record");
  command.add_option("CONFIG", out.record.config)->required();
  command.add_option("--layout", out.record.layout)->required();
  command.add_option("--into", out.record.into)->required();
  command.add_option("--against", out.record.against)->required();
  command.add_option("--steps", out.record.steps);
  add_set(command, out.record.set);
}

void add_check(CLI::App& app, Parsed& out) {
  auto& command = *app.add_subcommand("check-layouts");
  command.add_option("CONFIG", out.check.config)->required();
  command.add_option("--layouts", out.check.layouts)->required();
  add_set(command, out.check.set);
}

void add_data(CLI::App& app, Parsed& out) {
  auto& data = *app.add_subcommand("data", "Generate data sets");
  data.require_subcommand(1);
  auto& leaves = *data.add_subcommand("leaves", "Generate images of healthy and diseased leaves, as an image folder");
  leaves.add_option("--out", out.leaves.out, "The folder to create")->type_name("DIR")->required();
  leaves.add_option("--images", out.leaves.images, "Number of images, in all splits together")
      ->type_name("N")
      ->capture_default_str();
  leaves.add_option("--size", out.leaves.size, "Pixels per side")->type_name("PX")->capture_default_str();
  leaves.add_option("--seed", out.leaves.seed, "Seed of the images")->type_name("S")->capture_default_str();
}

void add_config(CLI::App& app, Parsed& out) {
  auto& command = *app.add_subcommand("config", "Check a file, print all its options, or explain an option");
  command
      .add_option("CONFIG", out.config.config,
                  "The TOML file; --explain needs it only for a plugin that the file names by its path")
      ->type_name("");
  add_set(command, out.config.set);
  command.add_flag("--print", out.config.print, "Print the value of every option, defaults included");
  command.add_option("--explain", out.config.explain, "Explain an option (train.micro_batch) or a section (train)")
      ->type_name("KEY");
  command.add_flag("--explain-all", out.config.explain_all, "Explain every option of every section");
  command.add_flag("--markdown", out.config.markdown)->group("");
}

constexpr std::size_t kDescriptions = 34;  ///< the column where the descriptions begin

std::string help_of(const CLI::App& app) {
  const CLI::App* deepest = &app;
  std::string name;
  while (!deepest->get_subcommands().empty()) {
    name += (name.empty() ? "" : " ") + deepest->get_name();
    deepest = deepest->get_subcommands().front();
  }
  return fitted(deepest->help(name), kDescriptions);
}

std::string path_of(const CLI::App& app) {
  std::string path = "trireme";
  for (const CLI::App* at = &app; !at->get_subcommands().empty();) {
    at = at->get_subcommands().front();
    path += " " + at->get_name();
  }
  return path;
}

[[noreturn]] void refuse(const CLI::App& app, const std::string& what) {
  throw ConfigError(fmt::format("{}  ({} --help)", what, path_of(app)));
}

std::vector<std::string> names_of(const CLI::App& app) {
  std::vector<std::string> names;
  for (const auto* option : app.get_options())
    for (const auto& name : option->get_lnames()) names.push_back("--" + name);
  return names;
}

/// Commands that only verify starts.
bool is_ours(const CLI::App& command) {
  return command.get_name() == "record" || command.get_name() == "check-layouts";
}

std::vector<std::string> commands_of(CLI::App& app) {
  std::vector<std::string> names;
  for (const auto* command : app.get_subcommands([](CLI::App* each) { return !is_ours(*each); }))
    names.push_back(command->get_name());
  return names;
}

// Reports arguments that no command knows: a misspelt command or option, or an extra argument.
[[noreturn]] void refuse_extra(CLI::App& app, const Parsed& parsed, const std::string& word) {
  if (!word.starts_with("-"))
    for (const auto* set : {&parsed.train.set, &parsed.eval.set, &parsed.verify.set, &parsed.config.set})
      for (const auto& assignment : *set)
        if (assignment.find('=') == std::string::npos || assignment.back() == '=')
          refuse(app, fmt::format("--set {0}: write it without spaces: --set {1}={2}", assignment,
                                  assignment.substr(0, assignment.find('=')), word == "=" ? "VALUE" : word));
  CLI::App* deepest = &app;
  while (!deepest->get_subcommands().empty()) deepest = deepest->get_subcommands().front();
  const auto commands = commands_of(*deepest);
  if (word.rfind("-", 0) == 0) {
    const auto name = word.substr(0, word.find('='));
    const auto known = names_of(*deepest);
    if (std::find(known.begin(), known.end(), name) != known.end())
      refuse(app, fmt::format("{} stands before the command; put it after the command's name", name));
    refuse(app, fmt::format("no option {}{}", name, text::did_you_mean(name, known)));
  }
  if (!commands.empty())
    refuse(app, fmt::format("no command \"{}\" (known: {}){}", word, text::join(commands),
                            text::did_you_mean(word, commands)));
  refuse(app, fmt::format("unexpected argument \"{}\"", word));
}

/// Rewrites CLI11's messages about values as sentences.
std::string reworded(const std::string& what) {
  std::smatch found;
  if (std::regex_search(what, found, std::regex("Could not convert: (\\S+) = (.*)")))
    return fmt::format("{} {}: must be an integer", found.str(1), found.str(2));
  if (std::regex_search(what, found, std::regex("^(\\S+): [0-9]+ required .* missing")))
    return fmt::format("{} needs a value", found.str(1));
  if (std::regex_search(what, found, std::regex("^(\\S+): At Most 1 required")))
    return fmt::format("{} is given more than once", found.str(1));
  return what;
}

[[noreturn]] void refuse_missing(CLI::App& app) {
  CLI::App* deepest = &app;
  while (!deepest->get_subcommands().empty()) deepest = deepest->get_subcommands().front();
  refuse(app, fmt::format("no command given (known: {})", text::join(commands_of(*deepest))));
}

void check_ranks(const CLI::App& app, const std::optional<std::int64_t>& ranks) {
  if (ranks && (*ranks < 1 || *ranks > 4096))
    refuse(app, fmt::format("--ranks {}: must be at least 1 and at most 4096", *ranks));
}

/// Finds the weights to evaluate and, if no file is given, their configuration.
void resolve_eval(const CLI::App& app, EvalCommand& eval) {
  const auto target = find_eval_target(eval.weights);
  eval.own_config = eval.config.empty();
  if (eval.own_config && target.config.empty()) {
    std::error_code error;
    const bool is_there = std::filesystem::exists(target.weights, error);
    refuse(app, fmt::format("{}: {}; name a run folder or a checkpoint, or the weights and the TOML file", eval.weights,
                            error      ? error.message()
                            : is_there ? "not a run folder or a checkpoint, for it has no config.toml"
                                       : "no such file or folder"));
  }
  if (eval.own_config) eval.config = target.config;
  eval.weights = target.weights;
  eval.is_checkpoint = target.is_checkpoint;
}

Command finish(CLI::App& app, Parsed& parsed) {
  if (app.got_subcommand("train")) {
    check_ranks(app, parsed.train.ranks);
    if (app.get_subcommand("train")->count("--resume") > 0 && (parsed.resume.empty() || parsed.resume.front() == '-'))
      refuse(app, fmt::format("--resume {}: give auto, a checkpoint or a run folder",
                              parsed.resume.empty() ? "\"\"" : parsed.resume));
    if (!parsed.resume.empty()) parsed.train.set.push_back("run.resume=" + config::to_toml(parsed.resume));
    return parsed.train;
  }
  if (app.got_subcommand("eval")) {
    check_ranks(app, parsed.eval.ranks);
    check_eval_settings(parsed.eval.set);
    resolve_eval(app, parsed.eval);
    return parsed.eval;
  }
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
  if (app.got_subcommand("plugins")) return parsed.plugins;
  if (app.got_subcommand("env")) return EnvCommand{};
  const auto& config = parsed.config;
  if (config.config.empty() && config.explain.empty() && !config.explain_all && !config.markdown)
    refuse(app, "name a TOML file, or use --explain KEY");
  return config;
}

}  // namespace

Command parse_command_line(int argc, const char* const* argv) {
  CLI::App app("Trireme trains models on one rank or many, from one TOML file.", "trireme");
  app.set_version_flag("--version", "trireme " TRIREME_VERSION)->description("Print the version and exit");
  app.set_help_all_flag("");
  app.require_subcommand(1);
  app.get_formatter()->column_width(kDescriptions);
  app.get_formatter()->label("SUBCOMMAND", "COMMAND");
  app.get_formatter()->label("REQUIRED", "");
  Parsed parsed;
  add_train(app, parsed);
  add_eval(app, parsed);
  add_verify(app, parsed);
  add_record(app, parsed);
  add_check(app, parsed);
  add_data(app, parsed);
  app.add_subcommand("plugins", "List the plugins and their options")
      ->add_option("PLUGIN", parsed.plugins.plugins, "The name of a plugin, or the path of a .so; default: all plugins")
      ->type_name("");
  add_config(app, parsed);
  app.add_subcommand("env", "Print versions and devices, for a bug report");
  app.footer(kFooter);  // added after the commands, which would otherwise inherit it
  for (auto* command : app.get_subcommands([](CLI::App*) { return true; }))
    command->group(is_ours(*command) ? "" : "Commands");
  if (argc == 1) return Answer{fitted(app.help(), kDescriptions)};
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    return Answer{help_of(app)};
  } catch (const CLI::CallForVersion& version) {
    return Answer{std::string(version.what()) + "\n"};
  } catch (const CLI::ParseError& error) {
    const auto extra = app.remaining(true);
    if (!extra.empty()) refuse_extra(app, parsed, extra.front());
    if (app.get_subcommands().empty() || app.got_subcommand("data"))
      if (std::string(error.what()).find("subcommand") != std::string::npos) refuse_missing(app);
    refuse(app, reworded(error.what()));
  }
  return finish(app, parsed);
}

}  // namespace trireme::apps
