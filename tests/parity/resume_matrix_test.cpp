// Contract C8 for pairs of layouts: a run is saved within an epoch, or at its end, in one layout and loaded in another.
// All tensors and counts are restored bit for bit. In the same layout all that the run holds and reports in the next
// two steps, of which the second belongs to another epoch, equals that of the run that was never stopped, bit for bit,
// in every precision; in another layout it is, in float64, within C1's bound of the run on one rank.
#include "tests/parity/resume_matrix.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <ostream>
#include <set>

#include "core/comm/host_values.h"
#include "tests/parity/layout.h"
#include "tests/ranks/world.h"

namespace trireme::tests::resume_matrix {
namespace {

namespace fs = std::filesystem;

const std::string kHybrid = "parallel.plugin=hybrid_parallel", kZero = "parallel.plugin=low_level_zero",
                  kGemini = "parallel.plugin=gemini", kMicro = "train.micro_batch=2";
constexpr bool kNoResNet = false;

/// The first one is the reference.
const std::vector<Layout> kLayouts{
    {"one_rank", {"train.micro_batch=8"}, true},
    {"replicas_3",
     {"parallel.plugin=data_parallel", "plugin.data_parallel.replicas=3", "train.micro_batch=5"},
     true,
     kNoResNet},
    {"ddp_4", {"parallel.plugin=torch_ddp", "train.micro_batch=1"}},
    {"zero1_4", {kZero, "plugin.low_level_zero.stage=1"}},
    {"zero2_4", {kZero, "plugin.low_level_zero.stage=2", "plugin.low_level_zero.reduce_bucket_size_in_m=0.003"}},
    {"gemini_4", {kGemini, "plugin.gemini.chunk_config=1000", "plugin.gemini.max_prefetch=1"}},
    {"tp_4", {kHybrid, "parallel.tp=4"}, false, kNoResNet},
    {"tp_2_zero2", {kHybrid, "parallel.tp=2", "parallel.zero=2", kMicro}, false, kNoResNet},
    {"tp_2_zero3",
     {kHybrid, "parallel.tp=2", "parallel.zero=3", "plugin.hybrid_parallel.chunk_config=500"},
     false,
     kNoResNet},
    {"pp_2", {kHybrid, "parallel.pp=2", kMicro}},
    {"pp_4_zb_h1", {kHybrid, "parallel.pp=4", "parallel.schedule=zb_h1", kMicro}},
    {"pp_2_interleaved_zero1", {kHybrid, "parallel.pp=2", "parallel.schedule=interleaved", "parallel.zero=1", kMicro}},
    {"pp_2_zbv_zero3", {kHybrid, "parallel.pp=2", "parallel.schedule=zbv", "parallel.zero=3", kMicro}},
    {"tp_2_pp_2", {kHybrid, "parallel.tp=2", "parallel.pp=2", kMicro}, false, kNoResNet},
    {"tp_2_split_gather", {kHybrid, "parallel.tp=2", "parallel.sp_mode=split_gather"}, false, kNoResNet},
    {"sp_2_zero1", {kHybrid, "parallel.sp=2", "parallel.sp_mode=all_to_all", "parallel.zero=1"}, false, kNoResNet},
};

/// Those that can train a ResNet, and others.
std::vector<Layout> layouts_of_resnet() {
  std::vector<Layout> out{
      {"dp_outer_2_zero2", {kZero, "plugin.low_level_zero.stage=2", "plugin.low_level_zero.extra_dp_size=2"}},
      {"gemini_half", {kGemini, "plugin.gemini.shard_param_frac=0.5", "plugin.gemini.chunk_config=1000"}},
      {"pp_2_outside", {kHybrid, "parallel.pp=2", "plugin.hybrid_parallel.dp_outside=false"}}};
  std::copy_if(kLayouts.begin(), kLayouts.end(), std::inserter(out, out.begin()),
               [](const Layout& layout) { return layout.resnet; });
  return out;
}

/// An epoch is 4 steps; its last batch has 2 samples, which leaves some ranks without any.
const std::string kTraining = R"(
[train]
epochs = 4
global_batch = 8
max_norm = 1.0
precision = "fp64"
[schedule]
name = "cosine"
warmup_ratio = 0.2
)";

/// Of the transformers.
const std::string kSizes = R"(hidden_size = 16
num_layers = 2
num_heads = 4
intermediate_size = 24
)";

