#include "models/registry.h"

#include "models/basic_net/kind.h"
#include "models/bert/kind.h"
#include "models/gpt2/kind.h"
#include "models/llama/kind.h"
#include "models/qwen3/kind.h"
#include "models/resnet/kind.h"
#include "models/vit/kind.h"

namespace trireme::models {

Registry<std::shared_ptr<nn::ModelKind>> all_models() {
  Registry<std::shared_ptr<nn::ModelKind>> models("model");
  models.add("basic_net", std::make_shared<basic_net::Kind>());
  models.add("bert", std::make_shared<bert::Kind>());
  models.add("gpt2", std::make_shared<gpt2::Kind>());
  models.add("llama", std::make_shared<llama::Kind>());
  models.add("qwen3", std::make_shared<qwen3::Kind>());
  models.add("resnet", std::make_shared<resnet::Kind>());
  models.add("vit", std::make_shared<vit::Kind>());
  return models;
}

}  // namespace trireme::models
