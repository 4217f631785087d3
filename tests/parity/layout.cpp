#include "tests/parity/layout.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/stack.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>

#include "core/base/memory.h"
#include "core/booster/plugin_loader.h"
#include "core/checkpoint/formats/safetensors.h"
#include "core/comm/host_values.h"
#include "core/nn/block.h"
#include "core/shard/assembly.h"
#include "core/train/evaluate.h"
#include "models/registry.h"
#include "tasks/tasks.h"

namespace trireme::tests {

std::string shared_path(const std::string& name) {
  const auto own = std::filesystem::temp_directory_path() / fmt::format("trireme-{}-{}", getpid(), name);
  return comm::broadcast_text(world().group(), own.string());
}

std::unique_ptr<Plugin> make_plugin(const Case& c) {
  auto plugin = load_plugin(c.plugin_name);
  const auto root = config::parse_text(fmt::format("[plugin.{}]\n{}", c.plugin_name, c.plugin), c.name);
  plugin->configure(root.table("plugin")->table(c.plugin_name));
  return plugin;
}

/// The policy of the case's model; a ViT inside another model has other layer names.
static nn::Policy make_policy(const Case& c) {
  namespace role = nn::role;
  if (c.adapted) return {};
  if (c.vocabulary != Case::Vocabulary::none) {
    const bool tied = c.vocabulary == Case::Vocabulary::tied;
    nn::Policy policy{.tensor = {{"mix*.attention", role::attention},
                                 {"mix*.inner", role::sharded_dropout},
                                 {"mix*.dense", role::row_parallel},
                                 {"words", tied ? role::tied_embedding : role::vocab_parallel_embedding}},
                      .sequence = {{"first.dropout", role::scatter_tokens}, {"last.first", role::gather_tokens}}};
    if (!tied) policy.tensor.push_back({"head", role::classifier_head});
    return policy;
  }
  auto policy = models::all_models().at("vit")->policy(nullptr);
  if (c.unused_block || c.rare || c.twice || c.balance) {
    for (auto& row : policy.tensor) row.layer = "inner." + row.layer;
    for (auto& row : policy.sequence) row.layer = "inner." + row.layer;
  }
  if (c.twice && c.sequence) policy.sequence.push_back({"shared.linear", role::token_wise});
  if (c.twice && !c.sequence) policy.tensor.push_back({"shared.linear", role::column_parallel_gather_output});
  if (c.rare) policy.sequence.push_back({"rare.linear", role::token_wise});
  if (c.balance) policy.sequence.push_back({"balance.linear", role::token_wise});
  if (c.unused_block) policy.sequence.push_back({"bystander.linear", role::whole});
  return policy;
}

static std::shared_ptr<const Task> make_task(const Case& c, data::Dataset& data) {
  auto spec = data.spec();
  if (c.vocabulary != Case::Vocabulary::none) spec.classes = kVocabulary;
  return tasks::classification({.data = std::move(spec), .label_smoothing = c.smoothing, .topk = 2});
}

/// Writes the case's first weights, unless the file has them already. Returns its path.
static const std::string& write_start(const Case& c) {
  static struct File {
    std::string path = fmt::format("{}/parity-{}.safetensors", testing::TempDir(), getpid()), numbers;
    ~File() {
      std::error_code gone_already;
      std::filesystem::remove(path, gone_already);
    }
  } file;
  if (const auto numbers = numbers_of(c); file.numbers != numbers) {
    std::vector<checkpoint::NamedValue> values;
    for (const auto& [name, value] : start(c)) values.push_back({name, value});
    checkpoint::write_safetensors(file.path, values);
    file.numbers = numbers;
  }
  return file.path;
}

BoostInputs make_inputs(const Case& c) {
  BoostInputs inputs;
  inputs.source.model = make_model(c);
  inputs.source.make = [c] { return make_model(c); };
  inputs.source.policy = make_policy(c);
  inputs.source.weights = write_start(c);
  inputs.data = make_data(c);
  inputs.task = make_task(c, *inputs.data);
  return inputs;
}

bool is_tried(std::int64_t ranks) {
  const auto size = detect_launch().size;  // the tests are listed before there is a world
  return size % ranks == 0 && (ranks == 1 || size <= 2 * ranks);
}

std::vector<Case> tried(std::vector<Case> cases) {
  std::erase_if(cases, [](const Case& c) { return !is_tried(c.tp * c.pp); });
  const auto skip = [] { GTEST_SKIP() << "no layout for this number of ranks"; };
  if (cases.empty() && testing::UnitTest::GetInstance()->current_test_info() != nullptr) skip();
  return cases;
}

std::vector<Case> cross(const std::string& plugin, const std::string& usual, const std::vector<Layout>& layouts,
                        const std::vector<Case>& cases) {
  std::vector<Case> out;
  for (const auto& layout : layouts)
    for (auto c : cases) {
      c.name = fmt::format("{}_{}", layout.name, c.name);
      c.plugin_name = plugin;
      c.plugin = fmt::format("{}\n{}", layout.keys, c.plugin.empty() ? usual : c.plugin);
      out.push_back(std::move(c));
    }
  return out;
}

Named gathered(const std::vector<shard::Slice>& slices, comm::Mesh& mesh) {
  const memory::OfHost not_the_run;
  const shard::Assembly assembly(slices, mesh);
  auto list = nlohmann::json::array();
  std::vector<at::Tensor> bytes{at::empty({0}, at::kByte)};
  for (std::size_t i = 0; i < assembly.entries().size(); ++i) {
    const auto& [name, shape, dtype, transposed] = assembly.entries()[i];
    if (const auto full = assembly.collect(i); full.defined()) bytes.push_back(full.reshape(-1).view(at::kByte));
    list.push_back({name, shape, static_cast<int>(dtype)});
  }
  // Rank 0 has all tensors and broadcasts them together, since ranks that share a processor wait long for each message.
  list = nlohmann::json::parse(comm::broadcast_text(world().group(), list.dump()));
  Named out;
  std::int64_t size = 0;
  for (const auto& entry : list) {
    const at::Tensor& full = out[entry.at(0)] =
        at::empty(entry.at(1).get<std::vector<std::int64_t>>(), static_cast<at::ScalarType>(entry.at(2).get<int>()));
    size += static_cast<std::int64_t>(full.nbytes());
  }
  const auto sent = (world().rank() == 0 ? at::cat(bytes) : at::empty({size}, at::kByte)).to(world().device());
  world().group().broadcast(sent, 0);
  auto rest = sent.cpu();
  for (const auto& entry : list) {
    auto full = out.at(entry.at(0)).reshape(-1).view(at::kByte);
    full.copy_(rest.narrow(0, 0, full.numel()));
    rest = rest.narrow(0, full.numel(), rest.numel() - full.numel());
  }
  return out;
}

std::uint64_t sent(const char* axis, const char* op) {
  const auto totals = world().comm_stats().totals();
  const auto found = totals.find({axis, op});
  return found == totals.end() ? 0 : found->second.payload_elements;
}

/// Elements of gradients that this rank has reduced.
static std::uint64_t reduced() { return sent("dp", "all_reduce") + sent("dp", "reduce_scatter"); }

/// Runs the microbatches of a pipeline's step in two calls.
static void run_in_two(const Case& c, Boosted& run, const data::StepBatch& batch) {
  auto first = batch, second = batch;
  const auto half = static_cast<std::ptrdiff_t>(batch.micro.size() / 2);
  first.micro.erase(first.micro.begin() + half, first.micro.end());
  second.micro.erase(second.micro.begin(), second.micro.begin() + half);
  if (half > 0) {
    const auto local = c.reduce_each ? ScopeGuard({}) : run.model->no_sync();
    const auto before = reduced();
    run.forward_backward(first);
    if (!c.reduce_each) {
      EXPECT_EQ(reduced(), before);
    }
  }
  run.forward_backward(second);
}

Trace by_pieces(const Case& c) {
  Booster booster(world(), make_plugin(c), make_options(c));
  auto run = booster.boost(make_inputs(c));
  Trace trace;
  for_steps(c, run, [&](const data::StepBatch& batch) {
    run.model->train(true);
    if (run.model->is_pipeline()) run_in_two(c, run, batch);
    for (std::size_t i = 0; i < batch.micro.size() && !run.model->is_pipeline(); ++i) {
      const bool reduce = i + 1 == batch.micro.size() || c.reduce_each;
      const auto local = reduce ? ScopeGuard({}) : run.model->no_sync();
      run.optimizer->backward(run.criterion(run.model->forward(batch.micro[i]), batch.micro[i]),
                              batch.micro[i].global_weight);
    }
    trace.gradients.push_back(gathered(run.model->gradients(), booster.mesh()));
    trace.norms.push_back(run.optimizer->step(run.lr_schedule->lr(run.step++)).grad_norm.item<double>());
    run.optimizer->zero_grad();
  });
  trace.weights = gathered(run.model->weights(), booster.mesh());
  return trace;
}

Trace by_train_step(const Case& c) {
  Booster booster(world(), make_plugin(c), make_options(c));
  auto run = booster.boost(make_inputs(c));
  Trace trace;
  for_steps(c, run,
            [&](const data::StepBatch& batch) { trace.losses.push_back(run.train_step(batch).loss.item<double>()); });
  trace.weights = gathered(run.model->weights(), booster.mesh());
  return trace;
}

Held one_step(const Case& c) {
  Booster booster(world(), make_plugin(c), make_options(c));
  auto run = booster.boost(make_inputs(c));
  run.loader->start_epoch(0);
  const auto reduced = sent("dp", "reduce_scatter"), gathered = sent("dp", "all_gather");
  run.train_step(*run.loader->next());
  return {run.model->report().parameter_bytes, run.optimizer->report().gradient_bytes,
          run.optimizer->report().state_bytes, sent("dp", "reduce_scatter") - reduced,
          sent("dp", "all_gather") - gathered, run.model->report().peak_gathered_bytes};
}

void expect_same_as_one_process(const Case& c) {
  if (c.fused_attention && world().device().is_cuda()) return expect_near_float64(c, {"bf16", 2e-2, 5e-2});
  expect_same(c, reference(c));
}

void expect_same(const Case& c, const Trace& expected) {
  const auto got = by_pieces(c);
  for (std::size_t step = 0; step < expected.gradients.size(); ++step) {
    const auto [worst, name] = distance(got.gradients.at(step), expected.gradients[step], kBound);
    EXPECT_LE(worst, 1) << "gradient of " << name << " in step " << step + 1;
    EXPECT_NEAR(got.norms.at(step), expected.norms[step], kBound * expected.norms[step]);
  }
  const auto check_weights = [&](const Trace& trace, const char* way) {
    const auto [worst, name] = distance(trace.weights, expected.weights, kBound);
    EXPECT_LE(worst, 1) << "weight " << name << " after the last step, " << way;
    for (const auto& [weight, value] : trace.weights)
      if (c.lora && expected.gradients.front().count(weight) == 0) {
        EXPECT_TRUE(at::equal(value, expected.weights.at(weight))) << "frozen " << weight << " has changed, " << way;
      }
  };
  check_weights(got, "by pieces");
  const auto stepped = by_train_step(c);
  check_weights(stepped, "by train_step");
  for (std::size_t step = 0; step < expected.losses.size(); ++step)
    EXPECT_NEAR(stepped.losses.at(step), expected.losses[step], kBound * expected.losses[step]) << "step " << step + 1;
}

void expect_not_finite_is_skipped(Case c) {
  c.samples = 19;  // the last rank, which spoils steps 1 and 3, has samples in these
  c.steps = 5;
  Booster booster(world(), make_plugin(c), make_options(c));
  auto run = booster.boost(make_inputs(c));
  double spoil = 1;  // a factor of the loss: NaN, or so large that the norm of the gradients overflows
  run.criterion = [&spoil, &run, plain = run.criterion](const nn::Tensors& outputs, const data::Batch& batch) {
    auto loss = plain(outputs, batch);
    const bool has_loss = world().rank() == world().size() - 1 || run.model->is_pipeline();
    if (spoil != 1 && has_loss) loss = loss * spoil;
    return loss;
  };
  const auto held = [&] {
    auto slices = run.model->weights();
    for (auto& slice : run.optimizer->state()) slices.push_back(std::move(slice));
    std::vector<std::pair<std::string, at::Tensor>> out;
    for (const auto& slice : slices) out.emplace_back(slice.placement.name, slice.value.detach().clone());
    return out;
  };
  auto before = held();
  for_steps(c, run, [&](const data::StepBatch& batch) {
    spoil = run.step == 1 ? std::numeric_limits<double>::quiet_NaN() : run.step == 3 ? 1e200 : 1;
    const bool good = spoil == 1;
    const auto norm = run.train_step(batch).result.grad_norm.item<double>();
    EXPECT_EQ(std::isfinite(norm), good) << c.name;
    auto after = held();
    bool changed = false;
    for (std::size_t i = 0; i < after.size(); ++i) {
      const bool same = at::equal(before[i].second, after[i].second);
      changed = changed || !same;
      EXPECT_TRUE(same || good) << c.name << ": " << after[i].first << " changed";
    }
    EXPECT_TRUE(changed || !good) << c.name << ": step " << run.step << " was not taken";
    before = std::move(after);
  });
  EXPECT_GT(run.step, 4);
}

void expect_evaluation_of_torch_ddp(const Case& c) {
  const auto score = [&](const Case& layout, comm::World& ranks) {
    Booster booster(ranks, make_plugin(layout), make_options(layout));
    auto run = booster.boost(make_inputs(layout));
    return train::evaluate(run, *run.evaluation_loader(make_data(layout), 3));
  };
  auto plain = c;
  plain.plugin_name = "torch_ddp";
  plain.plugin = "";
  const auto expected = score(plain, world()), got = score(c, world());
  EXPECT_EQ(got.samples, c.samples);
  EXPECT_NEAR(got.loss, expected.loss, kBound * expected.loss) << c.name;
  ASSERT_EQ(got.metrics.size(), expected.metrics.size());
  for (const auto& [metric, value] : expected.metrics)
    EXPECT_NEAR(got.value(metric.name), value, kBound * value) << metric.name;
}

void expect_near_float64(Case exact, const Rounding& bound) {
  exact.samples = 19;
  exact.steps = 3;
  auto expected = reference(exact);
  auto c = exact;
  c.precision = bound.precision;
  auto got = by_train_step(c);
  // The gradient of a key's bias is zero but for rounding, which Adam scales up to whole steps.
  for (auto* weights : {&expected.weights, &got.weights})
    std::erase_if(*weights, [](const auto& item) { return item.first.ends_with("key.bias"); });
  for (std::size_t step = 0; step < expected.losses.size(); ++step)
    EXPECT_NEAR(got.losses.at(step), expected.losses[step], bound.loss * expected.losses[step]) << step + 1;
  for (auto& [name, value] : got.weights) {
    EXPECT_EQ(value.scalar_type(), at::kFloat) << name;
    value = value.to(at::kDouble);
  }
  const auto [worst, name] = distance(got.weights, expected.weights, bound.weights);
  EXPECT_LE(worst, 1) << "weight " << name;
}

}  // namespace trireme::tests
