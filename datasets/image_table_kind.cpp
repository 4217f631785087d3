// The data set "image_table": images that tables list, with their targets.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string_view>
#include <utility>

#include "core/base/error.h"
#include "core/base/files/digest.h"
#include "core/base/text.h"
#include "core/comm/host_share.h"
#include "datasets/datasets.h"
#include "datasets/folder_entries.h"
#include "datasets/image_options.h"
#include "datasets/parallel.h"
#include "datasets/tables/split_tables.h"
#include "datasets/text/line_reader.h"

namespace trireme::datasets {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kTablePixels = 224;
constexpr std::size_t kLookUps = 16;  // at once: on a network disk each is a request

const Fields<ImageTableOptions>& image_table_fields() {
  using O = ImageTableOptions;
  static const auto table = [] {
    Fields<O> rows("data",
                   "Images that tables list, with classes, labels or numbers. A table's ending says its format: .csv, "
                   ".tsv (columns between tabs), or .jsonl (an object a line).");
    rows.with("name", "image_table");
    add_table_fields(rows, "images");
    rows.add("image", &O::image,
             "Column of the image's file. Unset: file_name, image, path or file, whichever the tables have.")
        .add("images", &O::images, "The folder that the files are relative to. Empty: that of the table.",
             {.path = true})
        .add("split", &O::split,
             "Column that says the split of each row: train, validation (or valid, val, dev) or test; train then names "
             "the only table. Empty: there is a table for each split.");
    add_image_fields(rows, kTablePixels);
    add_decoding_fields(rows);
    return rows.rule([](const O& o, const CheckedSection& section) {
      if (!o.split.empty() && (o.path + o.validation + o.test).size() > 0)
        section.fail("split", "needs one table for all splits, which train names; remove path, validation and test");
    });
  }();
  return table;
}

/// The images of a split.
struct ImageRows {
  std::vector<std::string> files;  ///< as in the table
  TableTargets targets;
};
using ImageTable = std::map<data::Split, ImageRows>;

/// @throws DataError with the line
data::Split split_named(std::string_view name, const std::string& path, std::int64_t line) {
  for (const auto split : data::kSplits)
    if (const auto& names = split_names(split); std::find(names.begin(), names.end(), name) != names.end())
      return split;
  fail_at_line(path, line,
               fmt::format("the split \"{}\" is unknown; write train, validation (or valid, val, dev) or test", name));
}

fs::path folder_of(const std::string& table, const ImageTableOptions& options) {
  return options.images.empty() ? fs::path(table).parent_path() : fs::path(options.images);
}

/// The rows of a table, which is that of `split` unless a column says the split. Without `skip_bad`, each file is
/// looked up.
ImageTable read_images(const std::string& path, data::Split split, const ImageTableOptions& options, bool skip_bad) {
  std::vector<TableColumn> columns{{"image", options.image
                                                 ? std::vector{*options.image}
                                                 : std::vector<std::string>{"image", "path", "file", "file_name"}}};
  if (!options.split.empty()) columns.push_back({"split", {options.split}});
  const auto first_target = columns.size();
  for (auto& column : target_columns(options, split == data::Split::test)) columns.push_back(std::move(column));
  const auto folder = folder_of(path, options);
  ImageTable out;
  std::vector<std::pair<std::int64_t, std::string>> looked_up;  // files with their lines
  const auto rows_of = [&](data::Split of) -> ImageRows& {
    return out.try_emplace(of, ImageRows{{}, TableTargets(path, options)}).first->second;
  };
  if (options.split.empty()) rows_of(split);  // also of a table without targets
  read_table(path, columns, [&](const TableRow& row) {
    const std::string file(row.cells[0].text);
    if (!skip_bad) looked_up.emplace_back(row.line, (folder / file).string());
    auto& rows = rows_of(options.split.empty() ? split : split_named(row.cells[1].text, path, row.line));
    rows.files.push_back(file);
    rows.targets.add(row.line, std::span(row.cells).subspan(first_target));
  });
  (void)make_all(looked_up.size(), kLookUps, [&](std::size_t i) {
    const auto& [line, file] = looked_up[i];
    const auto* problem = file_problem(file);
    if (problem != nullptr)
      fail_at_line(path, line,
                   fmt::format("{}: {}; correct the row, or set data.on_bad_sample = \"skip\" to continue without it",
                               file, problem));
    return problem;
  });
  return out;
}

/// Adds the rows of a table, which one rank of each host reads.
void add_images(ImageTable& all, const std::string& path, data::Split split, const ImageTableOptions& options,
                const data::OpenContext& context) {
  const auto bytes = comm::share_on_host(context.launch, "table " + path, [&] {
    Packer out;
    for (const auto& [of, rows] : read_images(path, split, options, context.skip_bad_samples)) {
      out.add(static_cast<std::int64_t>(of));
      rows.targets.pack(out);
      for (const auto& file : rows.files) out.add(file);
    }
    return out.bytes;
  });
  for (Unpacker in(bytes); !in.at_end();) {
    const auto of = static_cast<data::Split>(in.number());
    ImageRows rows{{}, TableTargets::unpack(path, options, in)};
    while (std::ssize(rows.files) < rows.targets.size()) rows.files.push_back(in.text());
    all.emplace(of, std::move(rows));
  }
}

class TableSource : public PixelSource {
 public:
  TableSource(ImageRows rows, const ImageTableOptions& options)
      : rows_(std::move(rows)), folder_(folder_of(rows_.targets.path(), options)), decoding_(decoding_of(options)) {}
  [[nodiscard]] std::int64_t size() const override { return rows_.targets.size(); }
  [[nodiscard]] std::int64_t label(std::int64_t index) const override { return rows_.targets.class_of(index); }
  [[nodiscard]] nn::SampleTensor target_spec() const override { return rows_.targets.spec(); }
  [[nodiscard]] at::Tensor target(std::int64_t index) const override { return rows_.targets.label(index); }
  [[nodiscard]] DecodedImage load(std::int64_t index) const override {
    const auto file = (folder_ / rows_.files.at(static_cast<std::size_t>(index))).string();
    return decode_file(file, decoding_);
  }

