// Contract C1 for recipes: augmentations, mixed samples, class weights, drop path, optimizers, parameter groups, the
// average of the weights, samples that other ranks read and unreadable ones give in every layout what one process gives
// on the whole global batch, by the formulas.
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/base/random.h"
#include "core/nn/parameters.h"
#include "core/optim/optimizers.h"
#include "datasets/image_dataset.h"
#include "models/vit/kind.h"
#include "tests/parity/layout.h"
#include "trireme.h"

namespace trireme::tests {
namespace {

constexpr std::int64_t kImages = 11, kGlobalBatch = 6, kTrainSteps = 4, kLabels = 5, kSide = 12;

/// Images of noise, larger than the model's.
class NoiseSource : public datasets::PixelSource {
 public:
  explicit NoiseSource(std::set<std::int64_t> unreadable) : unreadable_(std::move(unreadable)) {}
  [[nodiscard]] std::int64_t size() const override { return kImages; }
  [[nodiscard]] std::int64_t label(std::int64_t index) const override { return index * 3 % kLabels; }
  [[nodiscard]] datasets::DecodedImage load(std::int64_t index) const override {
    if (unreadable_.contains(index)) throw DataError("unreadable");
    auto image = at::empty({16, 20, 3}, at::kByte);
    auto* bytes = image.mutable_data_ptr<std::uint8_t>();
    const auto key = random::mix(5, static_cast<std::uint64_t>(index));
    for (std::int64_t i = 0; i < image.numel(); ++i)
      bytes[i] = static_cast<std::uint8_t>(256 * random::uniform(key, static_cast<std::uint64_t>(i)));
    return {image};
  }

