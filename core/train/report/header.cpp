#include "core/train/report/header.h"

#include <fmt/format.h>
#include <torch/version.h>

#include <algorithm>

#include "core/base/text.h"
#include "core/base/version.h"
#include "core/data/class_names.h"
#include "core/nn/parameters.h"
#include "core/setup/lora.h"

namespace trireme::train {
namespace {

std::string data_line(const RunSetup& setup) {
  const auto count = [](const std::shared_ptr<data::Dataset>& split) {
    return text::thousands(split ? split->size() : 0);
  };
  const auto& spec = setup.data.info.spec;
  auto line = fmt::format("{}: {} train, {} validation, {} test", setup.data.info.source, count(setup.data.train),
                          count(setup.data.validation), count(setup.data.test));
  auto classes = data::distinct_names(spec.class_names);
  const auto total = classes.size();
  if (total > 8) classes.resize(8);
  if (total > 0) line += fmt::format("; {} classes: {}{}", total, text::join(classes), total > 8 ? ", ..." : "");
  if (!setup.data.info.about.empty()) return line + "; " + setup.data.info.about;
  for (const auto& input : spec.inputs) line += "; " + input.text();
  return line;
}

std::string run_line(const RunSetup& setup, Boosted& run) {
  const auto& train = setup.config.train;
  const auto micro = run.loader->micro_per_step();
  // The same configuration runs on more ranks, where a rank's share can be less than a microbatch.
  const auto cut = train.micro_batch.value_or(0) > setup.batch.micro
                       ? fmt::format("; micro_batch {} is more than a rank's share", *train.micro_batch)
                       : std::string();
  const auto examples = run.loader->size();
  const bool ends_early = setup.batch.steps < train.epochs * run.loader->steps_per_epoch();
  return fmt::format(
      "{}{} of {}, global batch {}{} ({} x {} per rank{}), {}, {}; {}, {}; seed {}; into {}",
      ends_early ? "at most " : "", text::quantity(train.epochs, "epoch"), text::quantity(examples, "example"),
      train.global_batch, train.global_batch > examples ? ", which is more than the data set has" : "", micro,
      setup.batch.micro, cut, text::quantity(setup.batch.steps, "step"), train.precision,
      run.optimizer->report().description, run.lr_schedule->describe(), setup.config.run.seed, setup.config.run.dir);
}

std::string parameters_of(nn::Model& model, const std::vector<std::string>& freeze) {
  const auto count = nn::parameter_count(model);
  const auto text = text::quantity(count, "parameter");
  std::int64_t frozen = 0;
  for (const auto& declared : {nn::declarations(model), nn::remote_declarations(model)})
    for (const auto& [name, placement, init, value] : declared)
      if (!value.requires_grad() ||
          std::any_of(freeze.begin(), freeze.end(), [&](const auto& pattern) { return text::matches(name, pattern); }))
        frozen += placement.full_numel();
  if (frozen == 0) return text;
  return fmt::format("{}: {} trained, {} frozen", text, text::thousands(count - frozen), text::thousands(frozen));
}

}  // namespace

std::string versions_line(const comm::World& world) {
  const auto device = world.device().is_cpu() ? std::string("CPU") : fmt::format("{} per rank", world.device().str());
  const auto transport = world.size() == 1 ? std::string() : " · " + world.transport();
  return fmt::format("Trireme {} · LibTorch {} · {}{} · {}", TRIREME_VERSION, TORCH_VERSION, device, transport,
                     world.info().text());
}

std::string plugin_line(const Plugin& plugin) {
  std::vector<std::string> changed;
  for (const auto& field : plugin.fields().fields) {
    const auto value = field.get(plugin.options());
    if (value != field.default_value) changed.push_back(fmt::format("{} = {}", field.key, config::to_toml(value)));
  }
  return changed.empty() ? plugin.name() : fmt::format("{}: {}", plugin.name(), text::join(changed));
}

void print_header(Console& console, const RunSetup& setup, Boosted& run, std::int64_t staging_bytes) {
  auto& booster = *run.booster;
  auto model =
      fmt::format("{}, {}", setup.config.model.name, parameters_of(run.model->module(), setup.config.optimizer.freeze));
  if (!setup.weights.path.empty()) model += fmt::format("; from {}", setup.weights.path);
  std::vector<std::pair<std::string, std::string>> lines{
      {"layout", fmt::format("{}   {}", booster.mesh().formula(), plugin_line(booster.plugin()))}};
  for (auto& note : run.model->report().notes) lines.emplace_back("", std::move(note));
  if (!setup.planned.empty()) lines.emplace_back("", "chosen by the plan: " + setup.planned);
  lines.emplace_back("model", model);
  if (const auto& lora = setup.weights.lora) {
    const auto from = setup.weights.adapters.empty() ? "" : fmt::format("; from {}", setup.weights.adapters);
    lines.emplace_back("lora", adapters_line(*lora, run.model->module()) + from);
  }
  lines.insert(lines.end(), {{"data", data_line(setup)}, {"run", run_line(setup, run)}});
  if (const auto decay = setup.config.train.ema_decay)
    lines.push_back({"average", fmt::format("of the weights, with decay {}: evaluated and exported", *decay)});
  if (const auto& binding = booster.mesh().world().binding(); !binding.empty())
    lines.emplace_back("cores", fmt::format("of each rank near its GPU (run.bind); rank 0: {}", binding));
  if (staging_bytes > 0)
    lines.emplace_back("saves", fmt::format("in the background, from a copy in host memory: {} a rank at most",
                                            text::bytes(static_cast<double>(staging_bytes))));
  console.header(versions_line(booster.mesh().world()), lines);
}

}  // namespace trireme::train
