// Contract C1 for transformers: causal and padded attention, heads that share keys and values, rotary positions, gated
// MLPs, tied and untied heads over the vocabulary, in every layout, sequence parallelism included. Batches are ragged.
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/comm/host_values.h"
#include "core/nn/block.h"
#include "core/nn/layers/attention.h"
#include "core/nn/layers/embedding.h"
#include "core/nn/layers/gated_linear.h"
#include "core/nn/layers/linear_cross_entropy.h"
#include "core/nn/layers/lora.h"
#include "core/nn/layers/rms_norm.h"
#include "core/nn/layers/tokens.h"
#include "models/registry.h"
#include "tests/parity/sentences.h"

namespace trireme::tests {
namespace {

struct Kind {
  std::string name, task;
  std::int64_t heads, key_value_heads;
  bool causal = false, modern = false;  ///< modern: rotary, RmsNorm and a gated MLP; else as in BERT and GPT-2
  bool tied = false;
  double dropout = 0;
  bool fused = false;  ///< one projection for queries, keys and values
};

constexpr std::int64_t kHeadSize = 4, kInner = 10;

std::shared_ptr<nn::Linear> linear(std::int64_t in, std::int64_t out, std::int64_t in_unit = 1,
                                   nn::Activation activation = nn::Activation::none) {
  return std::make_shared<nn::Linear>(
      nn::Linear::Options{.in = in, .out = out, .init_std = 0.4, .in_unit = in_unit, .activation = activation});
}

std::shared_ptr<nn::Unary> norm(const Kind& kind, std::int64_t width) {
  if (kind.modern) return std::make_shared<nn::RmsNorm>(width, 1e-6);
  return std::make_shared<nn::LayerNorm>(width, 1e-6);
}

std::vector<std::string> names_of(const Kind& kind) {
  if (kind.fused) return {"c_attn"};
  return {"q_proj", "k_proj", "v_proj"};
}

class EmbedTokens : public nn::Block {
 public:
  EmbedTokens(const Kind& kind, std::shared_ptr<nn::Embedding> ids)
      : ids_(register_module("ids", std::move(ids))),
        dropout_(register_module("dropout", std::make_shared<nn::Dropout>(kind.dropout))) {
    if (!kind.modern) declare("places", places_, {kLongest, ids_->options().features}, nn::Init::normal(0, 0.5));
  }
  nn::Tensors forward(nn::Tensors inputs, const nn::Context& context) override {
    auto x = ids_->forward(inputs[0], context);
    if (places_.defined()) x = x + places_.narrow(0, 0, x.size(1));
    return {dropout_->forward(x, context)};
  }

 private:
  std::shared_ptr<nn::Embedding> ids_;
  std::shared_ptr<nn::Dropout> dropout_;
  at::Tensor places_;
};

class Encoder : public nn::Block {
 public:
  Encoder(const Kind& kind, const std::shared_ptr<const nn::Rotary>& rotary) {
    const auto width = kind.heads * kHeadSize;
    norm1_ = register_module("norm1", norm(kind, width));
    attention_ = register_module("attention", std::make_shared<nn::SelfAttention>(
                                                  nn::SelfAttention::Options{.hidden = width,
                                                                             .heads = kind.heads,
                                                                             .key_value_heads = kind.key_value_heads,
                                                                             .bias = !kind.modern,
                                                                             .init_std = 0.4,
                                                                             .causal = kind.causal,
                                                                             .names = names_of(kind),
                                                                             .rotary = rotary}));
    out_ = register_module("out", linear(width, width, kHeadSize));
    dropout_ = register_module("dropout", std::make_shared<nn::Dropout>(kind.dropout));
    norm2_ = register_module("norm2", norm(kind, width));
    if (kind.modern)
      up_ = register_module("up", std::make_shared<nn::GatedLinear>(
                                      nn::GatedLinear::Options{.in = width, .out = kInner, .init_std = 0.4}));
    else
      up_ = register_module("up", linear(width, kInner, 1, nn::Activation::gelu_tanh));
    down_ = register_module("down", linear(kInner, width));
  }
  nn::Tensors forward(nn::Tensors inputs, const nn::Context& context) override {
    const auto mixed = attention_->forward(norm1_->forward(inputs[0], context), context);
    const auto x = dropout_->add_to(inputs[0], out_->forward(mixed, context), context);
    return {x + down_->forward(up_->forward(norm2_->forward(x, context), context), context)};
  }