const std::string kVit = kTraining + "[model]\n" + kSizes + R"(name = "vit"
patch_size = 8
dropout = 0.1
attention_dropout = 0.1
drop_path = 0.1
[data]
name = "leaves"
images = 36
image_size = 16
flip = true
random_resized_crop = true
rand_augment = 1
random_erasing = 0.25
mixup = 0.2
[optimizer]
weight_decay = 0.05
)";

const std::string kBert = kTraining + "[model]\n" + kSizes + R"(name = "bert"
max_positions = 12
[data]
name = "text_classification"
max_tokens = 12
length_buckets = true
text = "text"
[optimizer]
weight_decay = 0.05
)";

/// Saved at the end of an epoch. The norms see all samples of a step, so that its running statistics are those of one
/// rank.
const std::string kResNet = kTraining + R"(
[model]
name = "resnet"
depth = 18
width = 4
sync_batch_norm = true
[data]
name = "leaves"
images = 36
image_size = 32
flip = true
random_resized_crop = true
[optimizer]
name = "sgd"
lr = 0.02
momentum = 0.9
)";

/// Which pairs of a model's layouts: layout number i is loaded by number i + d for each of these. Empty: by all.
struct Cross {
  Model model;
  std::vector<std::size_t> distances;
  std::vector<Layout> layouts = kLayouts;
  bool float64 = true;  ///< other layouts stay near the run on one rank
};
void PrintTo(const Cross& cross, std::ostream* out) { *out << cross.model.name; }

double skipped_steps(const State& state) {
  const auto is_it = [](const auto& number) { return number.first == "skipped steps"; };
  return std::find_if(state.numbers.begin(), state.numbers.end(), is_it)->second;
}

/// A folder for the runs, the same on all ranks.
class CheckpointFiles : public testing::Test {
 protected:
  void SetUp() override {
    const auto name = fmt::format("{}trireme_matrix_{}", testing::TempDir(), getpid());
    root_ = comm::broadcast_text(world().group(), name);
    if (world().rank() == 0) fs::create_directories(root_);
    world().group().barrier();
  }
  void TearDown() override {
    world().group().barrier();
    if (world().rank() == 0) fs::remove_all(root_);
  }
  std::string next_folder() { return fmt::format("{}/{}", root_, ++runs_); }
  std::string root_;
  int runs_ = 0;
};

class ResumeMatrix : public CheckpointFiles, public testing::WithParamInterface<Cross> {
 protected:
  void SetUp() override {
    CheckpointFiles::SetUp();
    if (world().rank() == 0) write_texts();
    world().group().barrier();
    if (model_.name == "bert") add_sets({"data.path=" + root_, "data.tokenizer=" + root_});
    if (model_.name == "lora") {
      train_to_the_end({"base", kVit}, kLayouts.front(), root_ + "/base");
      add_sets({"model.weights=" + root_ + "/base-0/model"});
      world().group().barrier();
    }
  }
  /// 26 texts of 1 to 10 words in three classes.
  void write_texts() const {
    std::ofstream(root_ + "/vocab.txt") << "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nb\nc\nd\n";
    std::string table = "text\tlabel\n";
    for (int i = 0; i < 26; ++i) {
      for (int word = 0; word <= i * 7 % 10; ++word) table += fmt::format("{} ", "abcd"[(i + word * word) % 4]);
      table += fmt::format("\t{}\n", i * 5 % 3);
    }
    for (const auto* split : {"/train.tsv", "/validation.tsv"}) std::ofstream(root_ + split) << table;
  }
  void add_sets(const std::vector<std::string>& sets) {
    model_.sets.insert(model_.sets.end(), sets.begin(), sets.end());
  }
  /// Nothing where other ranks would only repeat what the first one does: a run that is alone goes on there.
  std::optional<Trained> resumed(const Layout& layout, const std::string& from) {
    std::optional<Trained> out;
    if (!layout.alone || world().rank() == 0) out = train_to_the_end(model_, layout, next_folder(), from);
    world().group().barrier();
    return out;
  }
  Trained train(const Layout& layout) {
    auto out = train_to_the_end(model_, layout, next_folder());
    // Of runs that are alone, all ranks load the first rank's checkpoint.
    if (layout.alone) out.checkpoint = comm::broadcast_text(world().group(), out.checkpoint);
    world().group().barrier();
    return out;
  }
  [[nodiscard]] std::vector<std::size_t> targets(std::size_t source) const {
    std::vector<std::size_t> out;
    for (const auto distance : GetParam().distances) out.push_back((source + distance) % layouts_.size());
    for (std::size_t i = 0; GetParam().distances.empty() && i < layouts_.size(); ++i) out.push_back(i);
    return out;
  }
  void expect_near(const Trained& got, const Trained& one_rank) const {
    if (!GetParam().float64) return;
    EXPECT_EQ(beyond(kBound, got.end, one_rank.full_end), "") << "from one rank's, at the end";
    EXPECT_EQ(beyond(kBound, got.reports, one_rank.reports), "") << "from one rank's reports";
  }
  Model model_ = GetParam().model;
  const std::vector<Layout>& layouts_ = GetParam().layouts;
};

