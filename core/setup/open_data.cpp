#include "core/setup/open_data.h"

#include <algorithm>
#include <string>
#include <utility>

#include "core/base/error.h"
#include "core/base/memory.h"
#include "core/base/text.h"
#include "core/data/class_names.h"
#include "core/data/dataset_wrapper.h"
#include "core/data/mixture.h"
#include "core/data/relabel.h"

namespace trireme::train {
namespace {

/// A data set with a program's collator.
class CollatedDataset final : public data::DatasetWrapper {
 public:
  CollatedDataset(std::shared_ptr<data::Dataset> of, DataCollator collator)
      : DatasetWrapper(std::move(of)), collator_(std::move(collator)) {}
  [[nodiscard]] data::Sample collate(std::vector<data::Sample> samples,
                                     const std::vector<std::int64_t>& indices) override {
    return collator_(std::move(samples), indices);
  }
  /// Rows are batches already.
  [[nodiscard]] data::RowSamples* rows() override { return nullptr; }

 private:
  DataCollator collator_;
};

/// Whether all are names that someone has given; Hugging Face's own are "LABEL_0", ...
bool are_given(const std::vector<std::string>& names) {
  for (std::size_t i = 0; i < names.size(); ++i)
    if (names[i].empty() || names[i] == fmt::format("LABEL_{}", i)) return false;
  return !names.empty();
}

std::string numbered(const std::vector<std::string>& classes) {
  std::vector<std::string> out;
  for (std::size_t i = 0; i < classes.size(); ++i) out.push_back(fmt::format("{} {}", i, classes[i]));
  return text::first_few(out);
}

data::OpenContext context_of(const RunConfig& config, const LoadedWeights& weights, const config::Table* section,
                             const LaunchInfo& launch, const Log& log) {
  return {.seed = static_cast<std::uint64_t>(config.run.seed),
          .skip_bad_samples = config.data.on_bad_sample == "skip",
          .shard_data = config.data.shard_data,
          .weights = weights.path,
          .section = section,
          .launch = launch,
          .log = log};
}

/// @throws ConfigError for keys that rule out a mixture
void check_mixture(const RunConfig& config) {
  const bool mixes = !config.data.mix.empty(), balances = config.data.balance_classes.value_or(0) > 0;
  if (!mixes && !balances) return;
  if (balances && config.root.value<bool>("data", "length_buckets").value_or(false))
    config::fail(config.root.table("data"), "length_buckets",
                 "has no effect with balance_classes, which draws samples of any length; remove one of the two");
  const auto* by = mixes ? "[[data.mix]]" : "data.balance_classes";
  if (config.data.shard_data)
    config::fail(
        config.root.table("data"), "shard_data",
        fmt::format("needs samples with numbers of their own, but {} draws them anew in each epoch; remove one "
                    "of the two",
                    by));
  if (!config.train.shuffle)
    config::fail(config.root.table("train"), "shuffle",
                 fmt::format("is false, but {} draws the samples at random; remove one of the two", by));
}

/// Opens all sources of the data, of which epochs are drawn.
data::Datasets open_sources(RunConfig& config, const LoadedWeights& weights, const LaunchInfo& launch, const Log& log) {
  check_mixture(config);
  const auto* section = config.root.table("data");
  const data::Shuffle shuffle{.seed = static_cast<std::uint64_t>(config.run.seed),
                              .global_batch = config.train.global_batch};
  std::vector<data::Datasets> sources;
  std::vector<double> shares;
  const auto add = [&](data::DatasetFactory& source, const config::Table* written, double weight) {
    auto opened = data::open(source, context_of(config, weights, written, launch, log));
    if (const auto balance = config.data.balance_classes.value_or(0); balance > 0) {
      const auto classes = data::classes_of_samples(*opened.train);
      if (classes.empty())
        config::fail(
            section, "balance_classes",
            fmt::format("needs one class for each sample, which {} does not have; remove it", opened.info.source));
      opened.train = data::balanced(opened.train, classes, balance, shuffle.seed);
    }
    sources.push_back(std::move(opened));
    shares.push_back(weight);
  };
  add(config.data.source, section, config.data.weight);
  for (auto& part : config.data.mix) add(part.source, &part.written, part.weight);
  return sources.size() == 1 ? std::move(sources.front()) : data::mixed(std::move(sources), shares, shuffle);
}

/// With "LABEL_0" where that is the name. @throws CheckpointError when the weights name none
std::vector<std::string> classes_of(const LoadedWeights& weights, const StoredConfig& stored) {
  auto names = stored.labels();
  if (!names.empty()) return names;
  if (!stored.content)
    throw CheckpointError(
        fmt::format("{}: nothing names the classes of these weights, so nothing can be predicted; write {} with the "
                    "names of all classes by their numbers: {{\"id2label\": {{\"0\": \"NAME\", ...}}}}",
                    weights.adapters.empty() ? weights.path : weights.adapters, stored.path));
  throw CheckpointError(
      fmt::format("{}: says no classes (id2label), so nothing can be predicted with these weights; add it, or use "
                  "weights that Trireme or transformers has exported",
                  stored.path));
}

}  // namespace

std::shared_ptr<data::Dataset> collated(std::shared_ptr<data::Dataset> data, const DataCollator& collator) {
  if (!collator || !data) return data;
  return std::make_shared<CollatedDataset>(std::move(data), collator);
}

data::Datasets numbered_as(const std::vector<std::string>& labels, data::Datasets data, const std::string& path,
                           bool trains, const Log& log) {
  const auto& classes = data.info.spec.class_names;
  if (labels.empty() || classes.empty() || labels == classes) return data;
  const bool fits = trains ? labels.size() == classes.size() : labels.size() >= classes.size();
  const bool named = are_given(labels);
  const bool among = data::are_among(classes, labels);
  if (fits && classes == data::numbered_names(classes.size()) && !(named && among)) {
    if (named) log.note("labels   named as in {}: {}", path, numbered(labels));
    return data::rename_classes(std::move(data), named ? labels : data::numbered_names(labels.size()));
  }
  if (!named) return data;
  if (const auto alike = data::alike_classes(labels);
      alike && std::is_permutation(labels.begin(), labels.end(), classes.begin(), classes.end()))
    throw ConfigError(
        fmt::format("{}: the labels {} and {} of these weights are both named \"{}\", and the data has its classes in "
                    "another order, so which of them is which is not known; number the labels of the data as the "
                    "weights do, and name its classes in their order: {}",
                    path, alike->first, alike->second, labels[alike->first], numbered(labels)));
  if (fits && among) {
    log.note("labels   numbered as in {}: {}", path, numbered(labels));
    return data::relabel(std::move(data), labels);
  }
  if (!trains)
    throw ConfigError(
        fmt::format("{}: these weights are for the classes {}, but the data has {}; evaluate on data with "
                    "the model's classes",
                    path, text::first_few(labels), text::first_few(classes)));
  if (labels.size() == classes.size())
    log.warn("{}: the head of these weights is for the classes {}; it is the starting point for {}", path,
             text::first_few(labels), text::first_few(classes));
  return data;
}

data::Datasets open_data(RunConfig& config, const LoadedWeights& weights, const std::string& head_prefix,
                         const LaunchInfo& launch, const Log& log, bool trains) {
  require_data(config);
  const memory::OfHost images_in_memory;  // a rank with a GPU does not hold them there
  auto data = numbered_as(config_of_classes(weights, head_prefix).labels(), open_sources(config, weights, launch, log),
                          weights.path, trains, log);
  if (config.data.mix.empty() && config.data.balance_classes.value_or(0) == 0)  // else an epoch holds what is drawn
    data.info.spec.classes_of_training = [train = data.train] { return data::classes_of_samples(*train); };
  return data;
}

OpenedFiles open_files(RunConfig& config, const LoadedWeights& weights, const std::string& head_prefix,
                       const LaunchInfo& launch, const Log& log, const std::vector<std::string>& inputs) {
  require_data(config);
  config.data.on_bad_sample = "skip";
  OpenedFiles out{.data = {},
                  .samples = data::open_files(
                      config.data.source, context_of(config, weights, config.root.table("data"), launch, log), inputs)};
  out.data.train = out.data.validation = out.samples.data;
  auto& info = out.data.info;
  info.source = config.data.name;
  info.spec = out.data.validation->spec();
  info.spec.targets.clear();
  const auto& numbers = out.samples.numbers;
  info.spec.class_names = numbers.empty() ? classes_of(weights, config_of_classes(weights, head_prefix)) : numbers;
  info.spec.classes = static_cast<std::int64_t>(info.spec.class_names.size());
  return out;
}

}  // namespace trireme::train
