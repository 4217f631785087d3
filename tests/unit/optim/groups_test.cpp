// Parameter groups by name patterns, the choice of an optimizer, and the messages of wrong options.
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "core/base/error.h"
#include "core/optim/optimizer.h"
#include "core/optim/optimizers.h"

namespace trireme::optim {
namespace {

std::vector<NamedTensor> model() {
  std::vector<NamedTensor> out;
  for (const char* name : {"vit.embeddings.cls_token", "vit.encoder.layer.0.layernorm_before.weight",
                           "vit.encoder.layer.0.output.dense.weight", "vit.encoder.layer.0.output.dense.bias",
                           "classifier.weight", "classifier.bias"})
    out.push_back({name, at::zeros({2}).requires_grad_()});
  return out;
}

std::vector<std::string> names(const ParamGroup& group) {
  std::vector<std::string> out;
  for (const auto& slot : group.slots) out.push_back(slot.name);
  return out;
}

TEST(ParameterGroups, DecayAndFreezeByName) {
  OptimizerOptions options;
  options.weight_decay = 0.05;
  options.no_decay = {"bias", "layernorm*", "*layernorm*"};
  options.freeze = {"embeddings"};
  auto parameters = model();
  EXPECT_THROW(make_groups(options, parameters), ConfigError) << "layernorm* must match from the start of a name";
  options.no_decay = {"bias", "*layernorm*"};
  const auto groups = make_groups(options, parameters);
  ASSERT_EQ(groups.size(), 2u);
  EXPECT_EQ(groups[0].label, "decay");
  EXPECT_EQ(groups[0].weight_decay, 0.05);
  EXPECT_EQ(names(groups[0]),
            (std::vector<std::string>{"vit.encoder.layer.0.output.dense.weight", "classifier.weight"}));
  EXPECT_EQ(groups[1].label, "no_decay");
  EXPECT_EQ(groups[1].weight_decay, 0);
  EXPECT_EQ(names(groups[1]), (std::vector<std::string>{"vit.encoder.layer.0.layernorm_before.weight",
                                                        "vit.encoder.layer.0.output.dense.bias", "classifier.bias"}));
  EXPECT_FALSE(parameters[0].value.requires_grad());
  for (std::size_t i = 1; i < parameters.size(); ++i) EXPECT_TRUE(parameters[i].value.requires_grad());
  EXPECT_EQ(make(options, groups)->describe(),
            "HybridAdam(lr 0.001, betas 0.9/0.999, weight decay 0.05, none on 3 tensors)");
}

TEST(ParameterGroups, TheFirstMatchingGroupCounts) {
  OptimizerOptions options;
  options.lr = 0.5;
  options.weight_decay = 0.05;
  options.no_decay = {"bias"};
  options.groups = {{.parameters = {"classifier"}, .lr_scale = 10, .weight_decay = 0.2},
                    {.parameters = {"layer.0", "classifier.bias"}, .lr_scale = 0.1}};
  const auto groups = make_groups(options, model());
  struct Row {
    const char* label;
    double decay, scale;
    std::size_t slots;
  };
  const std::vector<Row> rows{{"classifier decay", 0.2, 10, 1},
                              {"classifier no_decay", 0, 10, 1},
                              {"layer.0, classifier.bias decay", 0.05, 0.1, 2},
                              {"layer.0, classifier.bias no_decay", 0, 0.1, 1},
                              {"decay", 0.05, 1, 1}};
  ASSERT_EQ(groups.size(), rows.size());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(groups[i].label, rows[i].label);
    EXPECT_EQ(groups[i].weight_decay, rows[i].decay);
    EXPECT_EQ(groups[i].lr_scale, rows[i].scale);
    EXPECT_EQ(groups[i].slots.size(), rows[i].slots) << rows[i].label;
  }
  EXPECT_NE(make(options, groups)->describe().find("; classifier: lr x 10, weight decay 0.2 on 1 tensor"),
            std::string::npos)
      << make(options, groups)->describe();
}

// A group without values of its own keeps its parameters out of those after it.
TEST(ParameterGroups, AGroupMayBeAnException) {
  OptimizerOptions options;
  options.groups = {{.parameters = {"classifier.bias"}}, {.parameters = {"classifier"}, .lr_scale = 10}};
  const auto groups = make_groups(options, model());
  ASSERT_EQ(groups.size(), 3U);
  EXPECT_EQ(names(groups[0]), std::vector<std::string>{"classifier.bias"});
  EXPECT_EQ(groups[0].lr_scale, 1);
  EXPECT_EQ(names(groups[1]), std::vector<std::string>{"classifier.weight"});
}

TEST(ParameterGroups, Refusals) {
  struct Row {
    std::function<void(OptimizerOptions&)> change;
    std::string says;  // a part of the message
  };
  const std::vector<Row> rows{
      {[](auto& o) {
         o.no_decay = {"biass"};
         o.weight_decay = 1;
       },
       "optimizer.no_decay: \"biass\" matches no parameter; did you mean \"bias\"?"},
      {[](auto& o) {
         o.freeze = {"classifier"};
         o.no_decay = {"classifier.bias"};
         o.weight_decay = 1;
       },
       "optimizer.no_decay: classifier.bias matches only frozen parameters"},
      {[](auto& o) { o.freeze = {"clasifier"}; }, "did you mean \"classifier\"?"},
      {[](auto& o) { o.freeze = {"decoder"}; }, "optimizer.freeze: \"decoder\" matches no parameter"},
      {[](auto& o) { o.freeze = {"zzzzzzzzzzzzzzzzzzzzzzz"}; }, "parameters are called vit.embeddings.cls_token"},
      {[](auto& o) { o.freeze = {""}; }, "matches no parameter"},
      {[](auto& o) { o.freeze = {"*"}; }, "nothing is left to train"},
      {[](auto& o) { o.groups = {{.parameters = {"clasifier"}}}; },
       "optimizer.group[1].parameters: \"clasifier\" matches no parameter; did you mean \"classifier\"?"},
      {[](auto& o) { o.groups = {{.parameters = {"classifier"}}}; },
       "optimizer.group[1].parameters: classifier would be trained as all other parameters, so the group has no"},
      {[](auto& o) {
         o.groups = {{.parameters = {"classifier"}, .lr_scale = 2}, {.parameters = {"layer.0"}}};
       },
       "optimizer.group[2].parameters: layer.0 would be trained as all other parameters"},
      {[](auto& o) {
         o.no_decay = {"bias"};
         o.groups = {{.parameters = {"bias"}, .lr_scale = 2, .weight_decay = 0.3}};
       },
       "optimizer.group[1].weight_decay: has no effect, because optimizer.no_decay names all parameters of the group"},
      {[](auto& o) {
         o.groups = {{.parameters = {"classifier"}}, {.parameters = {"classifier.bias"}}};
       },
       "classifier.bias matches only parameters that are frozen or in a group before it"},
      {[](auto& o) { o.groups = {{.parameters = {"bias"}, .lr_scale = -1}}; },
       "optimizer.group.lr_scale = -1.0: it must be at least 0"},
      {[](auto& o) { o.no_decay = {"bias"}; }, "has no effect while weight_decay is 0"},
      {[](auto& o) { o.method = hybrid_adam({.betas = {0.9}}); }, "must have 2 elements, not 1"},
      {[](auto& o) {
         o.method = hybrid_adam({.betas = {0.9, 1.0}});
       },
       "each number must be at least 0 and below 1"},
      {[](auto& o) { o.method = hybrid_adam({.eps = -1}); }, "optimizer.eps = -1.0: it must be at least 0"},
      {[](auto& o) { o.method = lamb(); }, "\"lamb\" scales only the updates of parameters with weight decay"},
      {[](auto& o) { o.method = lars(); }, "set optimizer.weight_decay, or always_adapt = true"},
      {[](auto& o) { o.method = sgd({.nesterov = true}); }, "needs momentum above 0"},
      {[](auto& o) { o.method = sgd({.momentum = 0.9, .nesterov = true, .dampening = 0.1}); }, "dampening = 0"},
      {[](auto& o) { o.method = sgd({.dampening = 0.1}); }, "has no effect without momentum"},
  };
  for (const auto& [change, says] : rows) {
    OptimizerOptions options;
    change(options);
    try {
      make(options, make_groups(options, model()));
      ADD_FAILURE() << "accepted; should say: " << says;
    } catch (const ConfigError& error) {
      EXPECT_NE(std::string(error.what()).find(says), std::string::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace trireme::optim
