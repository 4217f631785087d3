#include "apps/command_line.h"

#include <fmt/format.h>

#include <algorithm>
#include <regex>
#include <string_view>

#include "apps/command_options.h"
#include "apps/report.h"
#include "core/base/error.h"
#include "core/base/text.h"
#include "core/base/version.h"

namespace trireme::apps {
namespace {

constexpr const char* kFooter = R"(Examples:
  trireme train configs/leaves_vit.toml --ranks 2
  trireme train configs/leaves_vit.toml --set train.epochs=5 --set optimizer.lr=1e-3
  trireme train configs/leaves_vit.toml --fresh
  trireme eval runs/leaves_vit
  trireme predict runs/leaves_vit photos/ --csv
  trireme generate runs/llama --prompt "Once upon a time" --temperature 0.8
  trireme tokenize runs/llama "Once upon a time"
  trireme verify configs/leaves_vit.toml --layouts "dp=1; dp=2; tp=2; dp=2,tp=2,zero=2"
  trireme tune configs/leaves_vit.toml --ranks 2
  trireme launch -n 4 ./program
  mpirun -n 8 --host node1:4,node2:4 trireme train configs/leaves_vit.toml
  trireme plot runs
  trireme checkpoint ls runs/leaves_vit
  trireme checkpoint export runs/leaves_vit --to exported --dtype bf16
  trireme config configs/leaves_vit.toml --print
  trireme config --explain train.micro_batch

Ranks are started by --ranks, launch, mpirun, srun or torchrun. Exit codes: 0 done, 1 a bug (verify: layouts differ), 2 config or
command line, 3 data, 4 out of memory, 5 communication, 6 not finite, 7 checkpoint, 8 checkpoint diff: different, 128 + n
signal n (docs/errors.md).
)";

constexpr std::size_t kDescriptions = 34;  ///< the column where the descriptions begin

std::vector<std::string> names_of(const CLI::App& app) {
  std::vector<std::string> names;
  for (const auto* option : app.get_options())
    for (const auto& name : option->get_lnames()) names.push_back("--" + name);
  return names;
}

/// Commands that only verify and bench start.
bool is_ours(const CLI::App& command) {
  const auto& name = command.get_name();
  return name == "record" || name == "check-layouts" || name == "measure";
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
                            &parsed.verify.set, &parsed.tune.set, &parsed.config.set})
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
    for (const char* elsewhere : {"--hosts", "--host", "--hostfile", "--rsh", "--mpi"})
      if (deepest->get_name() == "launch" && name == elsewhere)
        refuse(app, fmt::format("{}: launch starts ranks on this machine alone; start those of several by "
                                "mpirun -n 8 --host node1:4,node2:4 PROGRAM, srun or torchrun",
                                name));
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
    return Answer{fitted(app.help(), kDescriptions)};  // that of the command
  } catch (const CLI::CallForVersion& version) {
    return Answer{std::string(version.what()) + "\n"};
  } catch (const CLI::ParseError& error) {
    const auto extra = app.remaining(true);
    if (!extra.empty()) refuse_extra(app, parsed, extra.front());
    if (app.get_subcommands().empty() || app.got_subcommand("data") || app.got_subcommand("checkpoint"))
      if (std::string(error.what()).find("subcommand") != std::string::npos) refuse_missing(app);
    refuse(app, reworded(error.what()));
  }
  return finish(app, parsed);
}

}  // namespace trireme::apps
