#include "core/data/mixture.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <map>
#include <numeric>
#include <string>
#include <utility>

#include "core/base/error.h"
#include "core/base/random.h"
#include "core/base/text.h"
#include "core/data/drawn_dataset.h"
#include "core/data/relabel.h"
#include "core/data/sampler.h"
#include "core/nn/layers/index_checks.h"

namespace trireme::data {
namespace {

struct Group {
  std::size_t part = 0;
  std::int64_t size = 0;
  std::function<std::vector<std::int64_t>(std::int64_t turn)> order;  ///< its samples in their order
  std::int64_t quota = 0;                                             ///< draws in each epoch
};

/// Divides an epoch, as many samples as the groups have, in proportion to the weights, by largest remainders.
void set_quotas(std::vector<Group>& groups, const std::vector<double>& weights) {
  std::int64_t left = 0;
  for (const auto& group : groups) left += group.size;
  const auto epoch = static_cast<double>(left), sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<std::pair<double, Group*>> remainders;  // negative, so that the largest comes first
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const auto exact = epoch * (weights[g] / sum);
    groups[g].quota = static_cast<std::int64_t>(exact);
    remainders.emplace_back(static_cast<double>(groups[g].quota) - exact, &groups[g]);
    left -= groups[g].quota;
  }
  std::sort(remainders.begin(), remainders.end());
  for (std::size_t r = 0; left > 0; --left, r = (r + 1) % remainders.size()) ++remainders[r].second->quota;
}

Draws draws_of(const std::vector<Group>& groups, std::uint64_t seed, std::int64_t epoch) {
  std::vector<std::pair<double, Draw>> placed;  // by the place in the epoch, from 0 to 1
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const auto& group = groups[g];
    const auto key = random::mix(seed, random::hash("mixture"), epoch, g);
    std::vector<std::int64_t> samples;
    for (std::int64_t j = 0; j < group.quota; ++j) {
      const auto drawn = epoch * group.quota + j;
      const auto turn = drawn / group.size, at = drawn % group.size;
      if (j == 0 || at == 0) samples = group.order(turn);
      const auto place = static_cast<double>(j) + random::uniform(key, static_cast<std::uint64_t>(j));
      placed.emplace_back(place / static_cast<double>(group.quota),
                          Draw{group.part, samples.at(static_cast<std::size_t>(at)), turn});
    }
  }
  std::stable_sort(placed.begin(), placed.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  Draws out;
  std::transform(placed.begin(), placed.end(), std::back_inserter(out), [](const auto& each) { return each.second; });
  return out;
}

std::shared_ptr<Dataset> drawn(std::vector<std::shared_ptr<Dataset>> parts, std::vector<Group> groups,
                               std::uint64_t seed) {
  std::int64_t size = 0;
  for (const auto& group : groups) size += group.quota;
  return std::make_shared<DrawnDataset>(std::move(parts), size, [groups = std::move(groups), seed](std::int64_t epoch) {
    return draws_of(groups, seed, epoch);
  });
}

/// The training splits of the sources. @throws ConfigError
std::shared_ptr<Dataset> mixed_training(const std::vector<Datasets>& sources, const std::vector<double>& weights,
                                        const Shuffle& shuffle) {
  std::vector<std::shared_ptr<Dataset>> parts;
  std::vector<Group> groups;
  for (const auto& source : sources) {
    // Sources of one size would otherwise have one order, and their i-th samples would always meet.
    const auto seed = random::mix(shuffle.seed, random::hash("source"), parts.size());
    groups.push_back({.part = parts.size(),
                      .size = source.train->size(),
                      .order = [part = source.train, shuffle, seed](std::int64_t turn) {
                        return epoch_order(*part, Shuffle{seed, turn, shuffle.global_batch});
                      }});
    parts.push_back(source.train);
  }
  set_quotas(groups, weights);
  for (const auto& group : groups)
    if (group.quota == 0)
      throw ConfigError(fmt::format("{}: its weight of {} gives it no sample of an epoch; raise it",
                                    sources[group.part].info.source, weights[group.part]));
  return drawn(std::move(parts), std::move(groups), shuffle.seed);
}

/// All samples of a split, one source after the other; null where no source has it.
std::shared_ptr<Dataset> joined(std::vector<Datasets>& sources, Split split) {
  std::vector<std::shared_ptr<Dataset>> parts;
  std::int64_t size = 0;
  for (auto& source : sources)
    if (const auto& part = source.of(split)) {
      parts.push_back(part);
      size += part->size();
    }
  if (parts.empty()) return nullptr;
  return std::make_shared<DrawnDataset>(parts, size, [parts](std::int64_t epoch) {
    Draws out;
    for (std::size_t p = 0; p < parts.size(); ++p)
      for (std::int64_t i = 0; i < parts[p]->size(); ++i) out.push_back({p, i, epoch});
    return out;
  });
}

std::string tensors_text(const std::vector<nn::SampleTensor>& tensors) {
  std::vector<std::string> out;
  for (const auto& tensor : tensors) out.push_back(tensor.text());
  return text::join(out);
}

/// @throws ConfigError when samples of the two cannot be in one batch, or were not prepared alike
void check_alike(const Datasets& first, const Datasets& other) {
  const auto refuse = [&](const std::string& what) {
    throw ConfigError(fmt::format("{}: {}, so its samples cannot be mixed with those of {}; give both the same keys",
                                  other.info.source, what, first.info.source));
  };
  const auto &a = first.info.spec, &b = other.info.spec;
  for (const auto tensors : {&nn::DataSpec::inputs, &nn::DataSpec::targets})
    if (a.*tensors != b.*tensors)
      refuse(fmt::format("has {}, not {}", tensors_text(b.*tensors), tensors_text(a.*tensors)));
  if (a.vocabulary != b.vocabulary) refuse("has another tokenizer");
  for (const auto* files : {&first.info.files, &other.info.files})
    for (const auto& [name, content] : *files)
      if (!first.info.files.contains(name) || !other.info.files.contains(name) ||
          first.info.files.at(name) != other.info.files.at(name))
        refuse(fmt::format("is prepared otherwise ({} differs)", name));
  if (first.train->combined_targets() != other.train->combined_targets()) refuse("has other keys for mixup and cutmix");
}

}  // namespace