TEST_P(ResumeMatrix, GoesOnAsIfItHadNotStopped) {
  const auto& name = model_.name;
  std::vector<Trained> whole;
  for (const auto& layout : layouts_) {
    SCOPED_TRACE(fmt::format("{}, never stopped, on {}", name, layout.name));
    whole.push_back(train(layout));
    if (name == "fp16") {
      EXPECT_NE(skipped_steps(whole.back().saved), skipped_steps(whole.back().end)) << "the loss scale is not tested";
      EXPECT_LT(skipped_steps(whole.back().end), kLast) << "nothing has changed";
    }
    expect_near(whole.back(), whole.front());
  }
  for (std::size_t source = 0; source < layouts_.size(); ++source)
    for (const auto target : targets(source)) {
      SCOPED_TRACE(fmt::format("{}, saved by {}, loaded by {}", name, layouts_[source].name, layouts_[target].name));
      const auto& want = whole[source];
      const auto got = resumed(layouts_[target], want.checkpoint);
      if (!got) continue;
      EXPECT_EQ(differing_bits(got->begin, want.full_saved), "") << "as loaded";
      EXPECT_EQ(differing_bits(got->begin.numbers, want.saved.numbers), "") << "as loaded";
      if (source != target) {
        expect_near(*got, whole.front());
        continue;
      }
      EXPECT_EQ(differing_bits(got->end, want.end), "") << "at the end";
      EXPECT_EQ(differing_bits(got->reports, want.reports), "") << "in the reports";
    }
}

const std::vector<std::size_t> kAll = {}, kSome = {0, 1, 5, 10}, kSameAndOne = {0, 5};

INSTANTIATE_TEST_SUITE_P(
    Models, ResumeMatrix,
    testing::Values(
        Cross{{"vit", kVit}, kAll}, Cross{{"bert", kBert}, kSome},
        Cross{{"resnet", kResNet, {"train.micro_batch=8", "train.drop_last=true"}}, kSome, layouts_of_resnet()},
        Cross{{"ema", kVit, {"train.ema_decay=0.9", "train.eval_every=2"}}, kSome},
        Cross{{"lora", kVit, {"lora.rank=4", "lora.dropout=0.1"}}, kSome},
        Cross{{"bf16", kVit, {"train.precision=bf16"}}, kSameAndOne, kLayouts, false},
        Cross{{"fp16", kVit, {"train.precision=fp16", "train.initial_scale=1048576", "train.growth_interval=2"}},
              kSameAndOne,
              kLayouts,
              false}),
    [](const auto& test) { return test.param.model.name; });

const std::string kFp32 = "train.precision=fp32";

/// The content of a folder's files, by their names.
std::map<std::string, std::string> files_in(const std::string& folder) {
  std::map<std::string, std::string> out;
  for (const auto& entry : fs::directory_iterator(folder)) {
    std::ifstream in(entry.path(), std::ios::binary);
    out[entry.path().filename()].assign(std::istreambuf_iterator<char>(in), {});
  }
  return out;
}

