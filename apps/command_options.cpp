#include "apps/command_options.h"

#include <memory>

namespace trireme::apps {
namespace {

constexpr const char* kSetHelp =
    "Override one option of the file. VALUE is TOML; a string needs no quotes. May be given several times";
constexpr const char* kRestartsHelp = "How often ranks that died or lost each other are started again (0)";
constexpr const char* kRanksHelp = "Number of ranks to start on this machine; with GPUs, use one rank per GPU";

// Otherwise CLI11 would take the arguments after `--set a=b` as further values.
void add_set(CLI::App& command, std::vector<std::string>& set) {
  command.add_option("--set", set, kSetHelp)->type_name("SECTION.KEY=VALUE")->allow_extra_args(false);
}

void add_train(CLI::App& app, Parsed& out) {
  auto& command = *app.add_subcommand("train", "Train a model from a TOML file, on one rank or many");
  command.add_option("CONFIG", out.train.config, "The TOML file")->type_name("")->required();
  add_set(command, out.train.set);
  command.add_option("--ranks", out.train.ranks, kRanksHelp)->type_name("N");
  command.add_option("--max-restarts", out.train.max_restarts, kRestartsHelp)->type_name("N");
  command
      .add_option("--min-ranks", out.train.min_ranks,
                  "The fewest ranks that a restart may have, when as many as before come no further")
      ->type_name("N");
  command
      .add_option("--resume", out.resume,
                  "auto (default): go on with an unfinished run in run.dir, if there is one; must: go on or fail; or "
                  "start from a checkpoint, or from the newest one of a run folder")
      ->type_name("auto|must|DIR");
  command.add_flag("--fresh", out.fresh, "Start a new run; an earlier one in run.dir is moved to DIR.1");
  command.add_flag(
      "--timeline", out.train.timeline,
      "Record three steps of every rank in the run folder's timeline.json, and draw the pipeline, if there is one");
}

constexpr const char* kWeightsHelp = "A run folder, a checkpoint, or weights in Hugging Face's layout";
constexpr const char* kConfigHelp = "The TOML file; without it, the run's or checkpoint's own";

void add_eval(CLI::App& app, Parsed& out) {
  auto& command = *app.add_subcommand("eval", "Evaluate weights on the validation and test samples");
  command.add_option("WEIGHTS", out.eval.weights, kWeightsHelp)->type_name("")->required();
  command.add_option("CONFIG", out.eval.config, kConfigHelp)->type_name("");
  add_set(command, out.eval.set);
  command.add_option("--ranks", out.eval.ranks, kRanksHelp)->type_name("N");
  command
      .add_option("--report", out.report,
                  "Also print the numbers of each class and the confusion matrix, and write them to a JSON file if one "
                  "is given")
      ->type_name("[FILE.json]")
      ->expected(0, 1);
}

void add_predict(CLI::App& app, Parsed& out) {
  auto& command = *app.add_subcommand("predict", "Predict the classes of images, without a data set");
  command.add_option("WEIGHTS", out.predict.weights, kWeightsHelp)->type_name("")->required();
  command
      .add_option("IMAGE", out.predict.images,
                  "Images (JPEG or PNG), and folders: all images below them, sorted by path")
      ->type_name("")
      ->required();
  command.add_option("--config", out.predict.config, kConfigHelp)->type_name("FILE");
  add_set(command, out.predict.set);
  command.add_flag("--csv", out.predict.csv, "Print a CSV table: image,class,probability");
  command.add_option("--top", out.predict.top, "Classes for each image, the most probable first")
      ->type_name("K")
      ->capture_default_str();
  command.add_option("--batch", out.predict.batch, "Images for each forward pass; default: as in an evaluation")
      ->type_name("N");
}

void add_generate(CLI::App& app, Parsed& out) {
  auto& generate = out.generate;
  auto& command = *app.add_subcommand("generate", "Continue a text with a causal language model");
  command.add_option("WEIGHTS", generate.weights, kWeightsHelp)->type_name("")->required();
  command.add_option("--prompt", generate.prompt, "The text to continue")->type_name("TEXT")->required();
  command.add_option("--tokens", generate.tokens, "Tokens to add, at most")->type_name("N")->capture_default_str();
  command
      .add_option("--temperature", generate.temperature,
                  "0: always the most probable token; above 0: tokens are drawn by the model's probabilities, which 1 "
                  "leaves as they are, less makes sharper and more makes flatter")
      ->type_name("T")
      ->capture_default_str();
  command
      .add_option("--top-k", generate.top_k, "With a temperature: draw from the K most probable tokens only; 0: all")
      ->type_name("K")
      ->capture_default_str();
  command.add_option("--seed", generate.seed, "With a temperature: another seed draws other tokens")
      ->type_name("S")
      ->capture_default_str();
  command.add_flag("--stop-at-end", generate.stop_at_end, "Stop where the model ends the text");
  command
      .add_option("--tokenizer", generate.tokenizer,
                  "bytes, or a tokenizer's file or folder; without it, the files beside the weights, else the run's "
                  "data.tokenizer")
      ->type_name("PATH");
  command
      .add_option("--config", generate.config,
                  "The TOML file; without it, the run's or checkpoint's own, or the config.json beside the weights")
      ->type_name("FILE");
  add_set(command, generate.set);
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

constexpr const char* kCheckpointHelp = "A checkpoint's folder, or a run's folder for its newest checkpoint";
constexpr const char* kJsonHelp = "Print JSON";

void add_checkpoint(CLI::App& app, Parsed& out) {
  auto& checkpoint = *app.add_subcommand("checkpoint", "List, inspect, verify, export and compare checkpoints");
  checkpoint.require_subcommand(1);
  auto& list = *checkpoint.add_subcommand("ls", "List the checkpoints of a run, the newest first");
  list.add_option("RUN", out.list.run, "The run's folder")->type_name("")->required();
  list.add_flag("--json", out.list.json, kJsonHelp);

  auto& inspect = *checkpoint.add_subcommand("inspect", "Print what a checkpoint holds");
  inspect.add_option("CHECKPOINT", out.inspect_checkpoint.path, kCheckpointHelp)->type_name("")->required();
  inspect.add_flag("--tensors", out.inspect_checkpoint.tensors, "Also every tensor, with the files of its slices");
  inspect.add_flag("--json", out.inspect_checkpoint.json, kJsonHelp);

  auto& verify = *checkpoint.add_subcommand("verify", "Read every byte and compare it with the checksums");
  verify
      .add_option("CHECKPOINT", out.verify_checkpoint.path,
                  "A checkpoint's folder, or a run's folder for all of its checkpoints")
      ->type_name("")
      ->required();
  verify.add_flag("--json", out.verify_checkpoint.json, kJsonHelp);

  auto& exported = *checkpoint.add_subcommand("export", "Write a checkpoint's weights in Hugging Face's layout");
  exported.add_option("CHECKPOINT", out.export_checkpoint.path, kCheckpointHelp)->type_name("")->required();
  exported.add_option("--to", out.export_checkpoint.to, "The folder: a new one, or one with an earlier export")
      ->type_name("FOLDER")
      ->required();
  exported
      .add_option("--dtype", out.export_checkpoint.dtype,
                  "Data type of the weights: fp32, bf16 or fp16; default: the run's run.export_dtype, else as they are")
      ->type_name("TYPE");
  exported
      .add_option("--shard-mb", out.export_checkpoint.shard_mb,
                  "Largest size in MiB of a file of tensors; 0: one file; default: the run's run.export_shard_mb")
      ->type_name("N");
  exported.add_flag("--merge", out.export_checkpoint.merge,
                    "Of a run with adapters: export the model with the adapters merged into its weights");
  exported.add_flag("--overwrite", out.export_checkpoint.overwrite,
                    "Replace the folder even if it holds files that are not of an export of Trireme");

  auto& diff = *checkpoint.add_subcommand("diff", "Compare the tensors of two checkpoints, runs, models or files");
  diff.add_option("A", out.diff.first, "A checkpoint, a run, or weights in Hugging Face's layout")
      ->type_name("")
      ->required();
  diff.add_option("B", out.diff.second, "What to compare it with")->type_name("")->required();
  diff.add_flag("--all", out.diff.all, "Print all differences, not only the 20 largest");
  diff.add_flag(
      "--weights", out.diff.weights,
      "Of two checkpoints compare only the weights that an evaluation reads (their average, if there is one)");
  diff.add_flag("--json", out.diff.json, kJsonHelp);
}

void add_inspect(CLI::App& app, Parsed& out) {
  auto& command = *app.add_subcommand("inspect", "Print the tensors of a file or folder of weights");
  command
      .add_option("FILE", out.inspect.path,
                  "A safetensors file, a PyTorch state dict, an index of several files, or a folder with one of these")
      ->type_name("")
      ->required();
  command.add_flag("--stats", out.inspect.stats,
                   "Also read the values: smallest, largest, mean, and how many are not finite");
  command.add_flag("--json", out.inspect.json, kJsonHelp);
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
  command.add_option("-n,--ranks", out.launch.ranks, "Number of ranks to start")->type_name("N");
  command
      .add_option("--grace", out.launch.grace,
                  "Seconds that the ranks have to end after a signal, before they are killed (15)")
      ->type_name("SECONDS");
  command.add_option("--max-restarts", out.launch.max_restarts, kRestartsHelp)->type_name("N");
  command.add_flag("--tag-output", out.launch.tag_output, "Begin each line of output with [RANK]");
}

}  // namespace

void add_commands(CLI::App& app, Parsed& out) {
  add_train(app, out);
  add_eval(app, out);
  add_predict(app, out);
  add_generate(app, out);
  add_verify(app, out);
  add_record(app, out);
  add_check(app, out);
  add_checkpoint(app, out);
  add_inspect(app, out);
  add_data(app, out);
  app.add_subcommand("plugins", "List the plugins and their options")
      ->add_option("PLUGIN", out.plugins.plugins, "The name of a plugin, or the path of a .so; default: all plugins")
      ->type_name("");
  add_config(app, out);
  app.add_subcommand("env", "Print versions and devices, for a bug report");
  add_launch(app, out);
}

}  // namespace trireme::apps
