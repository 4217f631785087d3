// ResNet with synchronised norms: parameters and running statistics of every layout are those of one process on the
// whole global batch.
#include <ATen/TensorOperators.h>

#include "core/nn/parameters.h"
#include "models/resnet/kind.h"
#include "tests/parity/buffers.h"
#include "trireme.h"

namespace trireme::tests::buffers {
namespace {

constexpr std::int64_t kImages = 12, kHeight = 40, kColumns = 56;
/// Lower than the other tests': a norm over few values amplifies the rounding of a large step.
constexpr double kResNetLr = 0.02;
constexpr std::int64_t kResNetSteps = 3;

/// Three classes of images of noise.
class Noise : public data::Dataset {
 public:
  std::int64_t size() const override { return kImages; }
  std::optional<data::Sample> get(std::int64_t index, std::int64_t, bool) override {
    const auto whole = shard::Placement::whole("pixels", {3, kHeight, kColumns});
    const auto pixels =
        shard::draw(shard::Init::normal(0, 1), 90 + static_cast<std::uint64_t>(index), whole, at::kDouble, at::kCPU);
    return data::Sample{{{"pixel_values", pixels}}, data::class_label(index % kClassCount)};
  }
};

std::shared_ptr<nn::Model> narrow_resnet(std::int64_t depth) {
  const auto kind = builtin_kinds().models.at("resnet");
  const auto options = kind->default_options();
  auto& o = *static_cast<models::resnet::Options*>(options.get());
  o.depth = depth;
  o.width = 4;
  o.zero_init_residual = false;
  o.sync_batch_norm = true;
  kind->resolve(options.get(), {.inputs = {{"pixel_values", at::kFloat, {3, kHeight, kColumns}}},
                                .targets = {{nn::kLabels, at::kLong, {}}},
                                .classes = kClassCount});
  return kind->make(options.get());
}

/// The same training without the engine, on the whole batch.
Named trained_alone(std::int64_t depth, const Named& start, std::int64_t global) {
  const auto model = narrow_resnet(depth);
  nn::materialize(*model, 1, at::kDouble, at::kCPU);
  Named tensors;
  for (const auto& p : nn::parameters(*model)) tensors[p.name] = p.value;
  for (const auto& b : nn::buffers(*model)) tensors[b.placement.name] = b.value;
  const nn::Context context{.training = true};
  data::LoaderOptions options{.global_batch = global, .micro_batch = global};
  options.seed = kSeed;
  options.shuffle = true;
  options.dtype = at::kDouble;
  data::Loader loader(std::make_shared<Noise>(), options);
  for (auto& [name, value] : tensors) value.data().copy_(start.at(name));
  for (std::int64_t step = 0; step < kResNetSteps; ++step) {
    loader.start_epoch(step / loader.steps_per_epoch(), step % loader.steps_per_epoch());
    const auto batch = loader.next();
    const auto& micro = batch->micro.front();
    const auto logits = model->forward({micro.inputs.front()}, context).front();
    (nn::cross_entropy(logits, micro.targets["labels"]) / static_cast<double>(micro.size())).backward();
    const at::NoGradGuard no_grad;
    for (auto& [name, value] : tensors) {
      if (!value.requires_grad()) continue;
      value.sub_(value.grad() * kResNetLr);
      value.mutable_grad() = at::Tensor();
    }
  }
  return tensors;
}

/// On 4 ranks, 5 samples are shares of 2, 1, 1 and 1, and the last batch of 2 leaves two ranks without any.
class SynchronisedResNet : public UnderPlugins {};

TEST_P(SynchronisedResNet, IsThatOfOneProcess) {
  for (const auto& [depth, global] : {std::pair<std::int64_t, std::int64_t>{18, 9}, {18, 5}, {50, 9}}) {
    SCOPED_TRACE(fmt::format("depth {}, global batch {}", depth, global));
    auto plug = GetParam();
    const auto replace = [&](const std::string& from, const std::string& to) {
      if (const auto at = plug.keys.find(from); at != std::string::npos) plug.keys.replace(at, from.size(), to);
    };
    replace("[5, 3]", depth == 18 ? "[7, 3]" : "[9, 9]");
    replace("size = 2\nmicrobatch_size = 2", "size = 2");
    auto options = options_of(plug);
    options.train.global_batch = global;
    options.train.micro_batch = global;
    options.optimizer.lr = kResNetLr;
    Training training(plug, narrow_resnet(depth), "", options, std::make_shared<Noise>());
    const auto start = training.state();
    training.train_to(kResNetSteps);
    const auto got = training.state();
    for (const auto& [name, want] : trained_alone(depth, start, global))
      EXPECT_LE((got.at(name) - want.detach()).abs().max().item<double>(), 1e-9) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Plugins, SynchronisedResNet, testing::ValuesIn(all_plugs()),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace trireme::tests::buffers
