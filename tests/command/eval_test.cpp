// `trireme eval` and weights of other models: what can be loaded, from which folder, on how many ranks, and what is
// refused.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "tests/command/metrics.h"

namespace trireme::tests {
namespace {

ProcessResult eval(Arguments arguments, const ProcessOptions& options = {}) {
  arguments.insert(arguments.begin(), {TRIREME_COMMAND, "eval"});
  return run_process(arguments, options);
}

/// "loss 1.2345   accuracy 33.3 %" of the split; "" when the output does not contain it.
std::string score_in(const ProcessResult& result, const std::string& split = "validation") {
  for (const auto& line : lines_of(result.out))
    if (line.starts_with(split + " ")) return line.substr(line.find("loss "), line.find("   F1 ") - line.find("loss "));
  return "";
}

std::string score_of(const Arguments& arguments, const ProcessOptions& options = {}) {
  const auto result = eval(arguments, options);
  EXPECT_EQ(result.code, 0) << result.err;
  return score_in(result);
}

/// A safetensors file whose bytes can be changed.
class Tensors {
 public:
  explicit Tensors(const std::string& path) : path_(path), bytes_(content_of(path)) {
    std::uint64_t length = 0;
    std::memcpy(&length, bytes_.data(), sizeof length);
    data_ = 8 + length;
    header_ = nlohmann::json::parse(bytes_.substr(8, length));
  }
  ~Tensors() { std::ofstream(path_, std::ios::binary) << bytes_; }
  /// The values of a float32 tensor.
  float* values(const std::string& name) {
    return reinterpret_cast<float*>(bytes_.data() + data_ + header_.at(name).at("data_offsets")[0].get<std::size_t>());
  }
  void rename(const std::string& from, const std::string& to) {  // both of the same length
    for (auto at = bytes_.find(from); at < data_; at = bytes_.find(from)) bytes_.replace(at, from.size(), to);
  }

