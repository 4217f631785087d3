// `trireme checkpoint` and `trireme inspect` as users call them: what they print, that an export equals the run's own,
// and what they refuse.
#include <set>

#include "tests/command/metrics.h"

namespace trireme::tests {
namespace {

using CheckpointArguments = std::vector<std::string>;

ProcessResult command(CheckpointArguments arguments) {
  arguments.insert(arguments.begin(), TRIREME_COMMAND);
  return run_process(arguments);
}
ProcessResult checkpoint(CheckpointArguments arguments) {
  arguments.insert(arguments.begin(), "checkpoint");
  return command(std::move(arguments));
}

std::set<std::string> names_of(const std::string& folder) {
  std::set<std::string> out;
  for (const auto& entry : fs::directory_iterator(folder)) out.insert(entry.path().filename().string());
  return out;
}

/// The same files with the same bytes.
void expect_same_files(const std::string& folder, const std::string& expected) {
  EXPECT_EQ(names_of(folder), names_of(expected));
  for (const auto& name : names_of(expected))
    EXPECT_TRUE(content_of(folder + "/" + name) == content_of(expected + "/" + name)) << name << " differs";
}

/// Two epochs of a small model, with both checkpoints.
struct TwoEpochs {
  const SmallRun& trained = made_once<TrainedRun>(std::string("epochs = 2\nglobal_batch = 16\n"));
  const TemporaryFolder& folder = trained.folder;
  [[nodiscard]] std::string dir() const { return trained.dir(); }
  [[nodiscard]] std::string first() const { return dir() + "/checkpoints/step-00000003"; }
  [[nodiscard]] std::string last() const { return dir() + "/checkpoints/step-00000006"; }
};

std::string name_in(const std::string& path) { return fs::path(path).filename().string(); }

/// Flips a bit in the middle of a file.
void damage(const std::string& path) {
  auto content = content_of(path);
  content[content.size() / 2] = static_cast<char>(content[content.size() / 2] ^ 4);
  std::ofstream(path, std::ios::binary) << content;
}

const std::string kGpt2 =
    "[model]\nname = \"gpt2\"\nhidden_size = 16\nnum_layers = 1\nnum_heads = 2\nmax_positions = 32\n";

/// Writes the configuration of three steps of a model into DIR/run; a folder of texts if there is no data.
std::string three_steps(const TemporaryFolder& folder, const std::string& model, std::string data) {
  if (data.empty()) {
    std::string text;
    for (int i = 0; i < 400; ++i) text += "the quick brown fox " + std::to_string(i * i % 97) + "\n";
    fs::create_directories(folder.path() + "/data");
    folder.write("data/train.txt", text);
    data = "[data]\nname = \"text\"\npath = \"" + folder.path() + "/data\"\ntokenizer = \"bytes\"\nblock = 32\n";
  }
  return folder.write("run.toml", "[run]\ndevice = \"cpu\"\ndir = \"" + folder.path() + "/run\"\n" + model + data +
                                      "[train]\nmax_steps = 3\nglobal_batch = 8\n");
}

void train(const std::string& config, int ranks, const CheckpointArguments& sets) {
  CheckpointArguments arguments{"train", config, "--ranks", std::to_string(ranks)};
  for (const auto& set : sets) arguments.insert(arguments.end(), {"--set", set});
  const auto trained = command(arguments);
  ASSERT_EQ(trained.code, 0) << trained.err << trained.out;
}

TEST(CheckpointCommands, ExportWhatTheRunsExport) {
  const std::string wide =
      "[model]\nname = \"vit\"\nhidden_size = 128\nnum_layers = 3\nnum_heads = 2\nintermediate_size = 1024\n"
      "patch_size = 8\n";
  const std::string large_leaves = "[data]\nname = \"leaves\"\nimages = 60\nimage_size = 32\n";
  const struct {
    const char* name;
    std::string model, data;
    int ranks;
    CheckpointArguments sets;
  } cases[] = {
      {"plain", kModel, kLeaves, 1, {}},
      {"sharded average",
       wide,
       kLeaves,
       2,
       {"parallel.tp=2", "train.ema_decay=0.9", "run.export_dtype=bf16", "run.export_shard_mb=1"}},
      {"transposed and tied", kGpt2, "", 2, {"parallel.tp=2"}},
      {"buffers",
       "[model]\nname = \"resnet\"\ndepth = 18\nwidth = 4\n",
       large_leaves,
       2,
       {"train.precision=bf16", "parallel.plugin=low_level_zero"}},
  };
  for (const auto& [name, model, data, ranks, sets] : cases) {
    SCOPED_TRACE(name);
    const bool in_shards = sets.size() == 4;
    const TemporaryFolder folder;
    const auto run = folder.path() + "/run", out = folder.path() + "/exported";
    train(three_steps(folder, model, data), ranks, sets);
    const auto result = checkpoint({"export", run, "--to", out});
    ASSERT_EQ(result.code, 0) << result.err;
    EXPECT_EQ(result.err, "");
    expect_same_files(out, run + "/model");
    EXPECT_EQ(names_of(out).contains("model.safetensors.index.json"), in_shards);
    EXPECT_NE(checkpoint({"diff", run, out}).out.find(in_shards ? "other dtype" : "equal bit for bit: "),
              std::string::npos);
    // In another format, over the earlier export: none of its files remain.
    const auto whole = checkpoint({"export", run, "--to", out, "--dtype", "fp32", "--shard-mb", "0"});
    ASSERT_EQ(whole.code, 0) << whole.err;
    EXPECT_FALSE(names_of(out).contains("model.safetensors.index.json"));
    EXPECT_EQ(json_of(out + "/config.json").at("dtype"), "float32");
    const auto equal = checkpoint({"diff", run, out});
    EXPECT_EQ(equal.code, 0) << equal.out;
    EXPECT_NE(equal.out.find("\nequal bit for bit: "), std::string::npos) << equal.out;
  }
}

TEST(CheckpointCommands, ExportInTheFormatOfTimm) {
  const TemporaryFolder folder;
  const auto run = folder.path() + "/run", out = folder.path() + "/timm";
  const auto config = three_steps(folder, kModel, kLeaves);
  train(config, 1, {"model.layer_norm_eps=1e-6"});
  const auto exported = checkpoint({"export", run, "--to", out, "--names", "timm", "--shard-mb", "0"});
  ASSERT_EQ(exported.code, 0) << exported.err;
  EXPECT_NE(command({"inspect", out}).out.find("blocks.0.attn.qkv.weight"), std::string::npos);
  EXPECT_EQ(json_of(out + "/config.json").at("pretrained_cfg").at("mean").size(), 3U);
  std::vector<std::string> evaluations;
  for (const auto& weights : {run + "/model", out}) {
    const auto result = command({"eval", weights, config});
    EXPECT_EQ(result.code, 0) << result.err;
    evaluations.push_back(result.out.substr(std::min(result.out.find("validation"), result.out.size())));
  }
  EXPECT_EQ(evaluations[0], evaluations[1]);
  expect_only_refusal(
      checkpoint({"export", run, "--to", out, "--names", "keras"}), 2,
      "--names keras: a model \"vit\" can be written with the names of timm, or without the option with "
      "Hugging Face's");
  const std::string old = TRIREME_SOURCE_DIR "/tests/golden/checkpoint_format_1";
  expect_only_refusal(checkpoint({"export", old, "--to", out, "--names", "timm"}), 2,
                      "--names timm: this model has layer_norm_eps = 1e-12, but ");
}

TEST(CheckpointCommands, ReadFormat1) {
  const TemporaryFolder folder;
  const std::string old = TRIREME_SOURCE_DIR "/tests/golden/checkpoint_format_1";
  for (const CheckpointArguments& use : {CheckpointArguments{"verify", old},
                                         {"inspect", old, "--tensors"},
                                         {"export", old, "--to", folder.path() + "/out"},
                                         {"diff", folder.path() + "/out", old + "/average.safetensors"}}) {
    const auto result = checkpoint(use);
    EXPECT_EQ(result.code, 0) << use[0] << "\n" << result.err << result.out;
  }
}

// A model that another program has written, or written anew into an export's folder, has no mark of ours.
TEST(CheckpointCommands, ExportReplacesNobodyElsesModel) {
  const TwoEpochs run;
  const auto out = run.folder.path() + "/out", copy = run.folder.path() + "/copy";
  ASSERT_EQ(checkpoint({"export", run.dir(), "--to", out}).code, 0);
  fs::copy(out, copy);  // the mark goes along
  EXPECT_EQ(checkpoint({"export", run.dir(), "--to", copy + "/"}).code, 0);
  const auto ours = content_of(out + "/model.safetensors");
  auto foreign = ours;
  foreign.replace(foreign.find("trireme"), 7, "another");
  std::ofstream(out + "/model.safetensors", std::ios::binary) << foreign;
  fs::create_directory_symlink(out, run.folder.path() + "/link");
  for (const auto& name : {out, run.folder.path() + "/link"}) {
    expect_only_refusal(checkpoint({"export", run.dir(), "--to", name}), 2,
                        name +
                            ": holds files that are not of an export of Trireme (config.json, model.safetensors, "
                            "preprocessor_config.json)");
    EXPECT_TRUE(content_of(out + "/model.safetensors") == foreign);
  }
  const auto replaced = checkpoint({"export", run.dir(), "--to", run.folder.path() + "/link", "--overwrite"});
  EXPECT_EQ(replaced.code, 0) << replaced.err;
  EXPECT_TRUE(content_of(out + "/model.safetensors") == ours);
  EXPECT_TRUE(fs::is_symlink(run.folder.path() + "/link"));
  for (const auto& name : names_of(run.folder.path())) EXPECT_FALSE(name.ends_with(".tmp")) << name;
}

TEST(CheckpointCommands, MergeAdaptersOnlyWhenAsked) {
  for (const bool transposed : {false, true}) {
    const TemporaryFolder folder;
    const auto base = folder.path() + "/run", run = folder.path() + "/adapted", out = folder.path() + "/exported";
    const auto config = three_steps(folder, transposed ? kGpt2 : kModel, transposed ? "" : kLeaves);
    train(config, 1, {});
    train(config, 2,
          {"model.weights=" + base, "lora.rank=2", "lora.merge=true", "run.dir=" + run, "optimizer.lr=0.01",
           "parallel.tp=2"});
    expect_only_refusal(checkpoint({"export", run, "--to", out}), 2,
                        "its run trains adapters ([lora]); add --merge to export the model with the adapters merged");
    EXPECT_FALSE(fs::exists(out));
    expect_only_refusal(checkpoint({"export", base, "--to", out, "--merge"}), 2,
                        " is of a run without [lora]; remove the option");
    const auto merged = checkpoint({"export", run, "--to", out, "--merge"});
    ASSERT_EQ(merged.code, 0) << merged.err;
    expect_same_files(out, run + "/model-merged");
    EXPECT_EQ(checkpoint({"diff", out, base + "/model"}).code, 8);
  }
}

TEST(CheckpointCommands, ListInspectAndVerify) {
  const TwoEpochs run;
  fs::create_directories(run.dir() + "/checkpoints/step-00000099.tmp");
  const auto list = checkpoint({"ls", run.dir()});
  ASSERT_EQ(list.code, 0) << list.err;
  const auto lines = lines_of(list.out);
  ASSERT_EQ(lines.size(), 4U) << list.out;
  EXPECT_TRUE(lines[0].starts_with("checkpoint ")) << lines[0];
  for (std::size_t i = 1; i < 4; ++i) {
    const std::pair<std::string, const char*> expected[] = {
        {"step-00000099.tmp", "incomplete"}, {name_in(run.last()), "complete"}, {name_in(run.first()), "complete"}};
    EXPECT_TRUE(lines[i].starts_with(expected[i - 1].first)) << lines[i];
    EXPECT_TRUE(lines[i].ends_with(expected[i - 1].second)) << lines[i];
  }
  const auto listed = nlohmann::json::parse(checkpoint({"ls", run.dir() + "/checkpoints/", "--json"}).out);
  ASSERT_EQ(listed.size(), 3U);
  EXPECT_EQ(listed[1]["folder"], run.last());
  EXPECT_EQ(listed[1]["epoch"], 2);
  EXPECT_EQ(listed[2]["epoch"], 1);
  EXPECT_EQ(listed[1]["ranks"], 1);
  EXPECT_EQ(listed[1]["layout"]["plugin"], "torch_ddp");
  EXPECT_EQ(listed[0]["epoch"], nullptr);

  const auto model = json_of(run.last() + "/manifest.json").at("tensors").at("weights");
  const auto inspected = checkpoint({"inspect", run.dir(), "--tensors"});
  ASSERT_EQ(inspected.code, 0) << inspected.err;
  for (const auto& says : {"checkpoint  " + run.last() + "\n", std::string("seed        42\n"),
                           std::string("progress    2 epochs done, 0 steps into the next; "), std::string("\nweights "),
                           std::string("\noptimizer "), std::string("\nbest        epoch ")})
    EXPECT_NE(inspected.out.find(says), std::string::npos) << says << "\n" << inspected.out;
  for (const auto& [name, unused] : model.items())
    EXPECT_NE(inspected.out.find("\n" + name + " "), std::string::npos) << name;
  const auto facts = nlohmann::json::parse(checkpoint({"inspect", run.first(), "--json"}).out);
  EXPECT_EQ(facts["groups"]["weights"]["tensors"], model.size());
  EXPECT_EQ(facts["groups"]["weights"]["dtypes"], nlohmann::json({"F32"}));
  EXPECT_EQ(facts["progress"], json_of(run.first() + "/state.json").at("progress"));
  EXPECT_FALSE(facts["groups"].contains("average"));

  const auto intact = checkpoint({"verify", run.dir()});
  EXPECT_EQ(intact.code, 0) << intact.err;
  EXPECT_EQ(lines_of(intact.out).size(), 2U) << intact.out;
  const auto file = run.first() + "/weights-00000-00.safetensors";
  damage(file);
  const auto found = checkpoint({"verify", run.dir()});
  expect_refusal(found, 7, "1 of 2 checkpoints damaged: " + file + " is damaged: CRC-32 ");
  EXPECT_NE(found.out.find(name_in(run.last()) + "  intact   "), std::string::npos) << found.out;
  EXPECT_NE(found.out.find(name_in(run.first()) + "  damaged  " + file), std::string::npos) << found.out;
  EXPECT_EQ(checkpoint({"verify", run.last()}).code, 0);
  const auto rows = checkpoint({"verify", run.first(), "--json"});
  EXPECT_EQ(rows.code, 7);
  EXPECT_EQ(nlohmann::json::parse(rows.out).at(0).at("weights_intact"), false);
  expect_only_refusal(checkpoint({"export", run.first(), "--to", run.folder.path() + "/out"}), 7,
                      file + " is damaged: CRC-32 ");
  const auto config = run.last() + "/config.toml";
  damage(config);
  expect_only_refusal(checkpoint({"export", run.last(), "--to", run.folder.path() + "/out"}), 7,
                      config + " is damaged: CRC-32 ");
  EXPECT_FALSE(fs::exists(run.folder.path() + "/out"));
}

TEST(CheckpointCommands, TheNewestIntactOneStandsForTheRun) {
  const TwoEpochs run;
  const auto out = run.folder.path() + "/out", file = run.last() + "/weights-00000-00.safetensors";
  damage(file);
  const auto said = "warning: " + name_in(run.last()) + " skipped: " + file + " is damaged: CRC-32 ";
  for (const CheckpointArguments& use :
       {CheckpointArguments{"export", run.dir(), "--to", out}, {"diff", run.dir(), out}}) {
    const auto result = checkpoint(use);
    EXPECT_EQ(result.code, 0) << use[0] << "\n" << result.err << result.out;
    EXPECT_NE(result.err.find(said), std::string::npos) << result.err;
    EXPECT_EQ(lines_of(result.err).size(), 1U) << result.err;
    EXPECT_NE(result.out.find(run.first()), std::string::npos) << result.out;
  }
  for (const CheckpointArguments& use : {CheckpointArguments{run.last(), out}, {run.first(), run.last()}})
    expect_only_refusal(checkpoint({"diff", use[0], use[1]}), 7, file + " is damaged: CRC-32 ");
  // An inspection reads no tensors: it goes by the sizes.
  fs::resize_file(file, 100);
  const auto inspected = checkpoint({"inspect", run.dir()});
  EXPECT_EQ(inspected.code, 0) << inspected.err;
  EXPECT_NE(inspected.out.find("checkpoint  " + run.first() + "\n"), std::string::npos) << inspected.out;
  EXPECT_NE(inspected.err.find(name_in(run.last()) + " skipped: " + file + " is truncated"), std::string::npos)
      << inspected.err;
  EXPECT_NE(checkpoint({"inspect", run.last()}).out.find("state       damaged; "), std::string::npos);
  damage(run.first() + "/weights-00000-00.safetensors");
  expect_only_refusal(checkpoint({"export", run.dir(), "--to", out}), 7,
                      run.dir() + ": none of the run's 2 checkpoints is intact: ");
}

TEST(CheckpointCommands, WeightsRemainWithoutTheOptimizer) {
  const TwoEpochs run;
  const auto out = run.folder.path() + "/out";
  const auto optimizer = run.last() + "/optimizer-00000-00.safetensors";
  fs::remove(optimizer);
  for (const CheckpointArguments& use : {CheckpointArguments{"eval", run.last()},
                                         {"checkpoint", "export", run.last(), "--to", out},
                                         {"checkpoint", "inspect", run.last()},
                                         {"inspect", run.dir() + "/model"},
                                         {"checkpoint", "diff", run.last(), out}}) {
    const auto result = command(use);
    EXPECT_EQ(result.code, 0) << use[0] << " " << use[1] << "\n" << result.err << result.out;
  }
  EXPECT_NE(checkpoint({"ls", run.dir()}).out.find("  weights only\n"), std::string::npos);
  const auto verified = checkpoint({"verify", run.last()});
  expect_refusal(verified, 7, optimizer + ": No such file or directory, but the manifest lists it");
  EXPECT_NE(verified.out.find("; all that an evaluation reads is intact: it can be evaluated and exported\n"),
            std::string::npos)
      << verified.out;
  expect_refusal(run.trained.train(1, {"--set", "train.epochs=3", "--resume", run.last()}), 7,
                 optimizer + ": No such file or directory, but the manifest lists it");
}

TEST(CheckpointCommands, DiffSaysWhatDiffers) {
  const TwoEpochs run;
  const auto same = checkpoint({"diff", run.last(), run.dir()});
  EXPECT_EQ(same.code, 0) << same.err;
  EXPECT_NE(same.out.find("\nequal bit for bit: "), std::string::npos) << same.out;
  const auto other = checkpoint({"diff", run.first(), run.last()});
  EXPECT_EQ(other.code, 8) << other.err;
  EXPECT_EQ(other.err, "");
  const auto shown = lines_of(other.out);
  ASSERT_EQ(shown.size(), 25U) << other.out;  // A, B, the titles, 20 rows, the rest, the sum
  EXPECT_TRUE(shown[23].ends_with(" more; --all prints them")) << shown[23];
  const auto all = nlohmann::json::parse(checkpoint({"diff", run.first(), run.last(), "--json"}).out);
  EXPECT_EQ(all["equal"], false);
  EXPECT_EQ(lines_of(checkpoint({"diff", run.first(), run.last(), "--all"}).out).size(), all["differences"].size() + 4);
  // The weights first, and of each group the largest differences.
  const auto in_optimizer = [&](std::size_t i) {
    return all["differences"][i]["name"].get<std::string>().starts_with("optimizer: ");
  };
  std::size_t changes = 0;
  for (std::size_t i = 1; i < all["differences"].size(); ++i) {
    if (in_optimizer(i) == in_optimizer(i - 1))
      EXPECT_GE(all["differences"][i - 1]["max_abs"], all["differences"][i]["max_abs"]);
    else
      ++changes;
  }
  EXPECT_FALSE(in_optimizer(0));
  EXPECT_EQ(changes, 1U);
  const auto weights = nlohmann::json::parse(checkpoint({"diff", run.first(), run.dir() + "/model", "--json"}).out);
  for (const auto& each : weights["differences"]) EXPECT_EQ(each["difference"], "values") << each;
}

TEST(CheckpointCommands, InspectShowsFilesOfTensors) {
  const TwoEpochs run;
  const auto model = run.dir() + "/model/model.safetensors";
  for (const auto& path : {model, run.dir() + "/model"}) {
    const auto found = nlohmann::json::parse(command({"inspect", path, "--stats", "--json"}).out);
    EXPECT_EQ(found["path"], model);
    EXPECT_EQ(found["metadata"], nlohmann::json({{"format", "pt"}, {"producer", "trireme"}}));
    EXPECT_EQ(found["tensors"].size(), json_of(run.last() + "/manifest.json")["tensors"]["weights"].size());
    for (const auto& tensor : found["tensors"]) {
      EXPECT_EQ(tensor["nonfinite"], 0);
      EXPECT_LE(tensor["min"], tensor["mean"]);
      EXPECT_GE(tensor["max"], tensor["mean"]);
    }
  }
  const auto part = run.last() + "/weights-00000-00.safetensors";
  const auto shown = command({"inspect", part});
  EXPECT_EQ(shown.code, 0) << shown.err;
  EXPECT_NE(shown.out.find("This file is one rank's part of the checkpoint " + run.last() + ", with slices"),
            std::string::npos)
      << shown.out;
  const auto state = command({"inspect", TRIREME_SOURCE_DIR "/tests/golden/state_dict/dtypes.pth", "--stats"});
  EXPECT_EQ(state.code, 0) << state.err;
  EXPECT_NE(state.out.find("BF16"), std::string::npos) << state.out;
  fs::resize_file(model, 100);
  expect_only_refusal(command({"inspect", model}), 7, model + ": ");
  expect_only_refusal(run.trained.train(1, {"--set", "model.weights=" + part}), 7,
                      part + ": one rank's part of the checkpoint " + run.last());
}

TEST(CheckpointCommands, Refuse) {
  const TwoEpochs run;
  const auto file = run.folder.write("file", "text"), full = run.folder.path() + "/full";
  fs::create_directories(full);
  std::ofstream(full + "/notes.txt") << "mine";
  const struct {
    CheckpointArguments arguments;
    int code;
    std::string says;
  } cases[] = {
      {{}, 2, "no command given (known: ls, inspect, verify, export, diff)  (trireme checkpoint --help)"},
      {{"list", run.dir()}, 2, "no command \"list\" (known: ls, inspect, verify, export, diff)"},
      {{"ls"}, 2, "RUN is required"},
      {{"ls", "/nowhere"}, 7, "/nowhere: no such folder"},
      {{"ls", run.last()}, 7, run.last() + ": a checkpoint; name its run's folder"},
      {{"ls", full}, 7, full + ": not a run with checkpoints: it has no folder checkpoints/"},
      {{"inspect", "/nowhere"}, 7, "/nowhere: no such run or checkpoint"},
      {{"verify", file}, 7, file + ": a file; name a run's folder, or a checkpoint's (trireme inspect shows a file)"},
      {{"verify", full}, 7, full + ": neither a run's folder, "},
      {{"export", run.dir()}, 2, "--to is required"},
      {{"export", run.dir(), "--to", full},
       2,
       full +
           ": holds files that are not of an export of Trireme (notes.txt); name a new folder, or add --overwrite to "
           "replace the folder and all that is in it"},
      {{"export", run.dir(), "--to", run.last(), "--overwrite"}, 2, "a checkpoint, which no export replaces"},
      {{"export", run.dir(), "--to", run.dir(), "--overwrite"}, 2, "\", which no export replaces; name a new folder"},
      {{"export", run.dir(), "--to", "."}, 2, ".: the working directory, and an export replaces its folder as a whole"},
      {{"export", run.dir(), "--to", file}, 2, file + ": a file; name a folder"},
      {{"export", run.dir(), "--to", full, "--dtype", "int8"}, 2, "--dtype int8: must be one of fp32, bf16, fp16"},
      {{"export", run.dir(), "--to", full, "--shard-mb", "-1"}, 2, "--shard-mb -1: must be at least 0"},
      {{"diff", run.dir()}, 2, "B is required"},
      {{"diff", run.dir(), "/nowhere"}, 7, "/nowhere: no such file or folder"},
      {{"diff", run.dir(), file}, 7, file + ": "},
  };
  for (const auto& [arguments, code, says] : cases) {
    SCOPED_TRACE(says);
    expect_only_refusal(checkpoint(arguments), code, says);
  }
  EXPECT_EQ(names_of(full), std::set<std::string>{"notes.txt"});
  EXPECT_NE(command({"--help"}).out.find("\n  checkpoint "), std::string::npos);
}

}  // namespace
}  // namespace trireme::tests
