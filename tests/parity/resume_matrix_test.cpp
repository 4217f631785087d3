// Contract C8 for pairs of layouts: a run is saved in the middle of an epoch in one layout and loaded in another. All
// tensors and counts are restored bit for bit. In the same layout all that the run holds and reports in the next four
// steps, with the end of an epoch among them, equals that of the run that was never stopped, bit for bit, in every
// precision; in another layout it is, in float64, within C1's bound of the run on one rank.
#include "tests/parity/resume_matrix.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <ostream>

#include "core/comm/text.h"
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

/// Steps 1 to 4 are the first epoch; the last batch of an epoch has 2 samples, which leaves some ranks without any.
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

/// The norms see all samples of a step, so that its running statistics are those of one rank.
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

class ResumeMatrix : public testing::TestWithParam<Cross> {
 protected:
  void SetUp() override {
    const auto name = fmt::format("{}trireme_matrix_{}", testing::TempDir(), getpid());
    root_ = comm::broadcast_text(world().group(), world().device(), name);
    if (world().rank() == 0) write_texts();
    world().group().barrier();
    if (model_.name == "bert") add_sets({"data.path=" + root_, "data.tokenizer=" + root_});
    if (model_.name == "lora") {
      train_to_the_end({"base", kVit}, kLayouts.front(), root_ + "/base");
      add_sets({"model.weights=" + root_ + "/base-0/model"});
      world().group().barrier();
    }
  }
  void TearDown() override {
    world().group().barrier();
    if (world().rank() == 0) fs::remove_all(root_);
  }
  /// 26 texts of 1 to 10 words in three classes.
  void write_texts() const {
    fs::create_directories(root_);
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
  Trained train(const Layout& layout, const std::string& from = "") {
    auto out = train_to_the_end(model_, layout, fmt::format("{}/{}", root_, ++runs_), from);
    // Of runs that are alone, all ranks load the first rank's checkpoint.
    if (layout.alone) out.checkpoint = comm::broadcast_text(world().group(), world().device(), out.checkpoint);
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
  std::string root_;
  const std::vector<Layout>& layouts_ = GetParam().layouts;
  int runs_ = 0;
};

TEST_P(ResumeMatrix, GoesOnAsIfItHadNotStopped) {
  const auto& name = model_.name;
  std::vector<Trained> whole;
  for (const auto& layout : layouts_) {
    SCOPED_TRACE(fmt::format("{}, never stopped, on {}", name, layout.name));
    whole.push_back(train(layout));
    if (name == "fp16") {
      EXPECT_NE(skipped_steps(whole.back().saved), skipped_steps(whole.back().end)) << "the loss scale is not tested";
    }
    expect_near(whole.back(), whole.front());
  }
  for (std::size_t source = 0; source < layouts_.size(); ++source)
    for (const auto target : targets(source)) {
      SCOPED_TRACE(fmt::format("{}, saved by {}, loaded by {}", name, layouts_[source].name, layouts_[target].name));
      const auto& want = whole[source];
      const auto got = train(layouts_[target], want.checkpoint);
      EXPECT_EQ(differing_bits(got.begin, want.full_saved), "") << "as loaded";
      EXPECT_EQ(differing_bits(got.begin.numbers, want.saved.numbers), "") << "as loaded";
      if (source != target) {
        expect_near(got, whole.front());
        continue;
      }
      EXPECT_EQ(differing_bits(got.end, want.end), "") << "at the end";
      EXPECT_EQ(differing_bits(got.reports, want.reports), "") << "in the reports";
    }
}

const std::vector<std::size_t> kAll = {}, kSome = {0, 1, 5, 10}, kSameAndOne = {0, 5};

INSTANTIATE_TEST_SUITE_P(
    Models, ResumeMatrix,
    testing::Values(
        Cross{{"vit", kVit}, kAll}, Cross{{"bert", kBert}, kSome},
        Cross{{"resnet", kResNet, {"train.micro_batch=8", "train.drop_last=true"}}, kSome, layouts_of_resnet()},
        Cross{{"ema", kVit, {"train.ema_decay=0.9", "train.eval_every=4"}}, kSome},
        Cross{{"lora", kVit, {"lora.rank=4", "lora.dropout=0.1"}}, kSome},
        Cross{{"bf16", kVit, {"train.precision=bf16"}}, kSameAndOne, kLayouts, false},
        Cross{{"fp16", kVit, {"train.precision=fp16", "train.initial_scale=1048576", "train.growth_interval=2"}},
              kSameAndOne,
              kLayouts,
              false}),
    [](const auto& test) { return test.param.model.name; });

}  // namespace
}  // namespace trireme::tests::resume_matrix
