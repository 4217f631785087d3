#include "core/train/header.h"

#include <fmt/format.h>
#include <torch/version.h>

#include "core/base/text.h"
#include "core/base/version.h"

namespace trireme::train {
namespace {

std::string data_line(const Prepared& p) {
  const auto count = [](const std::shared_ptr<data::Dataset>& split) {
    return text::thousands(split ? split->size() : 0);
  };
  auto classes = p.data.info.classes;
  const auto total = classes.size();
  if (total > 8) classes.resize(8);
  return fmt::format("{}: {} train, {} validation, {} test; {} classes: {}{}; {} px",
                     p.config.data.path.empty() ? p.config.data.name : p.config.data.path, count(p.data.train),
                     count(p.data.validation), count(p.data.test), total, text::join(classes), total > 8 ? ", ..." : "",
                     p.data.info.image_size);
}

std::string run_line(const Prepared& p, Boosted& run, std::int64_t total_steps) {
  const auto& train = p.config.train;
  const auto micro = run.loader->micro_per_step();
  // The same file runs on more ranks, where a share may be less than a microbatch.
  const auto cut = train.micro_batch.value_or(0) > p.micro_batch
                       ? fmt::format("; micro_batch {} is more than a rank's share", *train.micro_batch)
                       : std::string();
  return fmt::format(
      "{} epochs of {} examples, global batch {} ({} x {} a rank{}), {} steps, {}; {}, {}; seed {}; into {}",
      train.epochs, text::thousands(run.loader->size()), train.global_batch, micro, p.micro_batch, cut,
      text::thousands(total_steps), train.precision, run.optimizer->describe(), run.schedule->describe(),
      p.config.run.seed, p.config.run.dir);
}

}  // namespace

std::string versions_line(const comm::World& world) {
  const auto device = world.device().is_cpu() ? std::string("CPU") : fmt::format("{} a rank", world.device().str());
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

void print_header(Console& console, const Prepared& p, Booster& booster, Boosted& run, std::int64_t total_steps) {
  const auto count = nn::parameter_count(run.model->module());
  auto model = fmt::format("{}, {} parameters", p.config.model.name, text::thousands(count));
  if (!p.weights.empty()) model += fmt::format("; from {}", p.weights);
  std::vector<std::pair<std::string, std::string>> lines{
      {"layout", fmt::format("{}   {}", booster.mesh().formula(), plugin_line(booster.plugin()))}};
  for (auto& note : run.model->notes()) lines.emplace_back("", std::move(note));
  lines.insert(lines.end(), {{"model", model}, {"data", data_line(p)}, {"run", run_line(p, run, total_steps)}});
  console.header(versions_line(booster.mesh().world()), lines);
}

}  // namespace trireme::train