 private:
  std::string path_, bytes_;
  std::size_t data_ = 0;
  nlohmann::json header_;
};

TEST(Eval, EvaluatesARunFromAnyFolder) {
  const TemporaryFolder folder;
  ASSERT_EQ(run_process({TRIREME_COMMAND, "data", "leaves", "--out", folder.path() + "/leaves", "--images", "60",
                         "--size", "16"})
                .code,
            0);
  folder.write("run.toml",
               std::string("[run]\ndir = \"out\"\ndevice = \"cpu\"\n") + kModel +
                   "[data]\nname = \"image_folder\"\nimage_size = 16\npath = \"leaves\"\n[train]\nepochs = 1\n");
  const ProcessOptions in_folder{.folder = folder.path()}, in_root{.folder = "/"};
  ASSERT_EQ(run_process({TRIREME_COMMAND, "train", "run.toml"}, in_folder).code, 0);
  const auto run = folder.path() + "/out";
  const auto expected = score_of({"out"}, in_folder);
  EXPECT_NE(expected, "");
  for (const auto* part : {"", "/", "/model", "/model-best", "/checkpoints/step-00000002", "/model/model.safetensors",
                           "/model-best/model.safetensors", "/checkpoints/step-00000002/best.safetensors"})
    EXPECT_EQ(score_of({run + part}, in_root), expected) << part;
  // A key that only the run's own kind of data has does not prevent an evaluation on other data.
  const auto& drawn = made_once<TrainedRun>();
  EXPECT_NE(score_of({drawn.dir(), "--set", "data.name=image_folder", "--set", "data.path=leaves"}, in_folder), "");
  expect_only_refusal(
      eval({drawn.dir(), "--set", "data.name=image_folder", "--set", "data.path=leaves", "--set", "data.images=90"},
           in_folder),
      2, "--set data.images=90: has no effect with name = \"image_folder\"");
  // The file of a resumed run goes on with it.
  const auto resumed =
      run_process({TRIREME_COMMAND, "train", "run.toml", "--resume", "must", "--set", "train.epochs=2"}, in_folder);
  EXPECT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_NE(content_of(run + "/config.toml").find("resume = \"auto\"\n"), std::string::npos);
  EXPECT_NE(content_of(run + "/config.toml").find("path = \"" + folder.path() + "/leaves\"\n"), std::string::npos);
  // When a finished run is extended and then interrupted, its checkpoint has newer weights than model/.
  const auto earlier = score_of({run}, in_root);
  fs::create_directories(folder.path() + "/kept");
  fs::copy(run, folder.path() + "/kept", fs::copy_options::recursive);
  ASSERT_EQ(
      run_process({TRIREME_COMMAND, "train", "run.toml", "--resume", "must", "--set", "train.epochs=3"}, in_folder)
          .code,
      0);
  for (const auto* part : {"/model", "/summary.json"}) {
    fs::remove_all(run + part);
    fs::copy(folder.path() + "/kept" + part, run + part, fs::copy_options::recursive);
  }
  const auto newest = eval({run}, in_root);
  EXPECT_NE(newest.out.find("weights   " + run + "/checkpoints/step-00000006: epoch 3, after 6 steps\n"),
            std::string::npos)
      << newest.out << newest.err;
  EXPECT_EQ(score_of({folder.path() + "/kept"}, in_root), earlier);
  // Other training images change the order of samples, so the run is not resumed.
  for (const auto& entry : fs::directory_iterator(folder.path() + "/leaves/train/healthy")) {
    fs::rename(entry.path(), entry.path().parent_path() / "zzz.png");
    break;
  }
  expect_refusal(
      run_process({TRIREME_COMMAND, "train", "run.toml", "--resume", "must", "--set", "train.epochs=4"}, in_folder), 7,
      "the training data (a digest)");
  // The file in a copied run folder still names the original folder.
  for (const auto* ranks : {"1", "2"})
    expect_refusal(run_process({TRIREME_COMMAND, "train", folder.path() + "/kept/config.toml", "--resume", "must",
                                "--ranks", ranks}),
                   2,
                   "this run folder was copied or moved to " + folder.path() +
                       "/kept; choose where to resume it with --set run.dir=");
  // A folder of weights alone has no config.toml.
  fs::copy(run + "/model", folder.path() + "/mere");
  expect_only_refusal(eval({folder.path() + "/mere"}), 2, "or the weights and the TOML file");
}

TEST(Eval, EvaluatesTheNewestCheckpointOfAnInterruptedRun) {
  const SmallRun run;
  train_well(run, 1, {"--set", "run.checkpoint_every=2", "--set", "run.keep_checkpoints=9"});
  const auto newest = run.dir() + "/checkpoints/step-00000006";
  const auto expected = score_of({run.dir()});
  fs::remove_all(run.dir() + "/model");
  fs::create_directories(run.dir() + "/checkpoints/step-00000008.tmp");
  std::ofstream(run.dir() + "/config.toml", std::ios::app) << "[nonsense]\n";  // the checkpoint's file is read
  const auto result = eval({run.dir()});
  EXPECT_EQ(score_in(result), expected) << result.err;
  EXPECT_NE(result.out.find("weights   " + newest + ": epoch 1, after 6 steps\n"), std::string::npos) << result.out;
  EXPECT_EQ(score_of({newest, "--ranks", "2"}), expected);
  EXPECT_NE(score_of({run.dir() + "/checkpoints/step-00000002"}), expected);
  fs::resize_file(newest + "/weights-00000-00.safetensors", 100);
  for (const auto* ranks : {"1", "2"})
    expect_refusal(eval({run.dir(), "--ranks", ranks}), 7, "weights-00000-00.safetensors is truncated: 100 bytes");
  fs::remove_all(run.dir() + "/checkpoints");
  expect_only_refusal(eval({run.dir()}), 7, "this run has neither a model nor a checkpoint yet");
}

// A parallel run's weights can be evaluated in any layout, and its global batch does not matter.
TEST(Eval, OnAnyNumberOfRanks) {
  const SmallRun run(kLeaves, "epochs = 1\nglobal_batch = 2\n");
  train_well(
      run, 4,
      {"--set", "parallel.tp=2", "--set", "parallel.pp=2", "--set", "parallel.dp=1", "--set", "train.micro_batch=1"});
  const auto expected = score_of({run.dir(), "--ranks", "4"});
  const auto alone = eval({run.dir()});
  EXPECT_EQ(score_in(alone), expected) << alone.err;
  EXPECT_NE(alone.err.find(
                "layout   the run's layout (hybrid_parallel) does not fit 1 rank; evaluating with data parallelism"),
            std::string::npos)
      << alone.err;
  EXPECT_EQ(score_of({run.dir(), "--ranks", "3"}), expected) << "more ranks than a batch has samples";
  EXPECT_EQ(score_of({run.dir(), "--ranks", "2", "--set", "parallel.plugin=gemini"}), expected);
  EXPECT_EQ(score_of({run.dir(), "--ranks", "2", "--set", "parallel.tp=2"}), expected);
  EXPECT_EQ(score_of({run.dir(), run.config, "--ranks", "3"}), expected);
  // A key of a plugin is used or refused, never ignored.
  expect_only_refusal(eval({run.dir(), "--set", "plugin.hybrid_parallel.bogus=1"}), 2, "no key \"bogus\"");
  EXPECT_EQ(eval({run.dir(), "--set", "plugin.hybrid_parallel.tp_size=4"}).code, 2);
  // --set overrides the file under either name of the key.
  for (const auto* set : {"parallel.tp=1", "plugin.hybrid_parallel.tp_size=1"}) {
    const auto other = run_process({TRIREME_COMMAND, "train", run.dir() + "/config.toml", "--ranks", "2", "--set", set,
                                    "--set", "train.max_steps=1", "--set", "run.dir=" + run.folder.path() + "/other"});
    EXPECT_EQ(other.code, 0) << other.err;
    EXPECT_NE(other.out.find("2 = dp 1 x pp 2 x tp 1   "), std::string::npos) << other.out;
  }
}

TEST(Eval, NamesWeightsThatAreNotFinite) {
  const auto& run = made_once<TrainedRun>();
  {
    Tensors file(run.dir() + "/model/model.safetensors");
    file.values("vit.layernorm.weight")[3] = NAN;
  }
  const std::string says = "model.safetensors: tensor \"vit.layernorm.weight\" contains a NaN or an infinity";
  for (const int ranks : {1, 2}) {
    expect_refusal(eval({run.dir(), "--ranks", std::to_string(ranks)}), 6, says);
    expect_refusal(run.train(ranks, {"--set", "model.weights=" + run.dir() + "/model", "--set",
                                     "run.dir=" + run.folder.path() + "/other"}),
                   6, says);
  }
}

// Finite weights, whose products are not.
TEST(Eval, ALossThatIsNotFiniteIsAnError) {
  const auto& run = made_once<TrainedRun>();
  {
    Tensors file(run.dir() + "/model/model.safetensors");
    for (const auto* name : {"vit.layernorm.weight", "classifier.weight"}) std::fill_n(file.values(name), 16, 3e38F);
  }
  for (const auto* ranks : {"1", "2"}) {
    const auto result = eval({run.dir(), "--ranks", ranks});
    expect_refusal(result, 6,
                   "the loss on validation and test is not finite; use earlier weights, or check the samples");
    EXPECT_TRUE(score_in(result).find("nan") != std::string::npos) << result.out;
  }
}

TEST(Eval, RefusesABaseModelWithoutAHead) {
  const auto& run = made_once<TrainedRun>();
  Tensors(run.dir() + "/model/model.safetensors").rename("\"classifier.", "\"klassifier.");
  for (const int ranks : {1, 2})
    expect_only_refusal(eval({run.dir(), "--ranks", std::to_string(ranks)}), 7,
                        "no classifier head in these weights; train one first");
}

// The same classes have other numbers: two rows of the head, and their names in config.json, are swapped.
TEST(Weights, LabelsInAnotherOrderAreMapped) {
  const SmallRun run;
  train_well(run, 1, {"--set", "optimizer.lr=1e-2"});
  const auto expected = score_of({run.dir()});
  const auto other = run.folder.path() + "/other";
  fs::copy(run.dir() + "/model", other);
  {
    Tensors file(other + "/model.safetensors");
    auto *weight = file.values("classifier.weight"), *bias = file.values("classifier.bias");
    std::swap_ranges(weight, weight + 16, weight + 16);
    std::swap(bias[0], bias[1]);
    auto config = json_of(other + "/config.json");
    std::swap(config["id2label"]["0"], config["id2label"]["1"]);
    std::ofstream(other + "/config.json") << config;
  }
  const auto result = eval({other, run.config});
  EXPECT_EQ(score_in(result), expected) << result.err;
  const auto note = "labels   numbered as in " + other + ": 0 healthy, 1 angular_spots, 2 rust\n";
  EXPECT_EQ(result.err, note);
  const auto trained = run.train(1, {"--set", "model.weights=" + other, "--set", "optimizer.lr=0"});
  EXPECT_EQ(trained.err, note);
  EXPECT_EQ(json_of(run.dir() + "/model/config.json")["id2label"]["0"], "healthy");
  EXPECT_EQ(score_of({run.dir()}), expected);
  EXPECT_EQ(score_of({run.dir() + "/checkpoints/step-00000006"}), expected);
}

TEST(Weights, LoadFromTheHubsCache) {
  const auto& run = made_once<TrainedRun>();
  const auto model = run.folder.path() + "/hub/models--someone--leaves";
  fs::create_directories(model + "/snapshots");
  fs::create_directories(model + "/refs");
  fs::copy(run.dir() + "/model", model + "/snapshots/abc");
  std::ofstream(model + "/refs/main") << "abc";
  const ProcessOptions cached{.environment = {"HF_HUB_CACHE=" + run.folder.path() + "/hub"}};
  const auto trained = run.train(2, {"--set", "model.weights=someone/leaves"}, cached);
  EXPECT_EQ(trained.code, 0) << trained.err;
  EXPECT_NE(trained.out.find("; from " + model + "/snapshots/abc\n"), std::string::npos) << trained.out;
  EXPECT_NE(content_of(run.dir() + "/config.toml").find("weights = \"" + model + "/snapshots/abc\"\n"),
            std::string::npos);
  expect_only_refusal(run.train(2, {"--set", "model.weights=someone/else"}, cached), 7,
                      "hf download someone/else config.json model.safetensors preprocessor_config.json");
  expect_only_refusal(eval({"https://huggingface.co/someone/else", run.config}), 7,
                      "an address cannot be loaded; give a local folder, or the name of a model on the Hub: "
                      "\"someone/else\"");
}

}  // namespace
}  // namespace trireme::tests