 private:
  std::shared_ptr<nn::Unary> norm1_, norm2_, out_, up_, down_;
  std::shared_ptr<nn::SelfAttention> attention_;
  std::shared_ptr<nn::Dropout> dropout_;
};

/// TokenScores of every token, or of the sample by its first token.
class TokenScores : public nn::Block {
 public:
  TokenScores(std::shared_ptr<nn::Unary> norm, std::shared_ptr<nn::Unary> read, std::shared_ptr<nn::Embedding> ids,
              std::shared_ptr<nn::Linear> head)
      : norm_(register_module("norm", std::move(norm))), read_(register_module("read", std::move(read))) {
    if (head) head_ = register_module("head", std::move(head));
    if (!head_) ids_ = register_module("ids", std::move(ids));
    set_path("scores");
  }
  nn::Tensors forward(nn::Tensors inputs, const nn::Context& context) override {
    auto x = norm_->forward(inputs[0], context);
    x = read_->forward(x, context);
    if (dynamic_cast<nn::FirstToken*>(read_.get()) != nullptr) x = x.select(1, 0);
    return {head_ ? head_->forward(x, context) : ids_->scores(x, context, {})};
  }

 private:
  std::shared_ptr<nn::Unary> norm_, read_;
  std::shared_ptr<nn::Embedding> ids_;
  std::shared_ptr<nn::Linear> head_;
};

class Transformer : public nn::Model {
 public:
  explicit Transformer(const Kind& kind) {
    const auto width = kind.heads * kHeadSize;
    const auto ids =
        register_module("ids", std::make_shared<nn::Embedding>(nn::Embedding::Options{kTokenIds, width, 0.6}));
    add_block(register_module("embed", std::make_shared<EmbedTokens>(kind, ids)));
    const auto rotary =
        kind.modern ? std::make_shared<const nn::Rotary>(nn::Rotary::Options{.head_size = kHeadSize}) : nullptr;
    for (const auto* name : {"layer0", "layer1", "layer2"})
      add_block(register_module(name, std::make_shared<Encoder>(kind, rotary)));
    std::shared_ptr<nn::Unary> read;
    if (kind.task == "classification")
      read = register_module("read", std::make_shared<nn::FirstToken>());
    else
      read = register_module("read", std::make_shared<nn::AllTokens>());
    const auto last = register_module("norm", norm(kind, width));
    std::shared_ptr<nn::Linear> head;
    if (!kind.tied) head = register_module("head", linear(width, kTokenIds));
    add_block(std::make_shared<TokenScores>(last, read, ids, head));
    finish();
  }
  std::vector<std::string> input_names() const override { return {"input_ids"}; }
  std::vector<std::string> side_input_names() const override { return {"attention_mask"}; }
  std::int64_t tokens(const nn::Tensors& inputs) const override { return inputs[0].size(1); }
};

/// In a modern kind the embedding, which is sharded too, scatters the tokens.
nn::Policy policy_of(const Kind& kind) {
  namespace role = nn::role;
  nn::Policy policy{.tensor = {{"layer*.attention", role::attention},
                               {"layer*.out", role::row_parallel},
                               {"layer*.up", kind.modern ? role::gated_column_parallel : role::column_parallel},
                               {"layer*.down", role::row_parallel},
                               {"ids", kind.tied ? role::tied_embedding : role::vocab_parallel_embedding}},
                    .sequence = {{kind.modern ? "ids" : "embed.dropout", role::scatter_tokens},
                                 {"layer*.norm1", role::token_wise},
                                 {"layer*.dropout", role::token_wise},
                                 {"layer*.norm2", role::token_wise},
                                 {"norm", role::token_wise},
                                 {"read", role::gather_tokens}}};
  if (kind.modern)
    policy.sequence.push_back({"embed.dropout", role::token_wise});
  else
    policy.sequence.push_back({"embed", role::whole});
  if (!kind.tied) policy.tensor.push_back({"head", role::classifier_head});
  return policy;
}

const std::vector<Kind>& kinds() {
  static const std::vector<Kind> all{
      {"decoder_uneven", "causal_lm", 6, 3, true, true},
      {"decoder_one_kv", "causal_lm", 4, 1, true, true, true},
      {"gpt", "causal_lm", 4, 4, true, false, true, 0.2},
      {"encoder", "masked_lm", 5, 5, false, false, true, 0.2},
      {"classifier", "classification", 4, 4},
      {"fused", "causal_lm", 4, 4, true, false, true, 0.2, true},
      {"fused_uneven", "causal_lm", 6, 3, true, true, false, 0, true},
  };
  return all;
}

/// A model to train, with its policy.
struct TrainedModel {
  std::string name, task;
  MakeModel make;
  nn::Policy policy;
  bool by_head = false;  ///< its head computes the loss of a few rows at once, without all scores
};

/// A model as [model] name selects it.
TrainedModel selected(const std::string& name, const std::string& model, const std::string& task,
                      const std::vector<std::pair<std::string, FieldValue>>& own) {
  const auto kind = models::all_models().at(model);
  const std::shared_ptr<void> options = kind->default_options();
  std::vector<std::pair<std::string, FieldValue>> values{
      {"hidden_size", std::int64_t{16}}, {"num_layers", std::int64_t{3}},
      {"num_heads", std::int64_t{4}},    {"intermediate_size", std::int64_t{10}},
      {"vocab_size", kTokenIds},         {"max_positions", kLongest},
      {"attention_dropout", 0.0},        {"initializer_range", 0.4}};
  values.insert(values.end(), own.begin(), own.end());
  for (const auto& [key, value] : values) kind->fields().find(key)->set(options.get(), value);
  auto spec = Sentences(task).spec();
  spec.classes = task_for(task)->outputs();
  kind->resolve(options.get(), spec);
  return {name, task, [=] { return std::shared_ptr<nn::Model>(kind->make(options.get())); },
          kind->policy(options.get()), /*by_head=*/true};
}

/// One of these models with adapters.
TrainedModel with_adapters(const std::vector<TrainedModel>& all, const std::string& name,
                           const nn::LoraOptions& options) {
  auto out = *std::find_if(all.begin(), all.end(), [&](const auto& trained) { return trained.name == name; });
  out.name = "lora_" + name;
  out.make = [make = out.make, options] {
    auto model = make();
    nn::add_lora(*model, options);
    return model;
  };
  return out;
}

std::vector<TrainedModel> all_trained() {
  std::vector<TrainedModel> all;
  for (const auto& kind : kinds())
    all.push_back({kind.name, kind.task, [&kind] { return std::make_shared<Transformer>(kind); }, policy_of(kind)});
  all.push_back(selected("bert_masked_lm", "bert", "masked_lm", {{"dropout", 0.2}, {"attention_dropout", 0.1}}));
  all.push_back(selected("bert_sequence", "bert", "classification", {{"dropout", 0.2}}));
  all.push_back(selected("gpt2", "gpt2", "causal_lm",
                         {{"dropout", 0.2}, {"embedding_dropout", 0.1}, {"attention_dropout", 0.1}}));
  all.push_back(selected("gpt2_uneven", "gpt2", "causal_lm",
                         {{"hidden_size", std::int64_t{24}},
                          {"num_heads", std::int64_t{6}},
                          {"dropout", 0.2},
                          {"embedding_dropout", 0.0}}));
  all.push_back(selected("llama_untied", "llama", "causal_lm",
                         {{"num_key_value_heads", std::int64_t{2}}, {"attention_dropout", 0.1}}));
  all.push_back(selected("llama_tied", "llama", "causal_lm",
                         {{"num_key_value_heads", std::int64_t{1}}, {"tied", true}, {"attention_bias", true}}));
  all.push_back(selected("qwen3", "qwen3", "causal_lm",
                         {{"num_key_value_heads", std::int64_t{2}}, {"head_size", std::int64_t{6}}}));
  // A fused projection; heads that share keys and values; a layer that works on slices of the tokens; sharded logits.
  all.push_back(with_adapters(all, "fused", {.rank = 2, .alpha = 3, .dropout = 0.2, .target = {"c_attn", "down"}}));
  all.push_back(with_adapters(all, "llama_tied", {.rank = 3, .dropout = 0.1}));
  all.push_back(with_adapters(all, "bert_masked_lm",
                              {.rank = 2, .dropout = 0.2, .train = std::vector<std::string>{"embeddings.LayerNorm"}}));
  all.push_back(with_adapters(all, "qwen3", {.rank = 2, .train = std::vector<std::string>{"k_norm"}}));
  all.push_back(
      with_adapters(all, "llama_untied", {.rank = 2, .alpha = 5, .target = {"v_proj", "up_proj", "lm_head"}}));
  return all;
}

class ParityTransformers : public testing::TestWithParam<TaskLayout> {};

TEST_P(ParityTransformers, EqualOneProcess) {
  if (!GetParam().fits(world().size())) GTEST_SKIP() << "needs another number of ranks";
  for (const auto& [name, task, make, policy, by_head] : all_trained()) {
    SCOPED_TRACE(name);
    std::optional<nn::HeadRowsScope> few;
    if (by_head) few.emplace(3);
    static std::map<std::string, TrainedOnSentences> expected;
    if (!expected.contains(name)) expected[name] = train_by_hand(make, task);
    expect_same_on_sentences(GetParam(), make, policy, task, expected.at(name));
    if (!by_head || GetParam().plugin == "data_parallel" || task == "classification" || name == "lora_llama_untied")
      continue;  // the loss needs the outputs of all replicas; the head is another one; it has an adapter
    const auto losses = comm::reduce_value(world().group(), nn::HeadRowsScope::losses(), comm::ReduceOp::sum);
    EXPECT_GT(losses, 0) << "the head has made scores";
  }
}

TaskLayout sequence(const std::string& name, const std::string& mode, const std::string& keys, int inner,
                    bool recompute = false, std::int64_t micro_batch = kUneven) {
  return {name,
          "hybrid_parallel",
          keys + "\nenable_sequence_parallelism = true\nsequence_parallelism_mode = \"" + mode + "\"",
          inner,
          recompute,
          micro_batch};
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, ParityTransformers,
    testing::Values(
        TaskLayout{"torch_ddp", "torch_ddp", ""}, TaskLayout{"torch_ddp_recompute", "torch_ddp", "", 1, true},
        TaskLayout{"replicas3", "data_parallel", "replicas = 3", 1, false, 4},
        TaskLayout{"replicas2_recompute", "data_parallel", "replicas = 2", 1, true, 3},
        TaskLayout{"torch_ddp_selective", "torch_ddp", "", 1, false, 1, {"*"}},
        TaskLayout{"replicas2_selective", "data_parallel", "replicas = 2", 1, false, 3, {"attention"}},
        TaskLayout{"gemini_selective", "gemini", "", 1, false, 1, {"*"}},
        TaskLayout{"tp2_zero3_selective", "hybrid_parallel", "tp_size = 2\nzero_stage = 3", 4, false, 1, {"*"}},
        TaskLayout{"tp2_pp2_zbv_selective",
                   "hybrid_parallel",
                   "tp_size = 2\npp_size = 2\nmicrobatch_size = 1\npp_style = \"zbv\"",
                   4,
                   false,
                   1,
                   {"*"}},
        TaskLayout{"tp2_split_gather_selective",
                   "hybrid_parallel",
                   "tp_size = 2\nsequence_parallelism_mode = \"split_gather\"",
                   2,
                   false,
                   1,
                   {"*"}},
        TaskLayout{"low_level_zero", "low_level_zero", "stage = 2"}, TaskLayout{"gemini", "gemini", ""},
        TaskLayout{"zero3", "hybrid_parallel", "zero_stage = 3"},
        TaskLayout{"tp2", "hybrid_parallel", "tp_size = 2\nzero_stage = 0", 2, false, 1},
        TaskLayout{"tp2_gathered_recompute", "hybrid_parallel", "tp_size = 2\nparallel_output = false", 2, true},
        TaskLayout{"tp4", "hybrid_parallel", "tp_size = 4", 4},
        TaskLayout{"pp2", "hybrid_parallel", "pp_size = 2\nmicrobatch_size = 1\nzero_stage = 0", 2},
        TaskLayout{"pp2_gpipe_zero1", "hybrid_parallel",
                   "pp_size = 2\nmicrobatch_size = 1\npp_style = \"gpipe\"\nzero_stage = 1", 4},
        TaskLayout{"pp2_interleaved", "hybrid_parallel", "pp_size = 2\nmicrobatch_size = 1\npp_style = \"interleaved\"",
                   2},
        TaskLayout{"pp4_zb_h1", "hybrid_parallel", "pp_size = 4\nmicrobatch_size = 1\npp_style = \"zb_h1\"", 4},
        TaskLayout{"pp2_zbv", "hybrid_parallel", "pp_size = 2\nmicrobatch_size = 2\npp_style = \"zbv\"", 2},
        TaskLayout{"tp2_pp2", "hybrid_parallel", "tp_size = 2\npp_size = 2\nmicrobatch_size = 2", 4},
        TaskLayout{"tp2_pp2_zbv_recompute", "hybrid_parallel",
                   "tp_size = 2\npp_size = 2\nmicrobatch_size = 1\npp_style = \"zbv\"", 4, true},
        TaskLayout{"tp2_pp2_interleaved_recompute", "hybrid_parallel",
                   "tp_size = 2\npp_size = 2\nmicrobatch_size = 2\npp_style = \"interleaved\"", 4, true},
        TaskLayout{"tp2_zero3", "hybrid_parallel", "tp_size = 2\nzero_stage = 3", 4},
        sequence("tp2_split_gather", "split_gather", "tp_size = 2", 2),
        sequence("tp2_ring_recompute", "ring", "tp_size = 2", 2, true),
        sequence("tp4_split_gather", "split_gather", "tp_size = 4", 4),
        sequence("tp2_pp2_split_gather", "split_gather", "tp_size = 2\npp_size = 2\nmicrobatch_size = 2", 4),
        sequence("sp2_all_to_all", "all_to_all", "sp_size = 2", 2),
        sequence("sp4_all_to_all", "all_to_all", "sp_size = 4", 4),
        sequence("sp2_tp2_all_to_all", "all_to_all", "sp_size = 2\ntp_size = 2", 4),
        sequence("sp2_ring_attn", "ring_attn", "sp_size = 2", 2, false, 1),
        sequence("sp4_ring_attn_recompute", "ring_attn", "sp_size = 4", 4, true),
        sequence("sp2_tp2_ring_attn", "ring_attn", "sp_size = 2\ntp_size = 2", 4),
        sequence("sp2_pp2_ring_attn", "ring_attn", "sp_size = 2\npp_size = 2\nmicrobatch_size = 1", 4)),
    [](const auto& value) { return value.param.name; });

}  // namespace
}  // namespace trireme::tests