 private:
  ImageRows rows_;
  fs::path folder_;
  Decoding decoding_;
};

/// Of the names of the training images, as they are in the table, and of their targets.
std::string digest_of(const ImageRows& rows) {
  std::uint32_t names = 0;
  for (const auto& file : rows.files) names = crc32(names, file.c_str(), file.size() + 1);
  return fmt::format("{:08x}{}", names, rows.targets.digest());
}

/// The images of each split, by tables or by the column data.split.
ImageTable read_splits(const ImageTableOptions& options, const data::OpenContext& context) {
  ImageTable out;
  if (options.split.empty()) {
    // The Hugging Face Hub's folders of images have train/metadata.csv.
    for (const auto& [split, path] :
         split_tables(options, "images", context, {"/metadata.csv", "/metadata.tsv", "/metadata.jsonl"}))
      add_images(out, path, split, options, context);
    return out;
  }
  add_images(out, options.train, data::Split::train, options, context);
  const auto missing = [&](const char* split, const char* remedy) {
    return DataError(
        fmt::format("{}: no row has the split {} in the column \"{}\"{}", options.train, split, options.split, remedy));
  };
  if (!out.contains(data::Split::train)) throw missing("train", "");
  if (out.contains(data::Split::validation))
    refuse_held_out(options, fmt::format("{} has a validation split", options.train), context);
  else if (options.taken_by() == nullptr)
    throw missing("validation",
                  " (or valid, val, dev); or set data.validation_share, which takes it from the training images");
  return out;
}

data::Datasets open_image_table(ImageTableOptions& options, const data::OpenContext& context) {
  fill_normalisation(options, context);
  auto tables = read_splits(options, context);
  auto classes = number_targets(tables, context.log);
  const auto& train = tables.at(data::Split::train);
  check_mixing(options, train.targets.spec(), train.targets.path(), context);
  auto digest = digest_of(train);
  PixelSources sources;
  for (auto& [split, rows] : tables) sources[split] = std::make_shared<TableSource>(std::move(rows), options);
  if (options.taken_by() != nullptr)
    hold_out_images(sources, options, source_of(options), classes, context.log, digest);
  auto out = image_splits(sources, std::move(classes), options, kTablePixels, options.cache_mb, context);
  out.info.source = source_of(options);
  out.info.digest = std::move(digest);
  return out;
}

}  // namespace

data::DatasetFactory image_table(ImageTableOptions options) {
  return {image_table_fields(), std::move(options), open_image_table,
          [](ImageTableOptions& own, const data::OpenContext& context, const std::vector<std::string>& paths) {
            auto samples = open_image_files(own, kUsualNormalisation, kTablePixels, context, paths, decoding_of(own));
            samples.numbers = own.numbers;
            return samples;
          }};
}

}  // namespace trireme::datasets
