// A user's training loop, saving and loading by the Booster's calls equal train_step() in every layout.
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "core/checkpoint/formats/safetensors.h"
#include "core/nn/block.h"
#include "core/optim/optimizers.h"
#include "models/registry.h"
#include "tests/parity/sentences.h"

namespace trireme::tests {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kBatch = 8, kSteps = 4;

/// A Llama or a GPT-2, whose logits are sharded over the tensor-parallel ranks.
class Decoder {
 public:
  explicit Decoder(const std::string& model = "llama")
      : kind_(models::all_models().at(model)), options_(kind_->default_options()) {
    std::vector<std::pair<std::string, FieldValue>> values{
        {"hidden_size", std::int64_t{16}}, {"num_layers", std::int64_t{3}},
        {"num_heads", std::int64_t{4}},    {"vocab_size", kTokenIds},
        {"max_positions", kLongest},       {"initializer_range", 0.4},
        {"attention_dropout", 0.0},        {"intermediate_size", std::int64_t{10}}};
    if (model == "llama") values.emplace_back("num_key_value_heads", std::int64_t{2});
    for (const auto& [key, value] : values) kind_->fields().find(key)->set(options_.get(), value);
    kind_->resolve(options_.get(), data()->spec());
  }
  [[nodiscard]] std::shared_ptr<nn::Model> make() const { return kind_->make(options_.get()); }
  [[nodiscard]] BoostInputs inputs() const {
    BoostInputs inputs{.source = {.model = make()}, .task = task_for("causal_lm"), .data = data()};
    inputs.source.policy = kind_->policy(options_.get());
    return inputs;
  }
  static std::shared_ptr<data::Dataset> data() { return std::make_shared<Sentences>("causal_lm"); }

 private:
  std::shared_ptr<const nn::ModelKind> kind_;
  std::shared_ptr<void> options_;
};

/// A run in a layout, and what it computed so far.
struct InLayout {
  Booster booster;
  Boosted boosted;

