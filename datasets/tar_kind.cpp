// The data set "tar_shards": tar archives of images and labels in WebDataset's convention.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "core/base/error.h"
#include "core/base/random.h"
#include "core/base/text.h"
#include "core/comm/host_share.h"
#include "datasets/datasets.h"
#include "datasets/image_options.h"
#include "datasets/shard_pattern.h"
#include "datasets/tar_archive.h"
#include "datasets/tar_index.h"

namespace trireme::datasets {
namespace {

constexpr std::int64_t kTarPixels = 224;
constexpr const char* kClassesFile = "classes.txt";

using ShardsBySplit = std::map<data::Split, std::vector<TarShard>>;

const std::string& shards_of(const TarShardOptions& options, data::Split split) {
  return split == data::Split::train        ? options.train
         : split == data::Split::validation ? options.validation
                                            : options.test;
}

const Fields<TarShardOptions>& tar_fields() {
  using O = TarShardOptions;
  static const auto table = [] {
    Fields<O> rows("data",
                   "Tar archives (shards) of images and labels as WebDataset writes them: members KEY.jpg (or another "
                   "image) and KEY.cls, the number of the class, or KEY.json with an integer \"label\" or \"cls\".");
    rows.with("name", "tar_shards");
    rows.add(
            "train", &O::train,
            "The shards of the training split: \"train-{0000..0146}.tar\", \"train-*.tar\", a folder, which stands for "
            "its *.tar, or one file; or a command that writes one to its standard output, \"pipe:aws s3 cp "
            "s3://bucket/train-{0000..0146}.tar -\"; required.",
            {.path = true})
        .add("validation", &O::validation, "The shards of the validation split, as for train; required.",
             {.path = true})
        .add("test", &O::test, "The shards of the test split; empty: there is no such split.", {.path = true})
        .add("classes", &O::classes,
             "Names of the classes 0, 1, ... Empty: the lines of classes.txt in the folder of the first training "
             "shard, else the numbers up to the largest label.")
        .add("shuffle_buffer", &O::shuffle_buffer,
             "Shuffling reads the shards in a random order, one after the other, and takes each sample at random from "
             "this many ones that come next. 1: only the shards' order is random.",
             {.min = 1, .max = kMostSamples});
    rows.add("shard_cache_gb", &O::shard_cache_gb,
             "Shards that commands have written, in units of 10^9 bytes, that each machine keeps in "
             "$XDG_CACHE_HOME/trireme/shards, or else ~/.cache/trireme/shards; those used longest ago are removed and, "
             "when they are read, fetched again. Unset: as many as leave 5 % of the disk free.",
             {.above = 0});
    add_image_fields(rows, kTarPixels);
    add_decoding_fields(rows);
    return rows.rule([](const O& o, const CheckedSection& section) {
      for (const auto split : data::kSplits) {
        const auto& shards = shards_of(o, split);
        if (shards.empty() && split != data::Split::test)
          section.fail(data::name_of(split),
                       "is required with name = \"tar_shards\": the shards, such as \"train-{0000..0146}.tar\"");
        if (is_command(shards) && shards.find_first_not_of(" \t\n", kCommandPrefix.size()) == shards.npos)
          section.fail(data::name_of(split), "has no command behind pipe:");
        if (shards.find("://") != shards.npos && !is_command(shards))
          section.fail(data::name_of(split),
                       "names no file; write the command that fetches it: \"pipe:curl -sf https://...\"");
      }
      if (o.shard_cache_gb && !std::any_of(std::begin(data::kSplits), std::end(data::kSplits),
                                           [&](auto split) { return is_command(shards_of(o, split)); }))
        section.fail("shard_cache_gb", "has no effect, because no split has a command (\"pipe:...\"); remove it");
    });
  }();
  return table;
}

/// The lines of a file of class names; none when there is no such file. @throws DataError
std::vector<std::string> read_classes(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::vector<std::string> names;
  for (std::string line; std::getline(file, line);) {
    if (line.ends_with('\r')) line.pop_back();
    if (line != text::printable(line)) throw DataError(fmt::format("{}: is not UTF-8", path.string()));
    names.push_back(std::move(line));
  }
  while (!names.empty() && names.back().empty()) names.pop_back();
  if (const auto empty = std::find(names.begin(), names.end(), ""); empty != names.end())
    throw DataError(fmt::format("{}: line {} is empty; it must name class {}", path.string(), empty - names.begin() + 1,
                                empty - names.begin()));
  return names;
}

/// The names of the classes; `source` receives what they come from.
std::vector<std::string> classes_of(const TarShardOptions& options, const ShardsBySplit& splits, std::string& source) {
  source = "data.classes";
  if (!options.classes.empty()) return options.classes;
  if (const auto& first = splits.at(data::Split::train).front().path; !is_command(first)) {
    const auto path = std::filesystem::path(first).parent_path() / kClassesFile;
    source = path.string();
    if (auto names = read_classes(path); !names.empty()) return names;
  }
  std::int32_t largest = 0;
  for (const auto& [split, shards] : splits)
    for (const auto& shard : shards)
      for (const auto& image : shard.images) largest = std::max(largest, image.label);
  std::vector<std::string> names;
  for (std::int32_t label = 0; label <= largest; ++label) names.push_back(std::to_string(label));
  return names;
}

/// @throws DataError that names the first sample whose label is no class
void check_tar_labels(const ShardsBySplit& splits, std::size_t classes, const std::string& source, ShardCache& cache) {
  for (const auto& [split, shards] : splits)
    for (const auto& shard : shards)
      for (const auto& image : shard.images) {
        if (static_cast<std::size_t>(image.label) < classes) continue;
        std::string header(static_cast<std::size_t>(kTarBlock), '\0');
        cache.open(shard.path, TarFile::Access::headers, content_of(shard))->read(image.offset - kTarBlock, header);
        throw DataError(fmt::format(
            "{}: {}: the label {} is not 0 to {}: {} has {} names; correct the label or add names", shard.path,
            text::printable(tar_member_name(header).value_or("")), image.label, classes - 1, source, classes));
      }
}

std::vector<TarShard> open_shards(const std::string& pattern, data::Split split, ShardCache& cache,
                                  const data::OpenContext& context) {
  // One rank of each host makes the index for all. It is the first process to run the commands, also in a check of the
  // configuration, whose log is silent.
  const Log log(cache.runs_commands() ? context.launch.local_rank : 1);
  auto shards = parse_shards(comm::share_on_host(context.launch, fmt::format("index {}", pattern), [&] {
    return serialize_shards(index_shards(expand_shards(pattern), cache, log));
  }));
  TRIREME_CHECK(shards, "the index of {} is damaged", pattern);
  std::int64_t without_image = 0;
  for (const auto& shard : *shards) without_image += shard.without_image;
  if (without_image > 0)
    context.log.note("data: {} in the shards of the {} split without an image ({}) and {} ignored",
                     without_image == 1 ? "1 key is" : text::thousands(without_image) + " keys are",
                     data::name_of(split), image_endings(), without_image == 1 ? "was" : "were");
  return *std::move(shards);
}

/// Depends on the keys, the labels and how many samples each shard has, not on the names of the shards.
std::string digest_of_shards(const std::vector<TarShard>& shards) {
  std::uint64_t sum = shards.size();
  for (const auto& shard : shards) sum = random::mix(sum + shard.images.size(), shard.digest);
  return fmt::format("{:016x}", sum);
}

/// Training on the images of an evaluation would make its result worthless.
void check_disjoint(const ShardsBySplit& splits) {
  std::set<std::string> trained;
  for (const auto& shard : splits.at(data::Split::train)) trained.insert(shard.path);
  for (const auto& [split, shards] : splits)
    for (const auto& shard : shards)
      if (split != data::Split::train && trained.contains(shard.path))
        throw DataError(
            fmt::format("{}: this shard is in the train split and in the {} split; name the shards of each, "
                        "such as \"train-*.tar\"",
                        shard.path, data::name_of(split)));
}

data::Datasets open_tar_shards(TarShardOptions& options, const data::OpenContext& context) {
  fill_normalisation(options, context);
  const auto cache = std::make_shared<ShardCache>(
      ShardCacheOptions{.most_gb = options.shard_cache_gb, .runs_commands = options.runs_commands});
  ShardsBySplit splits;
  for (const auto split : data::kSplits)
    if (const auto& pattern = shards_of(options, split); !pattern.empty())
      splits[split] = open_shards(pattern, split, *cache, context);
  check_disjoint(splits);
  std::string names_from;
  auto classes = classes_of(options, splits, names_from);
  check_tar_labels(splits, classes.size(), names_from, *cache);
  auto digest = digest_of_shards(splits.at(data::Split::train));
  PixelSources sources;
  for (auto& [split, shards] : splits)
    sources[split] = tar_source(std::move(shards), options.shuffle_buffer, decoding_of(options), cache);
  auto out = image_splits(sources, std::move(classes), options, kTarPixels, options.cache_mb, context);
  out.info.source = options.train;
  out.info.digest = std::move(digest);
  return out;
}

}  // namespace

data::DatasetFactory tar_shards(TarShardOptions options) {
  return {tar_fields(), std::move(options), open_tar_shards,
          [](TarShardOptions& own, const data::OpenContext& context, const std::vector<std::string>& paths) {
            return open_image_files(own, kUsualNormalisation, kTarPixels, context, paths, decoding_of(own));
          }};
}

}  // namespace trireme::datasets