 private:
  std::set<std::int64_t> unreadable_;
};

/// A recipe: what it changes, and one step of its optimizer by the formulas.
struct Recipe {
  std::string name;
  datasets::TransformOptions transform{};
  optim::OptimizerOptions optimizer{};
  double drop_path = 0, smoothing = 0, average = 0;
  std::vector<double> class_weights{};
  data::LoadingOptions loading{};
  std::set<std::int64_t> unreadable{};
};
void PrintTo(const Recipe& recipe, std::ostream* out) { *out << recipe.name; }

/// The gradient of these parameters is zero, of which Lion and LAMB would take the rounding.
constexpr const char* kNoGradient = "attention.key.bias";

optim::OptimizerOptions with(optim::OptimizerFactory method, double lr, double decay = 0) {
  optim::OptimizerOptions options;
  options.lr = lr;
  options.weight_decay = decay;
  if (decay > 0) options.no_decay = {"bias", "layernorm"};
  options.freeze = {kNoGradient};
  options.method = std::move(method);
  return options;
}

const auto kSgd = with(optim::sgd({.momentum = 0.9}), 0.05);

std::vector<Recipe> recipes() {
  auto grouped = with(optim::sgd({.momentum = 0.5}), 0.05, 0.1);
  grouped.groups = {{.parameters = {"classifier"}, .lr_scale = 10, .weight_decay = 0.3},
                    {.parameters = {"layer.0", "embeddings"}, .lr_scale = 0.1}};
  return {
      {.name = "augmented",
       .transform = {.flip = true, .crop = true, .crop_low = 0.3, .rand_augment = 2, .random_erasing = 0.5},
       .optimizer = kSgd},
      {.name = "mixup", .transform = {.flip = true, .mix = {.mixup = 0.8}}, .optimizer = kSgd, .smoothing = 0.1},
      {.name = "cutmix_and_mixup",
       .transform = {.mix = {.mixup = 0.4, .cutmix = 1}},
       .optimizer = kSgd,
       .class_weights = {1, 0.5, 2, 3, 0.1}},
      {.name = "class_weights", .optimizer = kSgd, .smoothing = 0.2, .class_weights = {1, 0.5, 2, 3, 0}},
      {.name = "drop_path", .optimizer = kSgd, .drop_path = 0.5},
      {.name = "average", .optimizer = kSgd, .average = 0.7},
      {.name = "groups", .optimizer = grouped},
      {.name = "lion", .optimizer = with(optim::lion(), 0.003, 0.1)},
      {.name = "lamb", .optimizer = with(optim::lamb(), 0.02, 0.1)},
      {.name = "shard_data",
       .transform = {.flip = true, .crop = true, .mix = {.mixup = 0.4, .cutmix = 1}},
       .optimizer = kSgd,
       .loading = {.shard_data = true}},
      {.name = "dispatch", .transform = {.random_erasing = 0.5}, .optimizer = kSgd, .loading = {.dispatch = true}},
      {.name = "skip",
       .transform = {.flip = true, .mix = {.mixup = 0.4}},
       .optimizer = kSgd,
       .drop_path = 0.5,  // its masks depend on the samples' ids
       .loading = {.on_bad_sample = "skip"},
       .unreadable = {2, 5, 6}},
      {.name = "skip_shard_data",
       .optimizer = kSgd,
       .loading = {.on_bad_sample = "skip", .shard_data = true},
       .unreadable = {0, 10}},
      {.name = "lars", .optimizer = with(optim::lars({.trust_coefficient = 0.02}), 0.5, 0.1)},
  };
}

std::shared_ptr<data::Dataset> images_of(const Recipe& recipe) {
  auto transform = recipe.transform;
  transform.size = kSide;
  return std::make_shared<datasets::ImageDataset>(std::make_shared<NoiseSource>(recipe.unreadable), transform, kSeed,
                                                  std::make_shared<datasets::CacheBudget>(1 << 20),
                                                  recipe.loading.on_bad_sample == "skip", Log(1));
}

std::shared_ptr<nn::Model> vit_of(const Recipe& recipe) {
  const auto kind = builtin_kinds().models.at("vit");
  const auto options = kind->default_options();
  auto& o = *static_cast<models::vit::Options*>(options.get());
  o.hidden_size = 18;
  o.num_layers = 3;
  o.num_heads = 3;
  o.intermediate_size = 24;
  o.patch_size = 4;
  o.initializer_range = 0.3;
  o.drop_path = recipe.drop_path;
  kind->resolve(options.get(), {.inputs = {{"pixel_values", at::kFloat, {3, kSide, kSide}}},
                                .targets = {{nn::kLabels, at::kLong, {}}},
                                .classes = kLabels});
  return kind->make(options.get());
}

tasks::TaskOptions task_options(const Recipe& recipe, data::Dataset& data) {
  tasks::TaskOptions options{
      .data = data.spec(), .label_smoothing = recipe.smoothing, .class_weights = recipe.class_weights};
  options.data.classes = kLabels;
  return options;
}

// --- The formulas.

/// The weighted mean of the cross-entropies to mixed, smoothed targets.
at::Tensor loss_by_hand(const Recipe& recipe, const at::Tensor& logits, const data::Batch& batch) {
  const auto log_p = at::log_softmax(logits, 1);
  auto sum = logits.sum() * 0;
  double weight = 0;
  const auto class_weight = [&](std::int64_t label) {
    return recipe.class_weights.empty() ? 1 : recipe.class_weights[static_cast<std::size_t>(label)];
  };
  for (std::int64_t i = 0; i < logits.size(0); ++i) {
    std::vector<std::pair<std::int64_t, double>> target{{batch.targets[nn::kLabels][i].item<std::int64_t>(), 1.0}};
    if (const auto* mixed = batch.targets.find(nn::kMixedLabels)) {
      target[0].second = batch.targets[nn::kLabelShares][i].item<double>();
      target.emplace_back((*mixed)[i].item<std::int64_t>(), 1 - target[0].second);
    }
    for (const auto& [label, share] : target) {
      sum = sum - (1 - recipe.smoothing) * share * class_weight(label) * log_p[i][label];
      weight += share * class_weight(label);
      for (std::int64_t c = 0; c < kLabels; ++c)
        sum = sum - recipe.smoothing / kLabels * share * class_weight(c) * log_p[i][c];
    }
  }
  return sum / weight;
}

/// State of one parameter.
struct Slots {
  at::Tensor first, second;
};

struct Hyper {
  double lr, decay;
};

Hyper hyper_of(const Recipe& recipe, const std::string& name) {
  const auto has = [&](const char* part) { return name.find(part) != std::string::npos; };
  const auto& o = recipe.optimizer;
  Hyper hyper{o.lr, o.weight_decay};
  if (recipe.name == "groups") {
    if (has("classifier"))
      hyper = {o.lr * 10, 0.3};
    else if (has("layer.0") || has("embeddings"))
      hyper.lr = o.lr * 0.1;
  }
  if (has("bias") || has("layernorm")) hyper.decay = 0;
  return hyper;
}

void step_by_hand(const Recipe& recipe, const std::string& name, at::Tensor value, const at::Tensor& g, Slots& state,
                  std::int64_t step) {
  const auto [lr, decay] = hyper_of(recipe, name);
  if (!state.first.defined()) state = {at::zeros_like(g), at::zeros_like(g)};
  const auto norm = [](const at::Tensor& of) { return of.norm().item<double>(); };
  auto& [m, v] = state;
  if (recipe.name == "lion") {
    value.mul_(1 - lr * decay).sub_((m * 0.9 + g * 0.1).sign(), lr);
    m = m * 0.99 + g * 0.01;
  } else if (recipe.name == "lamb") {
    m = m * 0.9 + g * 0.1;
    v = v * 0.999 + g * g * 0.001;
    const double n = static_cast<double>(step);
    const auto u = m / (1 - std::pow(0.9, n)) / ((v / (1 - std::pow(0.999, n))).sqrt() + 1e-6) + decay * value;
    const bool adapts = decay > 0 && norm(value) > 0 && norm(u) > 0;
    value.sub_(u * (lr * (adapts ? norm(value) / norm(u) : 1)));
  } else if (recipe.name == "lars") {
    const bool adapts = decay > 0 && norm(value) > 0 && norm(g) > 0;
    const double trust = adapts ? 0.02 * norm(value) / (norm(g) + decay * norm(value) + 1e-8) : 1;
    m = m * 0.9 + trust * (g + decay * value);
    value.sub_(m, lr);
  } else {
    m = m * (recipe.name == "groups" ? 0.5 : 0.9) + g + decay * value;
    value.sub_(m, lr);
  }
}

struct TrainedAlone {
  Named weights, average;
  std::vector<double> losses;
};

TrainedAlone train_alone(const Recipe& recipe, const Named& start) {
  const auto model = vit_of(recipe);
  nn::materialize(*model, 1, at::kDouble, at::kCPU);
  TrainedAlone out;
  for (const auto& p : nn::parameters(*model)) {
    out.weights[p.name] = p.value;
    p.value.data().copy_(start.at(p.name));
    out.average[p.name] = p.value.detach().clone();
  }
  data::LoaderOptions options{.global_batch = kGlobalBatch, .micro_batch = kGlobalBatch};
  options.seed = kSeed;
  options.shuffle = options.augment = true;
  options.dtype = at::kDouble;
  data::Loader loader(images_of(recipe), options);
  std::map<std::string, Slots> state;
  for (std::int64_t step = 0; step < kTrainSteps; ++step) {
    loader.start_epoch(step / loader.steps_per_epoch(), step % loader.steps_per_epoch());
    const auto batch = loader.next()->micro.front();
    const nn::Tensors inputs{batch.inputs.front()};
    const nn::Context context{
        .training = true, .seed = kSeed, .step = step, .sample_ids = batch.sample_ids, .tokens = model->tokens(inputs)};
    const auto loss = loss_by_hand(recipe, model->forward(inputs, context).front(), batch);
    loss.backward();
    out.losses.push_back(loss.item<double>());
    const at::NoGradGuard no_grad;
    const double n = static_cast<double>(step + 1), decay = std::min(recipe.average, (1 + n) / (10 + n));
    for (auto& [name, value] : out.weights) {
      if (name.find(kNoGradient) == std::string::npos)
        step_by_hand(recipe, name, value.detach(), value.grad(), state[name], step + 1);
      value.mutable_grad() = at::Tensor();
      auto& average = out.average[name];
      average = decay * average + (1 - decay) * value.detach();
    }
  }
  return out;
}

// --- Under a plugin.

struct RecipeLayout {
  std::string name, plugin, keys;
  int inner = 1;  ///< ranks beside data parallelism
};
void PrintTo(const RecipeLayout& layout, std::ostream* out) { *out << layout.name; }

std::vector<RecipeLayout> recipe_layouts() {
  return {{"torch_ddp", "torch_ddp", ""},
          {"low_level_zero", "low_level_zero", "stage = 2"},
          {"gemini", "gemini", "chunk_config = 300"},
          {"zero3", "hybrid_parallel", "zero_stage = 3"},
          {"tp2", "hybrid_parallel", "tp_size = 2\nzero_stage = 1", 2},
          // Three heads over two ranks and small buckets: the ranks' buckets differ.
          {"tp2_buckets", "hybrid_parallel", "tp_size = 2\nzero_stage = 1\nzero_bucket_size_in_m = 0.0006", 2},
          {"tp2_split_gather", "hybrid_parallel",
           "tp_size = 2\nzero_stage = 0\nenable_sequence_parallelism = true\nsequence_parallelism_mode = "
           "\"split_gather\"",
           2},
          {"pp2_zb_h1", "hybrid_parallel", "pp_size = 2\nmicrobatch_size = 1\npp_style = \"zb_h1\"", 2},
          {"tp2_pp2", "hybrid_parallel", "tp_size = 2\npp_size = 2\nmicrobatch_size = 2", 4}};
}

class Recipes : public testing::TestWithParam<std::tuple<RecipeLayout, Recipe>> {};

TEST_P(Recipes, AreThoseOfOneProcess) {
  const auto& [layout, recipe] = GetParam();
  if (world().size() % layout.inner != 0) GTEST_SKIP() << "needs more ranks";
  Case c;
  c.plugin_name = layout.plugin;
  c.plugin = layout.keys;
  BoostOptions options;
  options.train.global_batch = kGlobalBatch;
  if (layout.keys.find("microbatch_size") == std::string::npos) options.train.micro_batch = 2;
  options.train.precision = "fp64";
  options.train.epochs = kTrainSteps;
  if (recipe.average > 0) options.train.ema_decay = recipe.average;
  options.optimizer = recipe.optimizer;
  options.loading = recipe.loading;
  options.seed = kSeed;
  Booster booster(world(), make_plugin(c), options);
  BoostInputs inputs;
  inputs.source.model = vit_of(recipe);
  inputs.source.policy = builtin_kinds().models.at("vit")->policy(nullptr);
  inputs.data = images_of(recipe);
  inputs.task = tasks::classification(task_options(recipe, *inputs.data));
  auto run = booster.boost(std::move(inputs));
  const auto weights = [&] { return gathered(run.model->state_dict(), booster.mesh()); };
  const auto expected = train_alone(recipe, weights());

  const auto steps = run.loader->steps_per_epoch();
  while (run.step < kTrainSteps) {
    run.loader->start_epoch(run.step / steps, run.step % steps);
    const auto loss = run.train_step(*run.loader->next()).loss.item<double>();
    EXPECT_NEAR(loss, expected.losses.at(static_cast<std::size_t>(run.step - 1)), kBound * loss) << "step " << run.step;
  }
  const auto expect = [](const Named& got, const Named& want, const char* what) {
    const auto [worst, name] = distance(got, want, kBound);
    EXPECT_LE(worst, 1) << what << " " << name;
  };
  expect(weights(), expected.weights, "weight");
  {
    const auto averaged = run.use_average();
    expect(weights(), recipe.average > 0 ? expected.average : expected.weights, "average of");
  }
  expect(weights(), expected.weights, "after the average, weight");
}

INSTANTIATE_TEST_SUITE_P(Layouts, Recipes,
                         testing::Combine(testing::ValuesIn(recipe_layouts()), testing::ValuesIn(recipes())),
                         [](const auto& test) {
                           return std::get<0>(test.param).name + "_" + std::get<1>(test.param).name;
                         });

}  // namespace
}  // namespace trireme::tests