  InLayout(const TaskLayout& layout, const Decoder& decoder)
      : booster(world(), plugin_of(layout), options()), boosted(booster.boost(decoder.inputs())) {}
  static std::unique_ptr<Plugin> plugin_of(const TaskLayout& layout) {
    Case c;
    c.plugin_name = layout.plugin;
    c.plugin = layout.keys;
    return make_plugin(c);
  }
  static BoostOptions options() {
    BoostOptions out{.train = {.epochs = kSteps, .global_batch = kBatch, .micro_batch = 2, .precision = "fp64"},
                     .optimizer = {.lr = 0.01},
                     .seed = kSeed};
    // The gradient of a key's bias is nothing but rounding, to which Adam's usual eps would give the size of the
    // others; GPT-2 has it in one tensor with them.
    out.optimizer.method = optim::hybrid_adam({.eps = 1e-4});
    return out;
  }
  data::StepBatch batch(std::int64_t step) { return batch_of(boosted, step); }
  static data::StepBatch batch_of(Boosted& run, std::int64_t step) {
    const auto steps = run.loader->steps_per_epoch();
    run.loader->start_epoch(step / steps, step % steps);
    return *run.loader->next();
  }
  Named weights() { return weights_of(boosted); }
  static Named weights_of(Boosted& run) { return gathered(run.model->weights(), run.booster->mesh()); }
  void update() {
    boosted.optimizer->step(boosted.lr_schedule->lr(boosted.step++));
    boosted.optimizer->zero_grad();
  }
};

/// The outputs for a microbatch, computed by the whole model on this rank's CPU.
at::Tensor outputs_by_hand(const Decoder& decoder, const Named& weights, const data::Batch& micro, std::int64_t step) {
  const at::NoGradGuard no_grad;
  const auto model = decoder.make();
  nn::materialize(*model, kSeed, at::kDouble, at::kCPU);
  for (auto& parameter : nn::parameters(*model)) parameter.value.copy_(weights.at(parameter.name));
  Sentences sentences("causal_lm");
  std::vector<data::Sample> samples;
  std::vector<std::int64_t> indices;
  for (std::int64_t i = 0; i < micro.sample_ids.size(0); ++i) {
    indices.push_back(micro.sample_ids[i].item<std::int64_t>());
    samples.push_back(*sentences.get(indices.back(), 0, true));
  }
  const auto inputs = sentences.collate(std::move(samples), indices).inputs;
  const nn::Context context{.training = true,
                            .seed = kSeed,
                            .step = step,
                            .sample_ids = micro.sample_ids.cpu(),
                            .tokens = inputs["input_ids"].size(1),
                            .side = model->side_inputs(inputs)};
  return model->forward(model->first_inputs(inputs), context).front();
}

class ParityBooster : public testing::TestWithParam<TaskLayout> {
 protected:
  void SetUp() override {
    if (world().size() % GetParam().inner != 0) GTEST_SKIP() << "needs more ranks";
  }
  /// The weights after kSteps calls of train_step().
  Named expected(const Decoder& of) {
    InLayout run(GetParam(), of);
    losses.clear();
    for (std::int64_t step = 0; step < kSteps; ++step)
      losses.push_back(run.boosted.train_step(run.batch(step)).loss.item<double>());
    return run.weights();
  }
  static void expect_equal(const Named& got, const Named& expected) {
    const auto [worst, name] = distance(got, expected, kBound);
    EXPECT_LE(worst, 1) << "weight " << name;
  }
  Decoder decoder;
  std::vector<double> losses;
};

TEST_P(ParityBooster, ExecutesASchedule) {
  const auto wanted = expected(decoder);
  InLayout run(GetParam(), decoder);
  for (std::int64_t step = 0; step < kSteps; ++step) {
    const auto batch = run.batch(step);
    const auto weights = run.weights();
    const auto [loss, outputs] = run.boosted.execute_pipeline(batch, {.return_outputs = true});
    EXPECT_NEAR(loss.item<double>(), losses[static_cast<std::size_t>(step)], kBound);
    const auto with_outputs =
        at::full({}, static_cast<std::int64_t>(outputs.size()), at::TensorOptions(at::kLong).device(world().device()));
    world().group().all_reduce(with_outputs);
    EXPECT_EQ(with_outputs.item<std::int64_t>(), world().size() / run.booster.mesh().size("pp"));
    std::int64_t row = 0;
    for (const auto& micro : batch.micro) {
      if (outputs.empty() || micro.size() == 0) continue;
      const auto by_hand = outputs_by_hand(decoder, weights, micro, step);
      const auto got = outputs.front().narrow(0, row, micro.size()).narrow(1, 0, by_hand.size(1)).cpu();
      ASSERT_EQ(got.sizes(), by_hand.sizes());
      EXPECT_LE((got - by_hand).abs().max().item<double>(), kBound);
      row += micro.size();
    }
    if (!outputs.empty()) {
      EXPECT_EQ(outputs.front().size(0), row);
    }
    run.update();
  }
  expect_equal(run.weights(), wanted);
}

TEST_P(ParityBooster, RunsMicrobatchesOneByOne) {
  const auto wanted = expected(decoder);
  InLayout run(GetParam(), decoder);
  for (std::int64_t step = 0; step < kSteps; ++step) {
    const auto batch = run.batch(step);
    if (run.boosted.model->is_pipeline()) {
      EXPECT_THROW(run.boosted.backward(at::Tensor(), batch.micro.front()), Error);
      return;
    }
    for (std::size_t i = 0; i < batch.micro.size(); ++i) {
      const auto local = i + 1 < batch.micro.size() && !run.boosted.model->reduces_each_microbatch()
                             ? run.boosted.no_sync()
                             : ScopeGuard({});
      const auto loss = run.boosted.criterion(run.boosted.model->forward(batch.micro[i]), batch.micro[i]);
      run.boosted.backward(loss, batch.micro[i]);
    }
    run.update();
  }
  expect_equal(run.weights(), wanted);
}

// Steps of the two alternate, and the second one is boosted after the first has begun.
TEST_P(ParityBooster, ATeacherAndAStudentDoNotSeeEachOther) {
  const Decoder other("gpt2");
  const auto of_teacher = expected(decoder), of_student = expected(other);
  InLayout run(GetParam(), decoder);
  run.boosted.train_step(run.batch(0));
  auto student = run.booster.boost(other.inputs());
  for (std::int64_t step = 0; step < kSteps; ++step) {
    student.train_step(InLayout::batch_of(student, step));
    if (step > 0) run.boosted.train_step(run.batch(step));
  }
  expect_equal(run.weights(), of_teacher);
  expect_equal(InLayout::weights_of(student), of_student);
}

/// Expects that DIR/model.safetensors holds these weights, those of a GPT-2's Conv1D layers transposed.
void expect_layout_of_hugging_face(const std::string& dir, const Named& weights) {
  const checkpoint::SafeTensors file(dir + "/model.safetensors");
  for (const auto& [name, value] : weights) {
    const bool transposed = value.dim() == 2 && name.starts_with("transformer.h.");
    EXPECT_TRUE(at::equal(file.read(name), transposed ? value.t() : value)) << name;
  }
}

/// A run that one layout saved after two steps continues in another layout.
TEST_P(ParityBooster, SavesAndLoadsModelAndOptimizer) {
  const auto dir = shared_path("booster");
  const std::string optimizer = dir + "/optimizer.safetensors";
  const TaskLayout plain{"torch_ddp", "torch_ddp", ""};
  for (const auto* model : {"llama", "gpt2"}) {
    SCOPED_TRACE(model);
    const Decoder of(model);
    const auto wanted = expected(of);
    for (const auto& [from, to] : {std::pair{GetParam(), plain}, std::pair{plain, GetParam()}}) {
      {
        InLayout run(from, of);
        for (std::int64_t step = 0; step < 2; ++step) run.boosted.train_step(run.batch(step));
        run.boosted.save_model(dir, {{"note.txt", "saved"}});
        run.boosted.save_optimizer(optimizer);
        const auto weights = run.weights();
        world().group().barrier();
        expect_layout_of_hugging_face(dir, weights);
      }
      InLayout run(to, of);
      run.boosted.load_model(dir);
      run.boosted.load_optimizer(optimizer);
      for (run.boosted.step = 2; run.boosted.step < kSteps;) run.boosted.train_step(run.batch(run.boosted.step));
      expect_equal(run.weights(), wanted);
      world().group().barrier();
    }
  }
  if (world().rank() == 0) {
    EXPECT_TRUE(fs::exists(dir + "/note.txt"));
    fs::remove_all(dir);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, ParityBooster,
    testing::Values(TaskLayout{"torch_ddp", "torch_ddp", ""},
                    TaskLayout{"low_level_zero", "low_level_zero", "stage = 2"}, TaskLayout{"gemini", "gemini", ""},
                    TaskLayout{"tp2", "hybrid_parallel", "tp_size = 2\nzero_stage = 0", 2},
                    TaskLayout{"pp2", "hybrid_parallel", "pp_size = 2\nmicrobatch_size = 2", 2},
                    TaskLayout{"tp2_pp2_zbv", "hybrid_parallel",
                               "tp_size = 2\npp_size = 2\nmicrobatch_size = 1\npp_style = \"zbv\"", 4},
                    TaskLayout{"sp2_ring_attn", "hybrid_parallel",
                               "sp_size = 2\nenable_sequence_parallelism = true\nsequence_parallelism_mode = "
                               "\"ring_attn\"",
                               2}),
    [](const auto& value) { return value.param.name; });

}  // namespace
}  // namespace trireme::tests
