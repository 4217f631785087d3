// The kinds of data sets whose images are in a few files: mnist, cifar10 and cifar100.
#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <utility>

#include "core/base/error.h"
#include "datasets/datasets.h"
#include "datasets/image_options.h"
#include "datasets/stored_images.h"

namespace trireme::datasets {
namespace {

namespace fs = std::filesystem;

/// What the files hold.
struct StoredSplits {
  StoredImages train, test;
  std::vector<std::string> classes;
};

/// A data set whose files have fixed names.
struct StoredKind {
  std::string name, what;
  std::vector<std::string> subfolders;  ///< in which the files may be, besides the folder itself
  std::string first_file;               ///< by which the folder is found, with or without ".gz"
  std::int64_t side;
  Normalisation usual;
  StoredSplits (*read)(const fs::path& folder);
};

Fields<StoredImageOptions> fields_of(const StoredKind& kind) {
  using O = StoredImageOptions;
  Fields<O> rows("data", kind.what);
  rows.with("name", kind.name);
  rows.add("path", &O::path, fmt::format("The folder with {}; required.", kind.first_file), {.path = true});
  add_image_fields(rows, kind.side, kind.usual);
  rows.add("validation_images", &O::validation_images,
           "Number of training images, the last ones, that are the validation split; the test files are then the test "
           "split. 0: the test files are the validation split, and there is no test split.",
           {.min = 0, .max = kMostSamples});
  return require_path(rows);
}

/// The folder that holds the files. @throws DataError
std::string find_folder(const std::string& path, const StoredKind& kind) {
  std::vector<std::string> folders{path};
  for (const auto& name : kind.subfolders) folders.push_back((fs::path(path) / name).string());
  for (const auto& folder : folders)
    for (const auto* ending : {"", ".gz"})
      if (std::error_code error; fs::exists(fs::path(folder) / (kind.first_file + ending), error)) return folder;
  throw DataError(fmt::format("{}: there is no {} in this folder; name the folder that has {}'s files", path,
                              kind.first_file, kind.name));
}

/// Names of the classes, one a line. @throws DataError when there are fewer than `classes`
std::vector<std::string> read_names(const std::string& path, std::int64_t classes) {
  std::ifstream file(path);
  if (!file) throw DataError(fmt::format("{}: cannot be opened: {}", path, std::strerror(errno)));
  std::vector<std::string> names;
  for (std::string line; std::getline(file, line) && static_cast<std::int64_t>(names.size()) < classes;)
    if (!line.empty()) names.push_back(std::move(line));
  if (static_cast<std::int64_t>(names.size()) != classes)
    throw DataError(fmt::format("{}: has the names of {} classes instead of {}", path, names.size(), classes));
  return names;
}

data::Datasets open_stored(StoredImageOptions& options, const data::OpenContext& context, const StoredKind& kind) {
  auto [train, test, classes] = kind.read(find_folder(options.path, kind));
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
  std::map<data::Split, std::shared_ptr<PixelSource>> sources;
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
      "MNIST's files of handwritten digits, or others in their format (Fashion-MNIST): grey images, compressed or not.",
      {"raw", "MNIST/raw"},
      "train-images-idx3-ubyte",
      28,
      {{0.1307}, {0.3081}},
      [](const fs::path& folder) -> StoredSplits {
        return {read_mnist(folder.string(), "train"),
                read_mnist(folder.string(), "t10k"),
                {"0", "1", "2", "3", "4", "5", "6", "7", "8", "9"}};
      }};
  static const auto fields = fields_of(kind);
  return factory_of(kind, fields, std::move(options));
}

data::DatasetFactory cifar10(StoredImageOptions options) {
  static const StoredKind kind{"cifar10",
                               "CIFAR-10's binary files: 32 x 32 colour images of ten classes.",
                               {"cifar-10-batches-bin"},
                               "data_batch_1.bin",
                               32,
                               {{0.4914, 0.4822, 0.4465}, {0.2470, 0.2435, 0.2616}},
                               [](const fs::path& folder) -> StoredSplits {
                                 std::vector<std::string> files;
                                 for (int batch = 1; batch <= 5; ++batch)
                                   files.push_back((folder / fmt::format("data_batch_{}.bin", batch)).string());
                                 return {read_cifar(files, 1, 10),
                                         read_cifar({(folder / "test_batch.bin").string()}, 1, 10),
                                         read_names((folder / "batches.meta.txt").string(), 10)};
                               }};
  static const auto fields = fields_of(kind);
  return factory_of(kind, fields, std::move(options));
}

data::DatasetFactory cifar100(StoredImageOptions options) {
  static const StoredKind kind{"cifar100",
                               "CIFAR-100's binary files: 32 x 32 colour images of a hundred (fine) classes.",
                               {"cifar-100-binary"},
                               "train.bin",
                               32,
                               {{0.5071, 0.4865, 0.4409}, {0.2673, 0.2564, 0.2762}},
                               [](const fs::path& folder) -> StoredSplits {
                                 return {read_cifar({(folder / "train.bin").string()}, 2, 100),
                                         read_cifar({(folder / "test.bin").string()}, 2, 100),
                                         read_names((folder / "fine_label_names.txt").string(), 100)};
                               }};
  static const auto fields = fields_of(kind);
  return factory_of(kind, fields, std::move(options));
}

}  // namespace trireme::datasets
