#include "core/setup/model_choice.h"

#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/nn/block.h"
#include "core/setup/lora.h"

namespace trireme::train {
namespace {

/// Fills in the options that the user left open from the config.json of the weights. @throws ConfigError
void adopt_stored(const nn::ModelKind& kind, void* options, const RunConfig& config, const StoredConfig& stored) {
  if (!stored.describes_model() || kind.from_hf(options, *stored.content, stored.path)) return;
  // timm's files have an architecture in place of Hugging Face's model_type.
  const bool is_timm = !stored.content->contains("model_type") && stored.content->contains("architecture");
  const auto* key = is_timm ? "architecture" : "model_type";
  config::fail(config.root.table("model"), "weights",
               fmt::format("{}: {} is {}, but model.name is \"{}\"; choose other weights", stored.path, key,
                           stored.content->value(key, nlohmann::json("")).dump(), config.model.name));
}

/// What a model was made of, for a checkpoint.
std::map<std::string, std::string> record_of(const RunConfig& config, const ChosenTask& task) {
  std::map<std::string, std::string> record{{"model.name", config.model.name}, {"train.task", task.kind.name()}};
  for (const auto& field : task.kind.make.fields().fields)
    record["train." + field.key] = config::to_toml(field.get(task.kind.make.options()));
  return record;
}

}  // namespace

ChosenModel choose_model(const RunConfig& config, const LoadedWeights& weights,
                         const std::shared_ptr<const nn::ModelKind>& kind, const ChosenTask& task,
                         const nn::DataSpec& data) {
  auto options = kind->default_options();
  config::read_into(&config.model_keys, kind->fields(), options.get());
  adopt_stored(*kind, options.get(), config, weights.config);
  auto of_task = data;
  of_task.classes = task.made->outputs();
  if (of_task.classes != static_cast<std::int64_t>(of_task.class_names.size())) of_task.class_names.clear();
  kind->resolve(options.get(), of_task);
  config::make_paths_absolute(kind->fields(), options.get());  // a run's config.toml must work from any directory

  ModelSource source{.weights = weights.path,
                     .adapters = weights.adapters,
                     .head_prefix = kind->head_prefix(),
                     .policy = kind->policy(options.get()),
                     .options = record_of(config, task)};
  if (weights.lora) source.options.merge(adapter_options(*weights.lora));
  source.make = [kind, options, name = config.model.name, lora = weights.lora, policy = source.policy,
                 roles = config.kinds.roles] {
    std::shared_ptr<nn::Model> model = kind->make(options.get());
    TRIREME_REQUIRE(model != nullptr, "the function that makes the model \"{}\" returned nothing", name);
    if (lora) add_adapters(*model, *lora, kind->head_prefix(), policy, roles);
    return model;
  };
  const auto make = [source, kind, options] {
    auto made = source;
    made.model = source.make();
    for (const auto& field : kind->fields().fields)
      made.options["model." + field.key] = config::to_toml(field.get(options.get()));
    return made;
  };
  return {kind, options, make};
}

ChosenModel model_of_program(const RunConfig& config, const std::function<ModelSource()>& make,
                             const ChosenTask& task) {
  return {.source = [make, record = record_of(config, task)] {
    auto source = make();
    if (!source.make) source.make = [make] { return make().model; };
    for (const auto& [key, value] : record) source.options[key] = value;
    return source;
  }};
}

}  // namespace trireme::train
