// Policies: which models and sizes they refuse, and which layers they shard.
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <stdexcept>

#include "core/nn/block.h"
#include "core/nn/layers/linear.h"
#include "core/nn/parameters.h"
#include "models/registry.h"
#include "models/vit/kind.h"
#include "shardformer/apply.h"

namespace trireme::shardformer {
namespace {

std::shared_ptr<nn::Model> make_vit() {
  models::vit::Options options;
  options.hidden_size = 12;
  options.num_layers = 2;
  options.num_heads = 3;
  options.intermediate_size = 10;
  options.patch_size = 4;
  const auto kind = models::all_models().at("vit");
  kind->resolve(&options, {.inputs = {{"pixel_values", at::kFloat, {3, 8, 8}}}, .classes = 5});
  return kind->make(&options);
}

nn::Policy vit_policy() { return models::all_models().at("vit")->policy(nullptr); }

TEST(Policy, SaysWhyItDoesNotFit) {
  namespace role = nn::role;
  struct Row {
    nn::Policy policy;
    int ranks;
    const char* says;  // "": it fits
  };
  const std::vector<Row> rows{
      {vit_policy(), 3, ""},
      {vit_policy(), 4, "4 ranks cannot share 3 attention heads; choose at most 3"},
      {{.tensor = {{"decoder.*.dense", role::row_parallel}}},
       2,
       "the policy names \"decoder.*.dense\", but the model has no such layer"},
      {{.tensor = {{"*.intermediate.dense", role::column_parallel}}},
       2,
       "but the model has no such layer"},  // a star does not match a dot
      {{.sequence = {{"classifie", role::whole}}}, 2, "but the model has no such layer"},
      {{.tensor = {{"vit.layernorm", role::column_parallel}}},
       2,
       "calls \"vit.layernorm\" a linear layer, which it is not"},
      {{.tensor = {{"vit.layernorm", role::vocab_parallel_embedding}}}, 2, "an embedding, which it is not"},
      {{.tensor = {{"vit.layernorm", role::sharded_dropout}}}, 2, "a dropout, which it is not"},
      {{.sequence = {{"classifier", role::first_token}}},
       2,
       "calls \"classifier\" a first-token layer, which it is not"},
      {{.sequence = {{"vit.embeddings", role::token_wise}}},
       2,
       "a layer with one input and one output tensor (nn::Unary), which it is not"},
      {{.sequence = {{"vit.layernorm", role::gather_tokens}}},
       2,
       "an nn::FirstToken or an nn::AllTokens, which it is not"},
      {{.tensor = {{"classifier", role::gated_column_parallel}}}, 2, "a gated linear layer, which it is not"},
      {{.tensor = {{"classifier", role::tied_embedding}}}, 2, "an embedding, which it is not"},
      {{.tensor = {{"classifier", role::tied_head}}}, 2, "a tied head, which it is not"},
      {{.tensor = {{"classifier", "column_paralel"}}},
       2,
       "the policy's entry for \"classifier\": no role for tensor parallelism \"column_paralel\" (known: attention, "},
      {{.sequence = {{"classifier", "column_parallel"}}},
       2,
       "no role for sequence parallelism \"column_parallel\" (known: first_token, gather_tokens, scatter_tokens, "
       "token_wise, whole)"},
      {{.tensor = {{"classifier", role::attention}}}, 2, "calls \"classifier\" an attention layer, which it is not"},
      {{.tensor = {{"vit.encoder.layer.*.attention.attention.query", role::column_parallel}}},
       2,
       "is part of \"vit.encoder.layer.0.attention.attention\", which is split as a whole"},
      {{.sequence = {{"vit.encoder.layer.*.attention.attention.dropout", role::token_wise}}},
       2,
       "is part of \"vit.encoder.layer.0.attention.attention\", which is split as a whole"},
      {{.tensor = {{"classifier", role::column_parallel}, {"class*", role::row_parallel}}},
       2,
       "match the layer \"classifier\"; remove one"},
      {{.sequence = {{"vit.layernorm", role::token_wise}, {"vit.layer*", role::whole}}},
       2,
       "match the layer \"vit.layernorm\"; remove one"},
      {{.tensor = {{"classifier", role::column_parallel}}, .sequence = {{"class*", role::scatter_tokens}}},
       2,
       "has a role for tensor parallelism (\"classifier\")"},
      {{.tensor = {{"classifier", role::classifier_head}}, .sequence = {{"classifier", role::scatter_tokens}}},
       2,
       "remove the second"},
      {{.tensor = {{"classifier", role::classifier_head}}, .sequence = {{"classifier", role::whole}}}, 2, ""},
      {{.tensor = {{"classifier", role::column_parallel_gather_output}},
        .sequence = {{"classifier", role::scatter_tokens}}},
       2,
       ""},
      {{.tensor = {{"vit.encoder.layer.1.intermediate.dense", role::column_parallel_gather_output}}}, 64, ""},
  };
  const auto model = make_vit();
  for (const auto& [policy, ranks, says] : rows) {
    const auto why = validate(*model, policy, {.tensor = ranks});
    EXPECT_EQ(why.empty(), std::string(says).empty()) << why;
    EXPECT_NE(why.find(says), std::string::npos) << why;
  }
}

TEST(Policy, SaysWhyTheSequenceDoesNotFit) {
  const auto model = make_vit();
  const auto whole = vit_policy();
  const auto without = [&](const std::string& layer) {
    auto policy = whole;
    std::erase_if(policy.sequence, [&](const auto& row) { return row.layer == layer; });
    return policy;
  };
  struct Row {
    nn::Policy policy;
    ParallelSizes sizes;
    const char* says;  // "": it fits
  };
  auto wrong = without("vit.class_token");
  wrong.sequence.push_back({"vit.layernorm", nn::role::gather_tokens});
  const std::vector<Row> rows{
      {whole, {2, Sequence::split_gather}, ""},
      {whole, {1, Sequence::ring_attn, 64}, ""},
      {whole, {1, Sequence::all_to_all, 3}, ""},
      {whole,
       {1, Sequence::all_to_all, 4},
       "all_to_all needs an attention head for each of 4 ranks, but there are only 3"},
      {whole, {2, Sequence::all_to_all, 2}, "a tensor-parallel rank has only 1; choose sp_size at most 1"},
      {without("vit.class_token"), {2, Sequence::split_gather}, "does not say where the tokens are split"},
      {without("vit.class_token"), {2}, ""},
      {without("vit.embeddings.dropout"), {2, Sequence::ring}, "does not say where the tokens are split"},
      {without("vit.layernorm"), {2, Sequence::ring}, "does not say whether \"vit.layernorm.weight\" sees slices"},
      {without("vit.encoder.layer.*.output.dropout"),
       {1, Sequence::ring_attn, 2},
       "does not say whether \"vit.encoder.layer.0.output.dropout\" sees slices"},
      {wrong, {2, Sequence::ring}, "two entries"},
  };
  for (const auto& [policy, sizes, says] : rows) {
    const auto why = validate(*model, policy, sizes);
    EXPECT_EQ(why.empty(), std::string(says).empty()) << why;
    EXPECT_NE(why.find(says), std::string::npos) << why;
  }
}

TEST(Policy, ShardsNamedLayersByOutputsOrInputs) {
  const auto model = make_vit();
  apply(*model, vit_policy(), {.tensor = comm::Group::alone("tp", 0, nullptr)});
  for (const auto& declared : nn::declarations(*model)) {
    EXPECT_EQ(declared.placement.local_numel(), declared.placement.full_numel()) << declared.name;
    const auto& name = declared.name;
    const bool by_output = name.find("attention.attention") != std::string::npos ||
                           name.find("intermediate") != std::string::npos || name.rfind("classifier", 0) == 0;
    const bool by_input = name.find("output.dense.weight") != std::string::npos;
    ASSERT_EQ(declared.placement.cuts.size(), by_output || by_input ? 1U : 0U) << name;
    if (by_input) {
      EXPECT_EQ(declared.placement.cuts[0].dim, 1) << name;
    }
  }
}

// What goes wrong in a role of an extension is an error of that extension, which names the role and the layer.
TEST(Policy, NamesARoleOfAnExtensionThatFails) {
  using Cut = void (*)(nn::Linear&, const ParallelContext&);
  const auto cut = [](Cut by) { return TensorRole{.rule = rule_for<nn::Linear>("a linear layer", by)}; };
  const struct {
    TensorRole role;
    const char* says;
  } rows[] = {
      {{.rule = rule_for<nn::Linear>(
            "a linear layer", [](nn::Linear&, const ParallelContext&) {},
            [](const nn::Linear&, const ParallelSizes&) -> std::string { throw std::out_of_range("no such expert"); })},
       "validate(): no such expert"},
      {cut([](nn::Linear&, const ParallelContext&) { throw std::out_of_range("no such expert"); }),
       "cut(): no such expert"},
      {cut([](nn::Linear&, const ParallelContext&) { throw ConfigError("too many experts"); }),
       "cut(): too many experts"},
      {cut([](nn::Linear& layer, const ParallelContext&) {
         layer.cut("unknown", 0, {{0, 1}}, "tp");
       }),
       "cut(): the layer \"classifier\" declares no parameter \"unknown\" (known: weight, bias)"},
      {cut([](nn::Linear& layer, const ParallelContext&) {
         layer.cut("bias", 1, {{0, 1}}, "tp");
       }),
       "cut(): classifier.bias has no dim 1 to be cut along, but 1 dims"},
      {cut([](nn::Linear& layer, const ParallelContext&) {
         layer.cut("bias", 0, {{0, 6}}, "tp");
       }),
       "cut(): classifier.bias: the range [0, 6) of dim 0 is not within its size, 5, and after the range before it"},
      {cut([](nn::Linear& layer, const ParallelContext&) {
         layer.cut("weight", 0, {{0, 1}}, "tp");
         layer.cut("weight", 1, {{0, 1}}, "tp");
       }),
       "cut(): classifier.weight is cut along dim 0 and axis \"tp\" already"},
      {cut([](nn::Linear& layer, const ParallelContext&) {
         layer.cut("weight", 0, {{0, 1}}, "dp");
       }),
       "cut(): classifier.weight is cut along axis \"dp\"; a role can cut along the axes of its groups: tp"},
      {cut([](nn::Linear& layer, const ParallelContext&) {
         layer.cut("weight", 0, {{0, 2}}, "tp");
         layer.set_storage("weight", at::zeros({2, 12}));
         layer.set_storage("bias", at::zeros({5}));
       }),
       "its computation with a slice of weight and all of bias: "},
  };
  for (const auto& [role, says] : rows) {
    SCOPED_TRACE(says);
    const auto model = make_vit();
    auto roles = all_roles();
    roles.tensor.add("own", role);
    const nn::Policy policy{.tensor = {{"classifier", "own"}}};
    auto said = validate(*model, policy, {}, roles);
    if (said.empty()) try {
        apply(*model, policy, {.tensor = comm::Group::alone("tp", 0, nullptr)}, roles);
        for (const auto& module : model->modules())
          if (const auto layer = std::dynamic_pointer_cast<nn::Linear>(module); layer && layer->path() == "classifier")
            layer->forward(at::zeros({1, 12}), {});
      } catch (const ConfigError& error) {
        said = error.what();
      }
    EXPECT_EQ(said.find(std::string("the role \"own\" of \"classifier\": ") + says), 0U) << said;
  }
}

TEST(Policy, RefusesARoleWithoutACut) {
  auto roles = all_roles();
  const auto refused = [](const auto& add) {
    try {
      add();
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  EXPECT_EQ(refused([&] { roles.tensor.add("own", {}); }),
            "the role for tensor parallelism \"own\" is incomplete: set its rule.cut");
  EXPECT_EQ(refused([&] { roles.tensor.add("own_too", {.rule = rule_for<nn::Linear>("a linear layer", {})}); }),
            "the role for tensor parallelism \"own_too\" is incomplete: set its rule.cut");
  EXPECT_EQ(refused([&] { roles.sequence.add("own", {.rule = {.validate = {}, .cut = {}}}); }),
            "the role for sequence parallelism \"own\" is incomplete: set its rule.cut");
  roles.tensor.add("any_layer", {.rule = {.validate = {}, .cut = [](nn::Layer&, const ParallelContext&) {}}});
  EXPECT_EQ(validate(*make_vit(), {.tensor = {{"vit.layernorm", "any_layer"}}}, {}, roles), "");
}

}  // namespace
}  // namespace trireme::shardformer