Datasets mixed(std::vector<Datasets> sources, const std::vector<double>& weights, const Shuffle& shuffle) {
  auto& first = sources.front();
  const auto classes = first.info.spec.class_names;
  for (auto& source : sources) {
    const auto& own = source.info.spec.class_names;
    if (own != classes && !are_among(own, classes))
      throw ConfigError(fmt::format("{}: has the classes {}, but {}, which says the classes, has {}",
                                    source.info.source, text::first_few(own), first.info.source,
                                    text::first_few(classes)));
    if (own != classes) source = relabel(std::move(source), classes);
    check_alike(first, source);
  }
  Datasets out;
  out.info = first.info;
  out.info.digest = out.info.source = "";
  auto& spec = out.info.spec;
  for (std::size_t i = 0; i < sources.size(); ++i) {
    const auto& info = sources[i].info;
    out.info.source += (i == 0 ? "" : " + ") + info.source;
    out.info.digest += fmt::format("{}{} by {}", i == 0 ? "" : " + ", info.digest, weights[i]);
    spec.ignored_labels = spec.ignored_labels || info.spec.ignored_labels;
    spec.longest = std::max(spec.longest, info.spec.longest);
  }
  out.info.about =
      fmt::format("mixed {}{}{}", fmt::join(weights, " : "), out.info.about.empty() ? "" : "; ", out.info.about);
  out.train = mixed_training(sources, weights, shuffle);
  out.validation = joined(sources, Split::validation);
  out.test = joined(sources, Split::test);
  return out;
}

std::vector<std::int64_t> classes_of_samples(Dataset& data) {
  const auto spec = data.spec();
  const auto* labels = spec.target(nn::kLabels);
  if (labels == nullptr || labels->dtype != at::kLong || !labels->shape.empty()) return {};
  std::vector<std::int64_t> out;
  auto* rows = data.rows();
  for (std::int64_t i = 0; i < data.size(); ++i) {
    const auto sample = rows != nullptr ? rows->read({}, i, 0, false) : data.get_with({}, i, 0, false);
    out.push_back(sample ? sample->targets[nn::kLabels].item<std::int64_t>() : nn::kNoLabel);
  }
  if (std::all_of(out.begin(), out.end(), [](auto label) { return label == nn::kNoLabel; })) return {};
  return out;
}

std::shared_ptr<Dataset> balanced(std::shared_ptr<Dataset> data, const std::vector<std::int64_t>& classes,
                                  double balance, std::uint64_t seed) {
  std::map<std::int64_t, std::vector<std::int64_t>> members;
  for (std::size_t i = 0; i < classes.size(); ++i)
    if (classes[i] != nn::kNoLabel) members[classes[i]].push_back(static_cast<std::int64_t>(i));
  std::vector<Group> groups;
  std::vector<double> weights;
  for (auto& [label, samples] : members) {
    const auto key = random::mix(seed, random::hash("balanced"), label);
    weights.push_back(std::pow(static_cast<double>(samples.size()), 1 - balance));
    groups.push_back({.size = std::ssize(samples), .order = [samples = std::move(samples), key](std::int64_t turn) {
                        auto order = random::permutation(random::mix(key, turn), std::ssize(samples));
                        for (auto& each : order) each = samples[static_cast<std::size_t>(each)];
                        return order;
                      }});
  }
  set_quotas(groups, weights);
  return drawn({std::move(data)}, std::move(groups), seed);
}

}  // namespace trireme::data
