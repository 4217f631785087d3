#include "apps/command_line.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <regex>
#include <string_view>

#include "apps/command_options.h"
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
  trireme train configs/leaves_vit.toml --fresh
  trireme eval runs/leaves_vit
  trireme predict runs/leaves_vit photos/ --csv
  trireme generate runs/llama --prompt "Once upon a time" --temperature 0.8
  trireme verify configs/leaves_vit.toml --layouts "dp=1; dp=2; tp=2; dp=2,tp=2,zero=2"
  trireme launch -n 8 --hosts node1:4,node2:4 trireme train configs/leaves_vit.toml
  trireme config configs/leaves_vit.toml --print
  trireme config --explain train.micro_batch

Ranks are started by --ranks, launch, mpirun, srun or torchrun. Exit codes: 0 done, 1 a bug (verify: layouts differ), 2 config or
command line, 3 data, 4 out of memory, 5 communication, 6 not finite, 7 checkpoint, 128 + n signal n (docs/errors.md).
)";

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
    for (const auto* set : {&parsed.train.set, &parsed.eval.set, &parsed.predict.set, &parsed.generate.set,
                            &parsed.verify.set, &parsed.config.set})
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
    return fmt::format("{} {}: must be {}", found.str(1), found.str(2),
                       found.str(1) == "--temperature" ? "a number" : "an integer");
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

/// Removes PROGRAM and its arguments, which may look like options of ours, from the arguments of launch.
std::vector<std::string> take_program(const CLI::App& launch, std::vector<const char*>& arguments) {
  std::size_t at = 2;
  for (; at < arguments.size() && arguments[at][0] == '-'; ++at) {
    if (std::string_view(arguments[at]) == "--") break;
    const auto* option = launch.get_option_no_throw(arguments[at]);
    if (option != nullptr && option->get_items_expected_max() > 0) ++at;
  }
  at = std::min(at, arguments.size());
  const bool mark = at < arguments.size() && arguments[at][0] == '-';
  std::vector<std::string> program(arguments.begin() + static_cast<std::ptrdiff_t>(at) + (mark ? 1 : 0),
                                   arguments.end());
  arguments.resize(at);
  return program;
}

LaunchCommand finish_launch(CLI::App& app, LaunchCommand& launch) {
  if (!launch.ranks) refuse(app, "-n N is missing: the number of ranks to start");
  if (*launch.ranks < 1 || *launch.ranks > 4096)
    refuse(app, fmt::format("-n {}: must be at least 1 and at most 4096", *launch.ranks));
  if (launch.grace < 1 || launch.grace > 86400)
    refuse(app, fmt::format("--grace {}: must be at least 1 and at most 86400", launch.grace));
  if (launch.program.empty()) refuse(app, "PROGRAM is missing: what to run on the ranks");
  if (app.get_subcommand("launch")->count("--hosts") + app.get_subcommand("launch")->count("--hostfile") > 1)
    refuse(app, "--hosts and --hostfile both name the hosts; use only one of them");
  if (launch.mpi && launch.tag_output) refuse(app, "--tag-output does not work with --mpi; leave out one of them");
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

Command finish(CLI::App& app, Parsed& parsed) {
  if (app.got_subcommand("train")) {
    check_ranks(app, parsed.train.ranks);
    if (app.get_subcommand("train")->count("--resume") > 0 && (parsed.resume.empty() || parsed.resume.front() == '-'))
      refuse(app, fmt::format("--resume {}: give auto, must, a checkpoint or a run folder",
                              parsed.resume.empty() ? "\"\"" : parsed.resume));
    if (parsed.fresh && !parsed.resume.empty()) refuse(app, "--fresh starts a new run; remove it, or remove --resume");
    if (parsed.fresh) parsed.resume = "never";
    if (!parsed.resume.empty()) parsed.train.set.push_back("run.resume=" + config::to_toml(parsed.resume));
    return parsed.train;
  }
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
  if (app.got_subcommand("plugins")) return parsed.plugins;
  if (app.got_subcommand("env")) return EnvCommand{};
  if (app.got_subcommand("launch")) return finish_launch(app, parsed.launch);
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
  add_commands(app, parsed);
  app.footer(kFooter);  // added after the commands, which would otherwise inherit it
  for (auto* command : app.get_subcommands([](CLI::App*) { return true; }))
    command->group(is_ours(*command) ? "" : "Commands");
  if (argc == 1) return Answer{fitted(app.help(), kDescriptions)};
  std::vector<const char*> arguments(argv, argv + argc);
  if (std::string_view(argv[1]) == "launch")
    parsed.launch.program = take_program(*app.get_subcommand("launch"), arguments);
  try {
    app.parse(static_cast<int>(arguments.size()), arguments.data());
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
