// The kinds of data sets whose images are in a few files: mnist, cifar10 and cifar100.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <numeric>
#include <sstream>
#include <utility>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/data/class_names.h"
#include "datasets/cifar.h"
#include "datasets/datasets.h"
#include "datasets/image_options.h"
#include "datasets/stored_images.h"

namespace trireme::datasets {
namespace {

namespace fs = std::filesystem;

/// A data set whose files have fixed names.
struct StoredKind {
  std::string name, what;
  std::vector<std::string> subfolders;   ///< in which the files may be, besides the folder itself
  std::vector<std::string> first_files;  ///< by one of which the folder is found
  bool compressed;                       ///< or by one of them with ".gz"
  std::int64_t side;
  Normalisation usual;
  StoredSplits (*read)(const std::string& folder, const StoredImageOptions& options);
};

Fields<StoredImageOptions> fields_of(const StoredKind& kind) {
  using O = StoredImageOptions;
  Fields<O> rows("data", kind.what);
  rows.with("name", kind.name);
  rows.add("path", &O::path, fmt::format("The folder with {}; required.", kind.first_files.front()), {.path = true});
  add_image_fields(rows, kind.side, kind.usual);
  rows.add("validation_images", &O::validation_images,
           "Number of training images, the last ones, that are the validation split; the test files are then the test "
           "split. 0: the test files are the validation split, and there is no test split.",
           {.min = 0, .max = kMostSamples});
  return require_path(rows);
}

/// The folder that holds the files. @throws DataError
std::string find_folder(const StoredImageOptions& options, const StoredKind& kind) {
  std::vector<std::string> folders{options.path};
  for (const auto& name : kind.subfolders) folders.push_back((fs::path(options.path) / name).string());
  for (const auto& folder : folders)
    for (const auto& file : kind.first_files)
      for (const auto* ending : {"", ".gz"})
        if (std::error_code error; (ending[0] == '\0' || kind.compressed) &&
                                   fs::is_regular_file(fs::path(folder) / (options.prefix + file + ending), error))
          return folder;
  throw DataError(fmt::format("{}: there is no {}{} in this folder; name the folder that has {}'s files", options.path,
                              options.prefix, text::join(kind.first_files, " or "), kind.name));
}

/// The classes of MNIST's own files are the digits; those of others, which `prefix` names, are in EMNIST's mapping,
/// whose lines are a label and the codes of its characters, or the numbers up to the largest label.
StoredSplits read_idx_files(const std::string& folder, const StoredImageOptions& options) {
  const auto& prefix = options.prefix;
  std::error_code error;
  const auto has = [&](const char* name) { return fs::exists(fs::path(folder) / (prefix + name), error); };
  const bool test = has("test-images-idx3-ubyte") || has("test-images-idx3-ubyte.gz");
  StoredSplits out{read_mnist(folder, prefix + "train"), read_mnist(folder, prefix + (test ? "test" : "t10k")), {}};
  std::vector<std::int64_t> numbers;
  const auto path = fs::path(folder) / (prefix + "mapping.txt");
  if (std::ifstream mapping(path); !prefix.empty() && mapping) {
    for (std::string line; std::getline(mapping, line);) {
      std::int64_t label = 0;
      int code = 0;
      if (!(std::istringstream(line) >> label >> code) || code <= ' ' || code > '~')
        throw DataError(
            fmt::format("{}: line {} is no label with the code of a character", path.string(), numbers.size() + 1));
      numbers.push_back(label);
      out.classes.emplace_back(1, static_cast<char>(code));
    }
    if (numbers.empty()) throw DataError(fmt::format("{}: it names no class", path.string()));
  } else {
    std::int64_t most = 9;
    if (!prefix.empty())
      for (const auto* images : {&out.train, &out.test})
        most = std::max(most, *std::max_element(images->labels.begin(), images->labels.end()));
    out.classes = data::numbered_names(static_cast<std::size_t>(most + 1));
    numbers.resize(out.classes.size());
    std::iota(numbers.begin(), numbers.end(), 0);
  }
  for (auto* images : {&out.train, &out.test}) number_classes(*images, numbers);
  return out;
}

data::Datasets open_stored(StoredImageOptions& options, const data::OpenContext& context, const StoredKind& kind) {
  auto [train, test, classes] = kind.read(find_folder(options, kind), options);
  fill_normalisation(options, context, kind.usual);
  if (context.skip_bad_samples)
    config::fail(context.section, "on_bad_sample",
                 fmt::format("has no effect with {}, whose images are read at once; remove it", kind.name));
  const auto count = train.pixels.size(0), held_out = options.validation_images;
  if (held_out >= count)
    config::fail(context.section, "validation_images",
                 fmt::format("leaves none of the {} training images to train on; lower it", count));
  const auto source = [&context](const StoredImages& images) {
    return context.shard_data ? stored_source(images, context.launch.rank, context.launch.size) : stored_source(images);
  };
  PixelSources sources;
  sources[data::Split::train] = source(part_of(train, 0, count - held_out));
  sources[data::Split::validation] = source(held_out > 0 ? part_of(train, count - held_out, count) : test);
  if (held_out > 0) sources[data::Split::test] = source(test);
  auto out = image_splits(sources, std::move(classes), options, kind.side, /*cache_mb=*/0, context);
  out.info.source = options.path;
  return out;
}

data::DatasetFactory factory_of(const StoredKind& kind, const Fields<StoredImageOptions>& fields,
                                StoredImageOptions options) {
  return {
      fields, std::move(options),
      [&kind](StoredImageOptions& own, const data::OpenContext& context) { return open_stored(own, context, kind); },
      [&kind](StoredImageOptions& own, const data::OpenContext& context, const std::vector<std::string>& paths) {
        return open_image_files(own, kind.usual, kind.side, context, paths);
      }};
}

}  // namespace

data::DatasetFactory mnist(StoredImageOptions options) {
  static const StoredKind kind{
      "mnist",
      "MNIST's files of handwritten digits, or others in their format (Fashion-MNIST, EMNIST): grey images, compressed "
      "or not.",
      {"raw", "MNIST/raw"},
      {"train-images-idx3-ubyte"},
      /*compressed=*/true,
      28,
      {{0.1307}, {0.3081}},
      read_idx_files};
  static const auto fields = [] {
    auto rows = fields_of(kind);
    rows.add("prefix", &StoredImageOptions::prefix,
             "What the names of the files begin with, such as \"emnist-letters-\"; the classes are then those of its "
             "mapping.txt, else the numbers up to the largest label. Empty: MNIST's names and ten classes.");
    return rows;
  }();
  return factory_of(kind, fields, std::move(options));
}

data::DatasetFactory cifar10(StoredImageOptions options) {
  static const StoredKind kind{
      "cifar10",
      "CIFAR-10's files, binary or for Python: 32 x 32 colour images of ten classes.",
      {"cifar-10-batches-bin", "cifar-10-batches-py"},
      {"data_batch_1.bin", "data_batch_1"},
      /*compressed=*/false,
      32,
      {{0.4914, 0.4822, 0.4465}, {0.2470, 0.2435, 0.2616}},
      [](const std::string& folder, const StoredImageOptions&) { return read_cifar(folder, kCifar10); }};
  static const auto fields = fields_of(kind);
  return factory_of(kind, fields, std::move(options));
}

data::DatasetFactory cifar100(StoredImageOptions options) {
  static const StoredKind kind{
      "cifar100",
      "CIFAR-100's files, binary or for Python: 32 x 32 colour images of a hundred (fine) classes.",
      {"cifar-100-binary", "cifar-100-python"},
      {"train.bin", "train"},
      /*compressed=*/false,
      32,
      {{0.5071, 0.4865, 0.4409}, {0.2673, 0.2564, 0.2762}},
      [](const std::string& folder, const StoredImageOptions&) { return read_cifar(folder, kCifar100); }};
  static const auto fields = fields_of(kind);
  return factory_of(kind, fields, std::move(options));
}

}  // namespace trireme::datasets
