// Checkpoints of a training: exact resume, damaged folders skipped, retention, failures that leave nothing behind.
#include "core/checkpoint/train_state.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "core/optim/optimizer.h"
#include "core/optim/optimizers.h"
#include "tests/file_limit.h"
#include "tests/unit/checkpoint/folder.h"

namespace trireme::checkpoint {
namespace {

namespace fs = std::filesystem;

/// A training of two parameters, whose gradients depend on the step alone.
struct Training {
  std::vector<nn::Parameter> parameters;
  std::unique_ptr<optim::Optimizer> optimizer;

  explicit Training(const std::string& name, at::ScalarType dtype = at::kFloat) {
    for (const auto& [label, shape] :
         std::vector<std::pair<std::string, std::vector<std::int64_t>>>{{"layer.weight", {3, 4}}, {"layer.bias", {}}})
      parameters.push_back({label, at::full(shape, 0.3, dtype), shard::Placement::whole(label, shape)});
    optim::OptimizerOptions options;
    if (name == "sgd") options.method = optim::sgd({.momentum = 0.9, .dampening = 0.1});
    std::vector<optim::NamedTensor> tensors;
    for (const auto& p : parameters) tensors.push_back({p.name, p.value});
    optimizer = optim::make(options, optim::make_groups(options, tensors));
  }
  void step(std::int64_t number) {
    for (auto& slot : optimizer->groups()[0].slots)
      slot.grad = at::full_like(slot.value, std::sin(static_cast<double>(number + slot.value.numel())));
    optimizer->step(0.1);
  }
  CheckpointContents contents(std::int64_t number) {
    CheckpointContents out;
    out.record.progress = {number / 10, number % 10, number, number * 32};
    out.record.seed = -9'000'000'000'000'000'000;
    out.record.loss_scale = std::vector<double>{65536.0, 1.0 / 3, 2, 0};
    out.record.config = "[run]\ndir = \"x\"\n";
    out.record.versions = {{"trireme", "0.1.0"}};
    out.record.extra = {{"best", {{"accuracy", 0.1 + 0.2}, {"epoch", 3}}}};
    out.weights = weights_of(parameters);
    out.optimizer = states_of(*optimizer, parameters);
    return out;
  }
};

TEST(TrainState, ResumedRunEqualsTheWholeBitForBit) {
  for (const std::string name : {"hybrid_adam", "sgd"}) {
    const TestFolder run;
    Training whole(name);
    for (int s = 0; s < 4; ++s) whole.step(s);
    const auto saved = whole.contents(4);
    const auto folder = save_checkpoint(run.path(), saved, 2, alone());
    EXPECT_EQ(folder, run / "checkpoints/step-00000004");
    EXPECT_EQ(names_in(folder),
              (std::vector<std::string>{"config.toml", "manifest.json", "optimizer-00000-00.safetensors", "state.json",
                                        "weights-00000-00.safetensors"}));
    for (int s = 4; s < 8; ++s) whole.step(s);

    const Checkpoint checkpoint(newest_checkpoint(run.path(), Log()), Verify::sizes);
    EXPECT_EQ(checkpoint.record().progress, saved.record.progress);
    EXPECT_EQ(checkpoint.record().seed, saved.record.seed);
    EXPECT_EQ(checkpoint.record().loss_scale, saved.record.loss_scale);
    EXPECT_EQ(checkpoint.record().config, saved.record.config);
    EXPECT_EQ(checkpoint.record().versions, saved.record.versions);
    EXPECT_EQ(checkpoint.record().extra, saved.record.extra);
    Training resumed(name);
    restore_slices(checkpoint.weights(), weights_of(resumed.parameters), {}, "parameters");
    restore_slices(checkpoint.optimizer(), states_of(*resumed.optimizer, resumed.parameters), {},
                   "optimizer's tensors");
    for (int s = 4; s < 8; ++s) resumed.step(s);
    for (std::size_t i = 0; i < whole.parameters.size(); ++i)
      EXPECT_TRUE(at::equal(whole.parameters[i].value, resumed.parameters[i].value)) << name;
  }
}

TEST(TrainState, LoadsSlicesOfWholeTensors) {
  const TestFolder run;
  Training whole("hybrid_adam");
  whole.parameters[0].value.copy_(at::arange(12).view({3, 4}));
  const Checkpoint checkpoint(save_checkpoint(run.path(), whole.contents(1), 1, alone()));
  auto placement = whole.parameters[0].placement;
  placement.flat = shard::Range{5, 9};
  auto slice = at::full({4}, -1.f), bias = at::full({}, -1.f);
  restore_slices(checkpoint.weights(), {{placement, slice}, {whole.parameters[1].placement, bias}}, {}, "parameters");
  EXPECT_TRUE(at::equal(slice, at::arange(5, 9, at::kFloat)));
}

// Each checkpoint has the best epoch's weights, as a hard link where possible, and keeps them when the file changes.
TEST(TrainState, HoldsTheBestWeightsAndTheModelsOwnFiles) {
  const TestFolder run;
  Training t("sgd");
  EXPECT_EQ(Checkpoint(save_checkpoint(run.path(), t.contents(1), 9, alone())).best(), "");
  auto contents = t.contents(2);
  contents.best = run / "best.safetensors";
  contents.best_digest = write_file(contents.best, "first");
  contents.texts = {{"config.json", "{}"}};
  const Checkpoint first(save_checkpoint(run.path(), contents, 9, alone()));
  EXPECT_EQ(fs::hard_link_count(contents.best), 2U);
  write_file(contents.best, "second");
  EXPECT_EQ(bytes_of(first.best()), "first");
  EXPECT_EQ(bytes_of(first.folder() + "/config.json"), "{}");
  link_file(first.best(), contents.best);
  EXPECT_EQ(bytes_of(contents.best), "first");
  link_file(first.best(), contents.best);  // both names already refer to one file
  EXPECT_EQ(names_in(run.path()), (std::vector<std::string>{"best.safetensors", "checkpoints"}));
}

TEST(TrainState, MismatchesAreListed) {
  const TestFolder run;
  Training a("hybrid_adam");
  const Checkpoint checkpoint(save_checkpoint(run.path(), a.contents(1), 1, alone()));
  Training other("sgd"), wide("hybrid_adam", at::kDouble);
  expect_error(
      [&] {
        restore_slices(checkpoint.optimizer(), states_of(*other.optimizer, other.parameters), {},
                       "optimizer's tensors");
      },
      {"step-00000001/optimizer: 6 of this run's optimizer's tensors do not match",
       "layer.weight.momentum_buffer is not in the checkpoint", "layer.bias.exp_avg is only in the checkpoint"});
  expect_error([&] { restore_slices(checkpoint.weights(), weights_of(wide.parameters), {}, "parameters"); },
               {"layer.weight is float64 [3, 4] here and float32 [3, 4] in the checkpoint", "precision that wrote it"});
  EXPECT_EQ(wide.parameters[0].value.min().item<double>(), 0.3);
  auto contents = a.contents(1);
  contents.record.extra = {{"best", std::nan("")}};
  EXPECT_THROW(save_checkpoint(run.path(), contents, 1, alone()), CheckpointError) << "a NaN would be lost in JSON";
}

TEST(TrainState, RetentionKeepsTheNewest) {
  const TestFolder run;
  Training t("sgd");
  const auto root = run / "checkpoints";
  const auto save = [&](std::int64_t step, std::int64_t keep) {
    save_checkpoint(run.path(), t.contents(step), keep, alone());
  };
  EXPECT_EQ(newest_checkpoint(run.path(), Log()), "");
  make_folder(root + "/step-00000009.tmp");  // what a killed run left
  put_bytes(root + "/step-00000009.tmp/weights.safetensors", "half");
  put_bytes(root + "/notes.txt", "mine");
  EXPECT_EQ(newest_checkpoint(run.path(), Log()), "");
  for (const int step : {10, 20, 30}) save(step, 2);
  EXPECT_EQ(names_in(root), (std::vector<std::string>{"notes.txt", "step-00000020", "step-00000030"}));
  save(25, 2);  // a run resumed from an earlier step: its checkpoint stays
  EXPECT_EQ(names_in(root), (std::vector<std::string>{"notes.txt", "step-00000025", "step-00000030"}));
  t.step(1);
  save(30, 2);  // the same step again: the new one replaces the old one
  const Checkpoint again(root + "/step-00000030");
  EXPECT_TRUE(at::equal(again.weights().read("layer.weight", t.parameters[0].placement), t.parameters[0].value));
  save(123456789, 1);
  EXPECT_EQ(names_in(root), (std::vector<std::string>{"notes.txt", "step-123456789"}));
}

TEST(TrainState, ResumingEarlierSetsLaterCheckpointsAside) {
  const TestFolder run;
  Training t("sgd");
  const auto root = run / "checkpoints";
  EXPECT_TRUE(set_aside_after(run.path(), 0).empty()) << "no checkpoints yet";
  for (const int step : {5, 10, 20}) save_checkpoint(run.path(), t.contents(step), 9, alone());
  EXPECT_EQ(set_aside_after(run.path(), 10), std::vector<std::string>{root + "/step-00000020.aside"});
  EXPECT_EQ(newest_checkpoint(run.path(), Log()), root + "/step-00000010");
  save_checkpoint(run.path(), t.contents(20), 9, alone());
  EXPECT_EQ(set_aside_after(run.path(), 5),
            (std::vector<std::string>{root + "/step-00000020.aside.2", root + "/step-00000010.aside"}));
  save_checkpoint(run.path(), t.contents(6), 1, alone());  // checkpoints set aside are neither counted nor removed
  EXPECT_EQ(names_in(root), (std::vector<std::string>{"step-00000006", "step-00000010.aside", "step-00000020.aside",
                                                      "step-00000020.aside.2"}));
}

// One that the system cannot look at, as after an error of a network file system.
TEST(TrainState, ACheckpointWhoseFolderCannotBeReadIsSkipped) {
  const TestFolder run;
  Training t("sgd");
  const auto old = save_checkpoint(run.path(), t.contents(1), 9, alone());
  const auto newest = run / "checkpoints/step-00000002";
  fs::create_symlink("step-00000002", newest);  // a loop
  expect_error([&] { const Checkpoint checkpoint(newest); }, {"step-00000002: cannot be read: Too many levels"});
  Damages known;
  EXPECT_EQ(latest_checkpoint(run.path(), Log(1), Verify::record, known), old);
  EXPECT_NE(known[newest].why.find("cannot be read"), std::string::npos) << known[newest].why;
}

TEST(TrainState, TheRecordIsNotTrusted) {
  const std::string good = state_text({.progress = {1, 2, 8, 64},
                                       .seed = 42,
                                       .loss_scale = {{2.5, 3}},
                                       .config = "",
                                       .versions = {{"trireme", "0.1.0"}},
                                       .extra = {{"best", 1}}});
  const auto read = parse_state(good, "state.json");
  EXPECT_EQ(read.progress, (Progress{1, 2, 8, 64}));
  EXPECT_EQ(read.seed, 42);
  EXPECT_EQ(read.loss_scale, (std::vector<double>{2.5, 3}));
  EXPECT_EQ(read.versions, (std::map<std::string, std::string>{{"trireme", "0.1.0"}}));
  EXPECT_EQ(read.extra, nlohmann::json({{"best", 1}}));
  const struct {
    std::string from, to, says;
  } rows[] = {
      {good, "[]", "a JSON array in place of an object"},
      {good, "nothing", "line 1, column 2: not valid JSON"},
      {good, std::string(200'000, '['), "line 1, column 129: nested deeper than 128 levels"},
      {"\"format\": 1", "\"format\": 2", "format 2, but this version reads format 1"},
      {"\"format\": 1", "\"format\": 1.5", "format is 1.5, which is not an integer"},
      {"\"global_step\": 8", "\"global_step\": 8.5", "global_step is 8.5, which is not an integer"},
      {"\"global_step\": 8", "\"global_step\": -8", "global_step is -8"},
      {"\"global_step\": 8", "\"global_step\": 9223372036854775808",
       "is 9223372036854775808, which is not an integer below 2^63"},
      {"\"samples\": 64", "\"samples\": true", "samples is a JSON boolean"},
      {"\"samples\": 64", "\"sample\": 64", "key 'samples' not found"},
      {"\"seed\": 42", "\"seed\": 4e1", "seed is 40.0, which is not an integer"},
      {"2.5", "\"2.5\"", "loss_scale has a \"2.5\""},
      {"\"0.1.0\"", "1", "type must be string"},
  };
  for (const auto& [from, to, says] : rows) {
    auto text = good;
    ASSERT_NE(text.find(from), text.npos) << from;
    text.replace(text.find(from), from.size(), to);
    expect_error([&, as = to] { (void)parse_state(text, "a/state.json"); }, {"a/state.json: ", says});
  }
}

TEST(TrainState, DamagedCheckpointsAreSkipped) {
  const auto replace = [](const std::string& path, const std::string& from, const std::string& to) {
    auto text = bytes_of(path);
    ASSERT_NE(text.find(from), std::string::npos);
    put_bytes(path, text.replace(text.find(from), from.size(), to));
  };
  struct Row {
    std::function<void(const std::string&)> tear;
    std::vector<std::string> says;
  };
  const std::vector<Row> rows{
      {[](const auto& f) { fs::resize_file(f + "/weights-00000-00.safetensors", 100); },
       {"weights-00000-00.safetensors is truncated: 100 bytes, but the manifest says "}},
      {[](const auto& f) { put_bytes(f + "/config.toml", bytes_of(f + "/config.toml") + "#"); },
       {"config.toml has grown: ", "but the manifest says "}},
      {[](const auto& f) {
         auto bytes = bytes_of(f + "/optimizer-00000-00.safetensors");
         bytes.back() = static_cast<char>(bytes.back() ^ 4);
         put_bytes(f + "/optimizer-00000-00.safetensors", bytes);
       },
       {"optimizer-00000-00.safetensors is damaged: CRC-32 ", ", but the manifest says "}},
      {[](const auto& f) { fs::remove(f + "/state.json"); }, {"state.json: No such file"}},
      {[](const auto& f) { fs::remove(f + "/manifest.json"); }, {"no manifest.json in it"}},
      {[](const auto& f) { put_bytes(f + "/manifest.json", ""); }, {"manifest.json: not a manifest"}},
      {[](const auto& f) { put_bytes(f + "/manifest.json", R"({"format":2,"files":[]})"); }, {"not a manifest"}},
      {[&](const auto& f) { replace(f + "/manifest.json", "\"config.toml\"", "\"konfig.toml\""); },
       {"manifest.json: lists no config.toml"}},
      {[&](const auto& f) { replace(f + "/manifest.json", "\"weights\": {", "\"waits\": {"); },
       {"manifest.json: lists no tensors of the weights"}},
      {[&](const auto& f) { replace(f + "/manifest.json", "\"format\": 2", "\"format\": 3"); },
       {"format 3, but this version reads formats 1 to 2"}},
      {[&](const auto& f) { replace(f + "/config.toml", "dir", "dar"); }, {"config.toml is damaged"}},
  };
  const TestFolder run;
  Training t("hybrid_adam");
  const auto old = save_checkpoint(run.path(), t.contents(1), 9, alone());
  for (const auto& [tear, says] : rows) {
    const auto folder = save_checkpoint(run.path(), t.contents(2), 9, alone());
    ASSERT_EQ(newest_checkpoint(run.path(), Log()), folder);
    tear(folder);
    expect_error([&, f = folder] { const Checkpoint checkpoint(f); }, says);
    auto* out = std::tmpfile();
    EXPECT_EQ(newest_checkpoint(run.path(), Log(0, out)), old) << says[0];
    std::string text(static_cast<std::size_t>(std::ftell(out)), '\0');
    std::rewind(out);
    EXPECT_EQ(std::fread(text.data(), 1, text.size(), out), text.size());
    std::fclose(out);
    EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1) << text;
    for (const auto& part : says) EXPECT_NE(text.find(part), std::string::npos) << text;
  }
  // No intact checkpoint is left: starting anew would move away data that may still be recovered.
  fs::remove(old + "/manifest.json");
  expect_error([&] { (void)newest_checkpoint(run.path(), Log(1)); },
               {"no checkpoint is intact (step-00000002, step-00000001)", "config.toml is damaged",
                old + ": no manifest.json in it", "start a new run (--fresh)"});
  fs::remove_all(run / "checkpoints");
  EXPECT_EQ(newest_checkpoint(run.path(), Log(1)), "");
  expect_error([&] { const Checkpoint checkpoint(old); }, {"no such checkpoint folder"});
}

// Who does not use the best weights does not mind their damage; who does takes them where they are intact, if anywhere.
TEST(TrainState, DamagedBestWeightsDoNotCostTheCheckpoint) {
  const TestFolder run;
  Training t("hybrid_adam");
  const auto old = save_checkpoint(run.path(), t.contents(1), 9, alone());
  auto contents = t.contents(2);
  contents.best = run / "best";
  contents.best_digest = write_file(contents.best, "the best weights");
  const auto folder = save_checkpoint(run.path(), contents, 9, alone());
  Checkpoint(folder).verify_best(0, 1);
  for (const auto& tear : std::vector<std::function<void(const std::string&)>>{
           [](const auto& best) { put_bytes(best, "the worst weight"); },
           [](const auto& best) { fs::resize_file(best, 5); }, [](const auto& best) { fs::remove(best); }}) {
    tear(folder + "/best.safetensors");
    EXPECT_EQ(newest_checkpoint(run.path(), Log(1)), folder);
    expect_error([&] { Checkpoint(folder).verify_best(0, 1); }, {"best.safetensors"});
  }
  Damages known{{folder, {.why = "damaged", .only_best = true}}};
  EXPECT_EQ(latest_checkpoint(run.path(), Log(1), Verify::record, known), old);
  known[old] = {.why = "damaged", .only_best = true};
  EXPECT_EQ(latest_checkpoint(run.path(), Log(1), Verify::record, known), folder);
  known[folder].only_best = false;
  EXPECT_EQ(latest_checkpoint(run.path(), Log(1), Verify::record, known), old);
  known[old].only_best = false;
  expect_error([&] { (void)latest_checkpoint(run.path(), Log(1), Verify::record, known); },
               {"no checkpoint is intact (step-00000002, step-00000001)"});
}

TEST(TrainState, FailureLeavesOnlyTheOldCheckpoint) {
  const TestFolder run;
  Training t("hybrid_adam");
  const auto old = save_checkpoint(run.path(), t.contents(1), 1, alone());
  auto large = t.contents(2);
  large.optimizer.push_back({shard::Placement::whole("large", {1'000'000}), at::full({1'000'000}, 1.f)});
  {
    const tests::FileLimit full(1 << 20);
    expect_error([&] { save_checkpoint(run.path(), large, 1, alone()); },
                 {"step-00000002.tmp/optimizer-00000-00.safetensors", "File too large", "it needs 3.8 MiB"});
  }
  EXPECT_EQ(names_in(run / "checkpoints"), std::vector<std::string>{"step-00000001"});
  EXPECT_EQ(newest_checkpoint(run.path(), Log()), old);
}

}  // namespace
}  // namespace trireme::checkpoint