// All ranks write, each its own slices, and none much more than its share. A checkpoint has each element once: it is as
// large as one rank's alone.
TEST_F(CheckpointFiles, EveryRankWritesItsShare) {
  const auto bytes = [&](const Layout& layout) {
    const auto checkpoint = train_to_the_end({"vit", kVit, {kFp32}}, layout, next_folder()).checkpoint;
    world().group().barrier();
    std::map<std::string, std::size_t> out;  // by the rank's part of the file's name
    for (const auto& [file, content] : files_in(checkpoint))
      for (const std::string group : {"weights", "optimizer"})
        if (file.starts_with(group + "-")) out[file.substr(group.size(), 6)] += content.size();
    return out;
  };
  const auto whole = bytes(kLayouts.front());
  ASSERT_EQ(whole.size(), 1U);
  const double share = static_cast<double>(whole.begin()->second) / 4;
  for (const auto& layout : {Layout{"data parallel"}, Layout{"tensor", {"parallel.tp=2"}},
                             Layout{"pipeline", {"parallel.pp=2"}}, Layout{"gemini", {kGemini}}}) {
    SCOPED_TRACE(layout.name);
    const auto parts = bytes(layout);
    EXPECT_EQ(parts.size(), 4U);
    for (const auto& [rank, size] : parts) {
      EXPECT_LT(static_cast<double>(size), 1.7 * share) << rank << ": headers and uneven stages included";
      EXPECT_GT(static_cast<double>(size), 0.3 * share) << rank;
    }
  }
}

// Checkpoints that are saved in the background hold what those hold that are saved at once, byte for byte, although the
// training goes on.
TEST_F(CheckpointFiles, BackgroundSavesHaveTheSameBytes) {
  const struct {
    Layout layout;
    Model model;
    std::set<std::string> groups{"weights", "optimizer"};
  } rows[]{
      {{"one process", {}, true}, {"vit", kVit, {kFp32}}},
      {{"data parallel"},
       {"an average, bf16", kVit, {"train.ema_decay=0.9", "train.precision=bf16"}},
       {"weights", "optimizer", "average"}},
      {{"zero 2", {kZero, "plugin.low_level_zero.stage=2"}}, {"fp16", kVit, {"train.precision=fp16"}}},
      {{"gemini", {kGemini, "plugin.gemini.chunk_config=1000"}}, {"vit", kVit, {kFp32}}},
      {{"zero 3", {"parallel.zero=3"}}, {"vit", kVit, {kFp32}}},
      {{"tensor", {"parallel.tp=2"}}, {"vit", kVit, {kFp32}}},
      {{"pipeline", {"parallel.pp=2", kMicro}}, {"vit", kVit, {kFp32}}},
      {{"tensor and zero 1", {"parallel.tp=2", "parallel.zero=1"}},
       {"small files", kVit, {kFp32, "run.checkpoint_shard_mb=1"}}},
      {{"data parallel"}, {"buffers", kResNet, {kFp32, "model.sync_batch_norm=false"}}},
  };
  for (const auto& [layout, model, groups] : rows) {
    SCOPED_TRACE(fmt::format("{}, {}", layout.name, model.name));
    std::string folders[2];
    for (const bool background : {false, true}) {
      auto with = model;
      with.sets.emplace_back("run.checkpoint_every=1");
      if (background) with.sets.emplace_back("run.async_save=true");
      const auto folder = next_folder();
      EXPECT_EQ(train_to_the_end(with, layout, folder).staging_bytes > 0, background);
      folders[background] = layout.alone ? fmt::format("{}-{}", folder, world().rank()) : folder;
    }
    world().group().barrier();
    std::set<std::string> steps[2];
    for (const int k : {0, 1})
      for (const auto& entry : fs::directory_iterator(folders[k] + "/checkpoints"))
        steps[k].insert(entry.path().filename());
    EXPECT_EQ(steps[0].size(), std::size_t{kLast});
    EXPECT_EQ(steps[0], steps[1]);
    for (const auto& step : steps[0]) {
      std::map<std::string, std::string> files[2];
      for (const int k : {0, 1}) {
        files[k] = files_in(folders[k] + "/checkpoints/" + step);
        auto manifest = nlohmann::json::parse(files[k].at("manifest.json"));
        for (const auto& group : groups) EXPECT_TRUE(manifest.at("tensors").contains(group)) << group;
        manifest.at("files").erase("config.toml");
        files[k]["manifest.json"] = manifest.dump();
      }
      EXPECT_NE(files[0].extract("config.toml").mapped(), files[1].extract("config.toml").mapped()) << "has the key";
      EXPECT_TRUE(files[0] == files[1]) << step;
    }
    EXPECT_TRUE(files_in(folders[0] + "/model") == files_in(folders[1] + "/model"));
  }
}

}  // namespace
}  // namespace trireme::tests::resume_matrix
