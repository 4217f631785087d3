// The command line of `trireme`, parsed in the same way by both programs: the launcher (starts ranks, answers what
// needs no LibTorch) and the worker (does the work).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace trireme::apps {

/// This variable makes a worker only check whether its training could start, on as many ranks as its command says.
inline constexpr const char* kCheckVariable = "TRIREME_CHECK";
/// This variable tells a worker that a command with --ranks has started it as one of so many ranks.
inline constexpr const char* kRanksVariable = "TRIREME_RANKS";

struct TrainCommand {
  std::string config;
  std::vector<std::string> set;  ///< assignments, including --resume
  std::optional<std::int64_t> ranks;
  bool timeline = false;
  std::int64_t max_restarts = 0;
  std::optional<std::int64_t> min_ranks;  ///< that a restart may have; unset: as many as before
};
/// Of the commands that take weights.
struct WeightsArgument {
  std::string weights;         ///< the weights that find_eval_target() has found for the user's argument
  std::string config;          ///< the user's file, else the config.toml of the run or checkpoint
  bool own_config = false;     ///< the user gave no file
  bool is_checkpoint = false;  ///< `weights` is a checkpoint's folder
  std::vector<std::string> set;
};
struct EvalCommand : WeightsArgument {
  std::optional<std::int64_t> ranks;
  std::optional<std::string> report;  ///< set: the task's report is wanted, and if it is not "", in this file
};
struct PredictCommand : WeightsArgument {
  std::vector<std::string> inputs;    ///< files and folders
  bool csv = false, jsonl = false;    ///< one of these, or lines for people
  std::optional<std::int64_t> top;    ///< classes or labels for each sample; unset: 1, or the labels that are likely
  std::optional<std::int64_t> batch;  ///< samples of a forward pass; unset: as in an evaluation
};
struct GenerateCommand : WeightsArgument {
  std::string prompt, prompts;  ///< the text to continue, or a file with one in each line; the other is ""
  std::string tokenizer;        ///< "": the one that belongs to the weights
  std::int64_t tokens = 64, top_k = 0, seed = 42;
  double temperature = 0, top_p = 1;
  bool stop_at_end = false;
  bool chat = false;          ///< the texts are messages of a user, or conversations
  std::string chat_template;  ///< "": the run's, else the tokenizer's
};
struct TokenizeCommand {
  std::string tokenizer;
  std::vector<std::string> texts;
  std::string file;                 ///< whose lines are the texts, if there are none; "-": standard input
  std::optional<std::string> pair;  ///< the second text of each sample
  bool no_special = false;          ///< without the tokens that the tokenizer puts around a text
  bool json = false;
};
struct VerifyCommand {
  std::string config, layouts;
  std::vector<std::string> set;
  std::int64_t steps = 3;
  std::string precision = "fp64";
};
/// Started by verify, once per layout.
struct RecordCommand {
  std::string config, layout, into, against;
  std::vector<std::string> set;
  std::int64_t steps = 3;
};
/// Started by verify and bench, once before all layouts.
struct CheckCommand {
  std::string config, layouts;  ///< layouts "": the file's own, on `ranks` ranks
  std::vector<std::string> set;
  std::int64_t ranks = 1;
};
struct BenchCommand {
  std::string config, layouts, against;  ///< "": the file's own layout; no other program
  std::vector<std::string> set;
  std::optional<std::int64_t> ranks;  ///< without layouts
  std::int64_t seconds = 20;          ///< of measured steps for each layout, or of the machine
  std::string machine;                ///< where the machine's rates are written; "": steps are measured
  std::string profile;                ///< where a trace of single operators is written; "": there is none
  bool json = false;
};
/// Started by bench, once per layout and round.
struct MeasureCommand {
  std::string config, layout, into;  ///< config "": the machine; layout "": the file's own
  std::vector<std::string> set;
  double seconds = 20;
  bool profile = false;
};
struct TuneCommand {
  std::string config;
  std::vector<std::string> set;
  std::optional<std::int64_t> ranks;
  bool json = false;
};
struct PlanCommand {
  std::vector<std::string> paths;  ///< the TOML file; with check the folders of runs
  bool check = false;              ///< compare finished runs with their forecasts
  std::string layouts;             ///< "": the file's own
  std::vector<std::string> set;
  std::optional<std::int64_t> ranks;  ///< without layouts
  bool search = false;                ///< layouts of so many ranks, too
  std::int64_t seconds = 10;          ///< that a search may take
  std::string machine;                ///< a file or a name; "": that of the file, or none
  std::string memory;                 ///< of a rank, with its unit: "80GB"; "": that of the machine
  bool json = false;
};
struct LeavesCommand {
  std::string out;
  std::int64_t images = 900, size = 64, seed = 7;
};
struct PluginsCommand {
  std::vector<std::string> plugins;  ///< names or paths; empty: all plugins that are found
};
struct ConfigCommand {
  std::string config;  ///< may be empty with explain or markdown
  std::vector<std::string> set;
  bool print = false;
  std::string explain;
  bool explain_all = false;
  bool markdown = false;  ///< print docs/config.md to standard output
};
struct EnvCommand {};
// `trireme checkpoint ...`. `path`: a checkpoint, or a run for its newest one.
struct CheckpointListCommand {
  std::string run;
  bool json = false;
};
struct CheckpointInspectCommand {
  std::string path;
  bool tensors = false, json = false;
};
struct CheckpointVerifyCommand {
  std::string path;  ///< a run stands for all of its checkpoints
  bool json = false;
};
struct CheckpointExportCommand {
  std::string path, to;
  std::optional<std::string> dtype;      ///< unset: that of the run's own export
  std::optional<std::int64_t> shard_mb;  ///< unset: that of the run's own export
  std::string names;                     ///< of another library; "": Hugging Face's
  bool merge = false, overwrite = false;
};
struct CheckpointDiffCommand {
  std::string first, second;
  bool all = false, weights = false, json = false;
};
struct InspectCommand {
  std::string path;
  bool stats = false, json = false;
};
/// Only the launcher executes it.
struct RunsCommand {
  std::string dir = "runs";
  bool json = false;
};
/// Only the launcher executes it.
struct TopCommand {
  std::string run;
};
/// Only the launcher executes it.
struct PlotCommand {
  std::vector<std::string> runs;     ///< runs, and folders with runs
  std::string out;                   ///< ends in .html, with a chart in .svg
  std::optional<std::string> chart;  ///< unset: the page with all of them
};
/// Only the launcher executes it.
struct LaunchCommand {
  std::optional<std::int64_t> ranks;
  std::int64_t grace = 15;  ///< seconds that ranks have to end after a signal
  std::int64_t max_restarts = 0;
  bool tag_output = false;
  std::vector<std::string> program;  ///< and its arguments
};
/// Only prints `text` (help, version).
struct Answer {
  std::string text;
};

using Command =
    std::variant<Answer, TrainCommand, EvalCommand, PredictCommand, GenerateCommand, TokenizeCommand, VerifyCommand,
                 RecordCommand, CheckCommand, BenchCommand, MeasureCommand, TuneCommand, PlanCommand, LeavesCommand,
                 PluginsCommand, ConfigCommand, EnvCommand, CheckpointListCommand, CheckpointInspectCommand,
                 CheckpointVerifyCommand, CheckpointExportCommand, CheckpointDiffCommand, InspectCommand, RunsCommand,
                 TopCommand, PlotCommand, LaunchCommand>;

/// @throws ConfigError that describes the error and names the --help that covers it.
Command parse_command_line(int argc, const char* const* argv);

}  // namespace trireme::apps
