// The convolutional networks from a file: every layout computes the same, and an export is evaluated as it was trained.
#include <cstdint>
#include <fstream>

#include "tests/command/metrics.h"

namespace trireme::tests {
namespace {

/// MNIST's files with `images` images of 12 x 12 pixels, in which a bright row tells the label.
void write_digits(const std::string& folder, const std::string& prefix, std::uint32_t images) {
  const auto header = [](std::initializer_list<std::uint32_t> values) {
    std::string out;
    for (const auto number : values)
      for (int shift = 24; shift >= 0; shift -= 8) out += static_cast<char>(number >> shift & 0xff);
    return out;
  };
  auto pixels = header({0x0803, images, 12, 12}), labels = header({0x0801, images});
  for (std::uint32_t i = 0; i < images; ++i) {
    const auto label = i * 7 % 10;
    labels += static_cast<char>(label);
    for (std::uint32_t p = 0; p < 144; ++p)
      pixels += static_cast<char>((p / 12 == label ? 200 : 0) + (i * 13 + p * 7) % 50);
  }
  std::ofstream(folder + "/" + prefix + "-images-idx3-ubyte", std::ios::binary) << pixels;
  std::ofstream(folder + "/" + prefix + "-labels-idx1-ubyte", std::ios::binary) << labels;
}

struct RunOnDigits : SmallRun {
  explicit RunOnDigits(const std::string& model) {
    fs::create_directories(folder.path() + "/digits");
    write_digits(folder.path() + "/digits", "train", 60);
    write_digits(folder.path() + "/digits", "t10k", 30);
    folder.write("run.toml",
                 "[run]\ndir = \"" + dir() + "\"\ndevice = \"cpu\"\n[model]\n" + model +
                     "[data]\nname = \"mnist\"\npath = \"" + folder.path() +
                     "/digits\"\nimage_size = 12\n[train]\nepochs = 6\nglobal_batch = 10\n[optimizer]\nlr = "
                     "5e-3\n");
  }
};

TEST(RunImages, EveryLayoutComputesTheSame) {
  for (const auto& [model, layouts] :
       {std::pair<std::string, std::string>{"name = \"basic_net\"\n",
                                            "dp=1; dp=2; dp=2,zero=2,train.micro_batch=2; pp=2,schedule=1f1b; "
                                            "plugin=gemini,dp=3; dp=1,train.recompute=true"},
        {"name = \"resnet\"\ndepth = 18\nwidth = 8\nsync_batch_norm = true\n",
         // A norm sees one microbatch, so a step must have one.
         "dp=1; dp=2; pp=2,train.micro_batch=10; dp=2,pp=2,zero=1,train.micro_batch=5; plugin=gemini,dp=2; "
         "plugin=low_level_zero,dp=3"}}) {
    const RunOnDigits run(model);
    const auto result =
        run_process({TRIREME_COMMAND, "verify", run.config, "--layouts", layouts, "--set", "data.image_size=40"});
    EXPECT_EQ(result.code, 0) << result.out << result.err;
    EXPECT_NE(result.out.find("all 6 layouts compute the same"), std::string::npos) << result.out;
  }
}

TEST(RunImages, AnExportIsEvaluatedAsItWasTrained) {
  for (const std::string model : {"name = \"basic_net\"\n", "name = \"resnet\"\ndepth = 18\nwidth = 8\n"}) {
    const RunOnDigits run(model);
    const auto result = run.train(2);
    ASSERT_EQ(result.code, 0) << result.out << result.err;
    const auto score = result.out.substr(result.out.rfind("validation accuracy "));
    const auto accuracy = score.substr(20, score.find(" %") - 18);
    EXPECT_GT(std::stod(accuracy), 50) << result.out;
    const auto eval = run_process({TRIREME_COMMAND, "eval", run.dir()});
    EXPECT_EQ(eval.code, 0) << eval.err;
    EXPECT_NE(eval.out.find("accuracy " + accuracy), std::string::npos) << eval.out << result.out;
  }
}

// The image size goes from the file through the model, the layouts and the export back to an evaluation.
TEST(RunImages, ImagesNeedNotBeSquare) {
  const SmallRun run("[data]\nname = \"leaves\"\nimages = 60\nimage_size = [16, 24]\n");
  const auto layouts =
      run_process({TRIREME_COMMAND, "verify", run.config, "--layouts", "dp=1; tp=2; sp=2,sp_mode=all_to_all; pp=2"});
  EXPECT_EQ(layouts.code, 0) << layouts.out << layouts.err;
  const auto trained = run.train(1);
  ASSERT_EQ(trained.code, 0) << trained.err;
  EXPECT_NE(trained.out.find("16 x 24 px"), std::string::npos) << trained.out;
  EXPECT_NE(content_of(run.dir() + "/config.toml").find("image_size = [16, 24]\n"), std::string::npos);
  EXPECT_EQ(json_of(run.dir() + "/model/config.json").at("image_size"), nlohmann::json({16, 24}));
  EXPECT_EQ(json_of(run.dir() + "/model/preprocessor_config.json").at("size"),
            (nlohmann::json{{"height", 16}, {"width", 24}}));
  const auto evaluated = run_process({TRIREME_COMMAND, "eval", run.dir() + "/model"});
  ASSERT_EQ(evaluated.code, 0) << evaluated.err;
  const auto score = evaluated.out.substr(evaluated.out.find("loss ", evaluated.out.rfind("validation ")) + 5);
  const auto last = metrics_of(run.dir(), "eval", "validation").back();
  EXPECT_NEAR(std::stod(score), last.at("loss").get<double>(), 6e-5) << evaluated.out << last;
  // Weights for one shape start a model for another one, whose positions are interpolated.
  const auto upright = run_process({TRIREME_COMMAND, "eval", run.dir() + "/model", "--set", "data.image_size=[24,16]"});
  EXPECT_EQ(upright.code, 0) << upright.err;
  EXPECT_NE(upright.err.find("interpolated"), std::string::npos) << upright.err;
  expect_only_refusal(run.train(1, {"--set", "data.image_size=[16, 20]", "--set", "run.dir=" + run.dir() + "2"}), 2,
                      "data.image_size=[16, 20]: the width 20 is not a multiple of model.patch_size = 8");
}

TEST(RunImages, RefusesLayoutsWithoutAPolicy) {
  const RunOnDigits run("name = \"resnet\"\ndepth = 18\nwidth = 4\n");
  expect_only_refusal(run.train(2, {"--set", "parallel.tp=2"}), 2, "has no policy for tensor or sequence parallelism");
}

/// Two training shards and one of validation, of generated leaves, in the folder "shards" of a run that trains on them.
struct RunOnShards : SmallRun {
  RunOnShards() : SmallRun("") {
    const auto leaves = folder.path() + "/leaves", shards = folder.path() + "/shards";
    fs::create_directories(shards);
    EXPECT_EQ(run_process({TRIREME_COMMAND, "data", "leaves", "--out", leaves, "--images", "36", "--size", "16"}).code,
              0);
    const auto pack = R"(set -e
      n=0; c=0
      for class in $1/train/*; do
        for image in $class/*; do
          cp $image $2/$(printf %03d $n).png; echo $c > $2/$(printf %03d $n).cls; n=$((n + 1))
        done
        c=$((c + 1))
      done
      cd $2; set -- *; i=0
      for part in "0[01]*" "02[0-3]*" "02[4-9]*"; do tar -cf shard-$i.tar $part; i=$((i + 1)); done)";
    const auto packed = run_process({"sh", "-c", pack, "sh", leaves, shards});
    EXPECT_EQ(packed.code, 0) << packed.err;
    write(shards + "/shard-{0,1}.tar", shards + "/shard-2.tar");
  }
  void write(const std::string& train, const std::string& validation, const std::string& more = "") {
    folder.write("run.toml", "[run]\ndir = \"" + dir() + "\"\ndevice = \"cpu\"\n" + kModel +
                                 "[data]\nname = \"tar_shards\"\nimage_size = 16\ntrain = \"" + train +
                                 "\"\nvalidation = \"" + validation + "\"\n" + more +
                                 "[train]\nepochs = 2\nglobal_batch = 8\n");
  }
};

TEST(RunImages, ShardsComeFromCommands) {
  RunOnShards run;
  const auto shards = run.folder.path() + "/shards", log = run.folder.path() + "/log";
  const ProcessOptions own_cache{.environment = {"XDG_CACHE_HOME=" + run.folder.path() + "/cache"}};
  const auto command = [&](const std::vector<std::string>& words) {
    std::vector<std::string> all{TRIREME_COMMAND};
    all.insert(all.end(), words.begin(), words.end());
    auto result = run_process(all, own_cache);
    EXPECT_EQ(result.code, 0) << result.out << result.err;
    return result;
  };
  command({"train", run.config, "--ranks", "2"});
  const auto weights = weights_of(run);
  fs::remove_all(run.dir());

  const auto fetch = "pipe:echo fetched >> " + log + "; cat " + shards;
  run.write(fetch + "/shard-{0,1}.tar", fetch + "/shard-2.tar", "shard_cache_gb = 1\n");  // the disk may be full
  command({"config", run.config});
  expect_refusal(run_process({TRIREME_COMMAND, "plan", run.config}, own_cache), 3,
                 "shard-0.tar: is not fetched yet, and a plan runs no command; train first");
  EXPECT_FALSE(fs::exists(log)) << "a command ran";
  const auto trained = command({"train", run.config, "--ranks", "2"});
  EXPECT_NE((trained.out + trained.err).find("data: 2 shards are fetched for the index, which later runs have"),
            std::string::npos);
  EXPECT_TRUE(weights_of(run) == weights);
  EXPECT_EQ(lines_of(content_of(log)).size(), 3U) << "each shard is fetched once";
  command({"eval", run.dir()});
  command({"plan", run.config});
  EXPECT_EQ(lines_of(content_of(log)).size(), 3U);

  run.write("pipe:echo no bucket >&2; exit 3", fetch + "/shard-2.tar");
  expect_refusal(
      run_process({TRIREME_COMMAND, "train", run.config, "--ranks", "2", "--set", "run.dir=" + run.dir() + "2"},
                  own_cache),
      3, "pipe:echo no bucket >&2; exit 3: exit status 3; it said: no bucket");

  const auto waiting = run.folder.path() + "/waiting";
  run.write("pipe:touch " + waiting + "; tail -f " + waiting + " | cat", fetch + "/shard-2.tar");
  auto interrupting = own_cache;
  interrupting.meanwhile = [&](pid_t launcher) {
    EXPECT_TRUE(wait_until([&] { return fs::exists(waiting); }));
    kill(launcher, SIGINT);
  };
  EXPECT_EQ(run_process({TRIREME_COMMAND, "train", run.config, "--ranks", "2", "--set", "run.dir=" + run.dir() + "3"},
                        interrupting)
                .code,
            128 + SIGINT);
  EXPECT_TRUE(wait_until([&] { return processes_with(waiting).empty(); })) << "the command goes on";
}

}  // namespace
}  // namespace trireme::tests
