#include "apps/command_options.h"

#include <memory>

namespace trireme::apps {
namespace {

constexpr const char* kSetHelp =
    "Override one option of the file. VALUE is TOML; a string needs no quotes. May be given several times";
constexpr const char* kRestartsHelp = "How often ranks that died or lost each other are started again (0)";
constexpr const char* kJsonHelp = "Print JSON";
constexpr const char* kRanksHelp = "Number of ranks to start on this machine; with GPUs, use one rank per GPU";

// Otherwise CLI11 would take the arguments after `--set a=b` as further values.
void add_set(CLI::App& command, std::vector<std::string>& set) {
  command.add_option("--set", set, kSetHelp)->type_name("SECTION.KEY=VALUE")->allow_extra_args(false);
}

/// Adds an option or an argument: "--tokens N", or "CONFIG", whose name says enough.
template <class T>
CLI::Option* add(CLI::App& command, const std::string& name_and_value, T& out, const std::string& help) {
  const auto space = name_and_value.find(' ');
  const auto value = space == std::string::npos ? "" : name_and_value.substr(space + 1);
  return command.add_option(name_and_value.substr(0, space), out, help)->type_name(value);
}

template <class T>
void add_required(CLI::App& command, const std::string& name_and_value, T& out, const std::string& help) {
  add(command, name_and_value, out, help)->required();
}

void add_train(CLI::App& app, Parsed& out) {
  auto& command = *app.add_subcommand("train", "Train a model from a TOML file, on one rank or many");
  add_required(command, "CONFIG", out.train.config, "The TOML file");
  add_set(command, out.train.set);
  add(command, "--ranks N", out.train.ranks, kRanksHelp);
  add(command, "--max-restarts N", out.train.max_restarts, kRestartsHelp);
  add(command, "--min-ranks N", out.train.min_ranks,
      "The fewest ranks that a restart may have, when as many as before come no further");
  add(command, "--resume auto|must|DIR", out.resume,
      "auto (default): go on with an unfinished run in run.dir, if there is one; must: go on or fail; or "
      "start from a checkpoint, or from the newest one of a run folder");
  command.add_flag("--fresh", out.fresh, "Start a new run; an earlier one in run.dir is moved to DIR.1");
  command.add_flag(
      "--timeline", out.train.timeline,
      "Record three steps of every rank in the run folder's timeline.json, and draw the pipeline, if there is one");
}

constexpr const char* kWeightsHelp = "A run folder, a checkpoint, or weights in Hugging Face's layout";
constexpr const char* kConfigHelp = "The TOML file; without it, the run's or checkpoint's own";

void add_eval(CLI::App& app, Parsed& out) {
  auto& command = *app.add_subcommand("eval", "Evaluate weights on the validation and test samples");
  add_required(command, "WEIGHTS", out.eval.weights, kWeightsHelp);
  add(command, "CONFIG", out.eval.config, kConfigHelp);
  add_set(command, out.eval.set);
  add(command, "--ranks N", out.eval.ranks, kRanksHelp);
  command
      .add_option("--report", out.report,
                  "Also print the numbers of each class and the confusion matrix, and write them to a JSON file if one "
                  "is given")
      ->type_name("[FILE.json]")
      ->expected(0, 1);
}

void add_predict(CLI::App& app, Parsed& out) {
  auto& command =
      *app.add_subcommand("predict", "Predict what a run has learned for images or texts, without a data set");
  add_required(command, "WEIGHTS", out.predict.weights, kWeightsHelp);
  add_required(command, "FILE", out.predict.inputs,
               "Images; or texts: tables (.csv, .tsv, .jsonl), and .txt with a text in each line; or folders: all such "
               "files below them, sorted by path");
  add(command, "--config FILE", out.predict.config, kConfigHelp);
  add_set(command, out.predict.set);
  command.add_flag("--csv", out.predict.csv, "Print a CSV table, such as image,class,probability");
  command.add_flag("--jsonl", out.predict.jsonl, "Print a JSON object for each sample");
  add(command, "--top K", out.predict.top,
      "Classes or labels for each sample, the most probable first; default: one class, and the labels with a "
      "probability of at least 0.5");
  add(command, "--batch N", out.predict.batch, "Samples for each forward pass; default: as in an evaluation");
}

void add_generate(CLI::App& app, Parsed& out) {
  auto& generate = out.generate;
  auto& command = *app.add_subcommand("generate", "Continue a text with a causal language model");
  add_required(command, "WEIGHTS", generate.weights, kWeightsHelp);
  add(command, "--prompt TEXT", generate.prompt, "The text to continue");
  add(command, "--prompts FILE", generate.prompts,
      "A file with a text to continue in each line: for each, a line of JSON with \"prompt\" and \"text\" is printed");
  add(command, "--tokens N", generate.tokens, "Tokens to add, at most")->capture_default_str();
  add(command, "--temperature T", generate.temperature,
      "0: always the most probable token; above 0: tokens are drawn by the model's probabilities, which 1 "
      "leaves as they are, less makes sharper and more makes flatter")
      ->capture_default_str();
  add(command, "--top-k K", generate.top_k, "With a temperature: draw from the K most probable tokens only; 0: all")
      ->capture_default_str();
  add(command, "--top-p P", generate.top_p,
      "With a temperature: draw from the fewest of these tokens that have P of their probability; 1: all")
      ->capture_default_str();
  add(command, "--seed S", generate.seed, "With a temperature: another seed draws other tokens")->capture_default_str();
  command.add_flag("--stop-at-end", generate.stop_at_end, "Stop where the model ends the text");
  command.add_flag(
      "--chat", generate.chat,
      "Answer: the text is a user's message, and a FILE.jsonl has conversations (\"messages\"); for each of "
      "its lines, a line of JSON with \"prompt\" and \"completion\" is printed");
  add(command, "--chat-template FILE", generate.chat_template,
      "With --chat: a template in Jinja, or chatml; without it, the one beside the weights, else the run's, else the "
      "tokenizer's");
  add(command, "--tokenizer PATH", generate.tokenizer,
      "bytes, or a tokenizer's file or folder; without it, the files beside the weights, else the run's "
      "data.tokenizer");
  add(command, "--config FILE", generate.config,
      "The TOML file; without it, the run's or checkpoint's own, or the config.json beside the weights");
  add_set(command, generate.set);
}

void add_tokenize(CLI::App& app, Parsed& out) {
  auto& tokenize = out.tokenize;
  auto& command = *app.add_subcommand("tokenize", "Print the tokens of texts, and the part of the text of each");
  add_required(command, "TOKENIZER", tokenize.tokenizer,
               "bytes, a tokenizer's file or folder, a model of the Hugging Face Hub on this machine, or a run folder");
  // CLI11 would take "[MASK]" for a list; so it gets one text, and command_rules.cpp adds the others.
  command.allow_extras();
  add(command, "TEXT", tokenize.texts, "The texts; without one, the lines of --file")->allow_extra_args(false);
  add(command, "--file FILE", tokenize.file, "A file with a text in each line; default: -, standard input");
  add(command, "--pair TEXT", tokenize.pair, "The second text of each sample");
  command.add_flag("--no-special", tokenize.no_special,
                   "Leave out the special tokens that the tokenizer puts around a text");
  command.add_flag("--json", tokenize.json,
                   "Print a line of JSON for each text, with ids, tokens, and offsets in characters");
}

void add_verify(CLI::App& app, Parsed& out) {
  auto& command = *app.add_subcommand("verify", "Prove that layouts compute the same: losses, gradients, weights");
  add_required(command, "CONFIG", out.verify.config, "The TOML file");
  add_required(command, "--layouts LAYOUTS", out.verify.layouts,
               "Two or more layouts, separated by semicolons; each is compared with the first: \"dp=1; tp=2; "
               "dp=2,tp=2,zero=1; plugin=gemini,dp=2\"");
  add(command, "--steps N", out.verify.steps, "Steps to train")->capture_default_str();
  add(command, "--precision P", out.verify.precision,
      "Precision of the steps: fp64 (rounding cannot hide an error), fp32, tf32, bf16 or fp16")
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
  command.add_option("--layouts", out.check.layouts);
  command.add_option("--ranks", out.check.ranks);
  add_set(command, out.check.set);
}

void add_bench(CLI::App& app, Parsed& out) {
  auto& command = *app.add_subcommand("bench", "Measure steps: time, throughput, memory, where the time goes");
  add(command, "CONFIG", out.bench.config, "The TOML file");
  add(command, "--layouts \"A; B\"", out.bench.layouts,
      "Layouts to measure in turn, as `trireme verify` takes them; default: that of the file");
  add(command, "--ranks N", out.bench.ranks, kRanksHelp);
  add(command, "--seconds S", out.bench.seconds, "Of measured steps for each layout")->capture_default_str();
  add(command, "--against PROGRAM", out.bench.against,
      "A command for the shell that is measured in turn with the layouts: it prints a line of JSON with \"step_s\", "
      "the seconds of a step or a list of them");
  add(command, "--profile FILE", out.bench.profile,
      "Also measure single operators, on CPU ranks: as a table, and in FILE as a Chrome trace");
  add(command, "--machine FILE", out.bench.machine,
      "Measure this machine instead, without CONFIG, and write its rates for `trireme plan` to this file");
  add_set(command, out.bench.set);
  command.add_flag("--json", out.bench.json, kJsonHelp);
}

void add_tune(CLI::App& app, Parsed& out) {
  auto& command = *app.add_subcommand("tune", "Find the fastest way to compute a file's steps, for later runs");
  add_required(command, "CONFIG", out.tune.config, "The TOML file");
  add_set(command, out.tune.set);
  add(command, "--ranks N", out.tune.ranks, kRanksHelp);
  command.add_flag("--json", out.tune.json, kJsonHelp);
}

void add_plan(CLI::App& app, Parsed& out) {
  auto& command = *app.add_subcommand("plan", "Say what steps will cost before they run: memory, messages, time");
  command.add_option("CONFIG", out.plan.paths, "The TOML file; with --check the folders of finished runs")->required();
  add(command, "--layouts \"A; B\"", out.plan.layouts,
      "Layouts to plan, as `trireme verify` takes them; default: that of the file");
  add(command, "--ranks N", out.plan.ranks, "Number of ranks that the run will have; default 1");
  command.add_flag("--search", out.plan.search,
                   "Search for the fastest layout of the ranks that fits, and print it as lines for the file");
  add(command, "--seconds S", out.plan.seconds, "That a search may take")->capture_default_str();
  add(command, "--machine FILE|NAME", out.plan.machine,
      "The machine with its rates (docs/plan.md), a file of yours or one by name: h100-sxm, rtx-4090, cpu, ...");
  add(command, "--memory SIZE", out.plan.memory, "Memory of a rank, such as 24GB: layouts that need more are marked");
  command.add_flag("--check", out.plan.check, "Compare finished runs with their forecasts");
  add_set(command, out.plan.set);
  command.add_flag("--json", out.plan.json, kJsonHelp);
}

void add_measure(CLI::App& app, Parsed& out) {
  auto& command = *app.add_subcommand("measure");
  command.add_option("CONFIG", out.measure.config);
  command.add_option("--layout", out.measure.layout);
  command.add_option("--into", out.measure.into)->required();
  command.add_option("--seconds", out.measure.seconds);
  command.add_flag("--profile", out.measure.profile);
  add_set(command, out.measure.set);
}

void add_data(CLI::App& app, Parsed& out) {
  auto& data = *app.add_subcommand("data", "Generate data sets");
  data.require_subcommand(1);
  auto& leaves = *data.add_subcommand("leaves", "Generate images of healthy and diseased leaves, as an image folder");
  add_required(leaves, "--out DIR", out.leaves.out, "The folder to create");
  add(leaves, "--images N", out.leaves.images, "Number of images, in all splits together")->capture_default_str();
  add(leaves, "--size PX", out.leaves.size, "Pixels per side")->capture_default_str();
  add(leaves, "--seed S", out.leaves.seed, "Seed of the images")->capture_default_str();
}

void add_config(CLI::App& app, Parsed& out) {
  auto& command = *app.add_subcommand("config", "Check a file, print all its options, or explain an option");
  add(command, "CONFIG", out.config.config,
      "The TOML file; --explain needs it only for a plugin that the file names by its path");
  add_set(command, out.config.set);
  command.add_flag("--print", out.config.print, "Print the value of every option, defaults included");
  add(command, "--explain KEY", out.config.explain, "Explain an option (train.micro_batch) or a section (train)");
  command.add_flag("--explain-all", out.config.explain_all, "Explain every option of every section");
  command.add_flag("--markdown", out.config.markdown)->group("");
}

constexpr const char* kCheckpointHelp = "A checkpoint's folder, or a run's folder for its newest checkpoint";

void add_checkpoint(CLI::App& app, Parsed& out) {
  auto& checkpoint = *app.add_subcommand("checkpoint", "List, inspect, verify, export and compare checkpoints");
  checkpoint.require_subcommand(1);
  auto& list = *checkpoint.add_subcommand("ls", "List the checkpoints of a run, the newest first");
  add_required(list, "RUN", out.list.run, "The run's folder");
  list.add_flag("--json", out.list.json, kJsonHelp);

  auto& inspect = *checkpoint.add_subcommand("inspect", "Print what a checkpoint holds");
  add_required(inspect, "CHECKPOINT", out.inspect_checkpoint.path, kCheckpointHelp);
  inspect.add_flag("--tensors", out.inspect_checkpoint.tensors, "Also every tensor, with the files of its slices");
  inspect.add_flag("--json", out.inspect_checkpoint.json, kJsonHelp);

  auto& verify = *checkpoint.add_subcommand("verify", "Read every byte and compare it with the checksums");
  add_required(verify, "CHECKPOINT", out.verify_checkpoint.path,
               "A checkpoint's folder, or a run's folder for all of its checkpoints");
  verify.add_flag("--json", out.verify_checkpoint.json, kJsonHelp);

  auto& exported = *checkpoint.add_subcommand("export", "Write a checkpoint's weights in Hugging Face's layout");
  add_required(exported, "CHECKPOINT", out.export_checkpoint.path, kCheckpointHelp);
  add_required(exported, "--to FOLDER", out.export_checkpoint.to,
               "The folder: a new one, or one with an earlier export");
  add(exported, "--dtype TYPE", out.export_checkpoint.dtype,
      "Data type of the weights: fp32, bf16 or fp16; default: the run's run.export_dtype, else as they are");
  add(exported, "--shard-mb N", out.export_checkpoint.shard_mb,
      "Largest size in MiB of a file of tensors; 0: one file; default: the run's run.export_shard_mb");
  add(exported, "--names LIBRARY", out.export_checkpoint.names,
      "Of another library, with its config.json, in place of Hugging Face's: timm, for a ViT");
  exported.add_flag("--merge", out.export_checkpoint.merge,
                    "Of a run with adapters: export the model with the adapters merged into its weights");
  exported.add_flag("--overwrite", out.export_checkpoint.overwrite,
                    "Replace the folder even if it holds files that are not of an export of Trireme");

  auto& diff = *checkpoint.add_subcommand("diff", "Compare the tensors of two checkpoints, runs, models or files");
  add_required(diff, "A", out.diff.first, "A checkpoint, a run, or weights in Hugging Face's layout");
  add_required(diff, "B", out.diff.second, "What to compare it with");
  diff.add_flag("--all", out.diff.all, "Print all differences, not only the 20 largest");
  diff.add_flag(
      "--weights", out.diff.weights,
      "Of two checkpoints compare only the weights that an evaluation reads (their average, if there is one)");
  diff.add_flag("--json", out.diff.json, kJsonHelp);
}

void add_inspect(CLI::App& app, Parsed& out) {
  auto& command = *app.add_subcommand("inspect", "Print the tensors of a file or folder of weights");
  add_required(command, "FILE", out.inspect.path,
               "A safetensors file, a PyTorch state dict, an index of several files, or a folder with one of these");
  command.add_flag("--stats", out.inspect.stats,
                   "Also read the values: smallest, largest, mean, and how many are not finite");
  command.add_flag("--json", out.inspect.json, kJsonHelp);
}

void add_runs(CLI::App& app, Parsed& out) {
  auto& command = *app.add_subcommand("runs", "List runs: state, step, best metric, goodput, layout");
  add(command, "DIR", out.runs.dir, "A folder with runs in it or below it, or a run (runs)");
  command.add_flag("--json", out.runs.json, kJsonHelp);
}

void add_top(CLI::App& app, Parsed& out) {
  auto& command = *app.add_subcommand("top", "Show a run's numbers while it trains");
  add_required(command, "RUN", out.top.run, "The folder of a run");
}

void add_plot(CLI::App& app, Parsed& out) {
  auto& command = *app.add_subcommand("plot", "Draw runs: charts of one or several, compared, in one HTML file");
  add_required(command, "RUN", out.plot.runs, "Runs, and folders with runs in them or below them");
  add(command, "--out FILE", out.plot.out,
      "The file, which is replaced; default: plot.html, with --chart plot.svg, in the working directory");
  add(command, "--chart NAME", out.plot.chart,
      "Draw only this chart, as SVG: loss, validation_loss, lr, grad_norm, throughput, or a validation metric such as "
      "accuracy");
}

/// The usage of a command whose last arguments belong to another program; command_line.cpp takes them out.
class LaunchFormatter : public CLI::Formatter {
  std::string make_usage(const CLI::App*, std::string name) const override {
    return "Usage: " + name + " [OPTIONS] PROGRAM [ARGUMENTS...]\n";
  }
};

void add_launch(CLI::App& app, Parsed& out) {
  auto& command = *app.add_subcommand("launch", "Start ranks of any program on this machine");
  const auto formatter = std::make_shared<LaunchFormatter>();
  formatter->column_width(app.get_formatter()->get_column_width());
  command.formatter(formatter);
  add(command, "-n,--ranks N", out.launch.ranks, "Number of ranks to start");
  add(command, "--grace SECONDS", out.launch.grace,
      "Seconds that the ranks have to end after a signal, before they are killed (15)");
  add(command, "--max-restarts N", out.launch.max_restarts, kRestartsHelp);
  command.add_flag("--tag-output", out.launch.tag_output, "Begin each line of output with [RANK]");
}

}  // namespace

void add_commands(CLI::App& app, Parsed& out) {
  add_train(app, out);
  add_eval(app, out);
  add_predict(app, out);
  add_generate(app, out);
  add_tokenize(app, out);
  add_verify(app, out);
  add_record(app, out);
  add_check(app, out);
  add_bench(app, out);
  add_tune(app, out);
  add_plan(app, out);
  add_measure(app, out);
  add_checkpoint(app, out);
  add_inspect(app, out);
  add_runs(app, out);
  add_top(app, out);
  add_plot(app, out);
  add_data(app, out);
  app.add_subcommand("plugins", "List the plugins and their options")
      ->add_option("PLUGIN", out.plugins.plugins, "The name of a plugin, or the path of a .so; default: all plugins")
      ->type_name("");
  add_config(app, out);
  app.add_subcommand("env", "Print versions and devices, for a bug report");
  add_launch(app, out);
}

}  // namespace trireme::apps
