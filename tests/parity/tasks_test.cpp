// Contract C1 for tasks over samples of varying length: in every layout the loss is the mean over the labels that count
// in the global batch. Batches are padded, ranks and microbatches have very different numbers of labels that count, and
// every block reads the padding mask, in a pipeline too.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

#include "core/nn/block.h"
#include "core/nn/layers/embedding.h"
#include "core/nn/layers/linear.h"
#include "tests/parity/sentences.h"

namespace trireme::tests {
namespace {

constexpr std::int64_t kWidth = 6;

/// x + W2 tanh(W1 (x + mean of the sample's tokens without padding))
class Mix : public nn::Block {
 public:
  Mix()
      : up_(register_module(
            "up", std::make_shared<nn::Linear>(nn::Linear::Options{.in = kWidth, .out = 2 * kWidth, .init_std = 0.4}))),
        down_(register_module("down", std::make_shared<nn::Linear>(
                                          nn::Linear::Options{.in = 2 * kWidth, .out = kWidth, .init_std = 0.4}))) {}
  nn::Tensors forward(nn::Tensors inputs, const nn::Context& context) override {
    const auto& x = inputs[0];
    const auto mask = context.side["attention_mask"].to(x.scalar_type()).unsqueeze(2);
    const auto mean = (x * mask).sum(1, true) / mask.sum(1, true).clamp_min(1);
    return {x + down_->forward(up_->forward(x + mean, context).tanh(), context)};
  }

 private:
  std::shared_ptr<nn::Linear> up_, down_;
};

class Embed : public nn::Block {
 public:
  explicit Embed(std::shared_ptr<nn::Embedding> ids) : ids_(register_module("ids", std::move(ids))) {}
  nn::Tensors forward(nn::Tensors inputs, const nn::Context& context) override {
    return {ids_->forward(inputs[0], context)};
  }

 private:
  std::shared_ptr<nn::Embedding> ids_;
};

/// Scores of every token, by the embedding, or of the sample.
class Scores : public nn::Block {
 public:
  Scores(std::shared_ptr<nn::Embedding> ids, bool tokens)
      : ids_(register_module("ids", std::move(ids))), tokens_(tokens) {}
  nn::Tensors forward(nn::Tensors inputs, const nn::Context& context) override {
    const auto mask = context.side["attention_mask"].to(inputs[0].scalar_type()).unsqueeze(2);
    return {ids_->scores(tokens_ ? inputs[0] : (inputs[0] * mask).sum(1), context, {})};
  }

 private:
  std::shared_ptr<nn::Embedding> ids_;
  bool tokens_;
};

class Tagger : public nn::Model {
 public:
  explicit Tagger(bool tokens) {
    const auto ids =
        register_module("ids", std::make_shared<nn::Embedding>(nn::Embedding::Options{kTokenIds, kWidth, 0.6}));
    add_block(register_module("embed", std::make_shared<Embed>(ids)));
    for (const auto* name : {"mix0", "mix1"}) add_block(register_module(name, std::make_shared<Mix>()));
    add_block(register_module("scores", std::make_shared<Scores>(ids, tokens)));
    finish();
  }
  std::vector<std::string> input_names() const override { return {"input_ids"}; }
  std::vector<std::string> side_input_names() const override { return {"attention_mask"}; }
};

class ParityTasks : public testing::TestWithParam<TaskLayout> {};

TEST_P(ParityTasks, TheLossIsTheMeanOverTheGlobalBatch) {
  if (!GetParam().fits(world().size())) GTEST_SKIP() << "needs another number of ranks";
  const nn::Policy policy{.tensor = {{"ids", nn::role::tied_embedding},
                                     {"mix*.up", nn::role::column_parallel},
                                     {"mix*.down", nn::role::row_parallel}}};
  for (const auto& task : tasks::all_tasks().names()) {
    SCOPED_TRACE(task);
    const auto make = [&] { return std::make_shared<Tagger>(/*tokens=*/task.ends_with("_lm")); };
    expect_same_on_sentences(GetParam(), make, policy, task, train_by_hand(make, task));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, ParityTasks,
    testing::Values(TaskLayout{"torch_ddp", "torch_ddp", ""},
                    TaskLayout{"torch_ddp_recompute", "torch_ddp", "", 1, true},
                    TaskLayout{"replicas3", "data_parallel", "replicas = 3", 1, false, 4},
                    TaskLayout{"low_level_zero", "low_level_zero", "stage = 2"}, TaskLayout{"gemini", "gemini", ""},
                    TaskLayout{"zero3", "hybrid_parallel", "zero_stage = 3"},
                    TaskLayout{"tp2", "hybrid_parallel", "tp_size = 2\nzero_stage = 0", 2},
                    TaskLayout{"tp2_gathered", "hybrid_parallel", "tp_size = 2\nparallel_output = false", 2},
                    TaskLayout{"pp2", "hybrid_parallel", "pp_size = 2\nmicrobatch_size = 1\nzero_stage = 0", 2},
                    TaskLayout{"pp2_zero1_recompute", "hybrid_parallel",
                               "pp_size = 2\nmicrobatch_size = 3\nzero_stage = 1", 2, true},
                    TaskLayout{"pp2_zbv", "hybrid_parallel", "pp_size = 2\nmicrobatch_size = 2\npp_style = \"zbv\"", 2},
                    TaskLayout{"tp2_pp2", "hybrid_parallel", "tp_size = 2\npp_size = 2\nmicrobatch_size = 2", 4},
                    TaskLayout{"tp4", "hybrid_parallel", "tp_size = 4", 4}),
    [](const auto& value) { return value.param.name; });

}  // namespace
}  // namespace trireme::tests
