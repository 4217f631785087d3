#include "datasets/cifar.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <utility>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/checkpoint/formats/pickle.h"
#include "datasets/image.h"

namespace trireme::datasets {
namespace {

namespace fs = std::filesystem;
using checkpoint::PickleKind;
using checkpoint::PickleValue;

constexpr std::int64_t kSide = 32, kPlane = kSide * kSide, kImageBytes = 3 * kPlane;

/// Collects records of labels and planes of red, green and blue.
class CifarImages {
 public:
  explicit CifarImages(std::int64_t classes) : classes_(classes) {}

  /// @param planes kImageBytes
  void add(const std::string& file, std::int64_t label, const char* planes) {
    if (label < 0 || label >= classes_)
      throw DataError(fmt::format("{}: label {} of image {} is not 0 to {}", file, label, in_file_, classes_ - 1));
    labels_.push_back(label);
    pixels_.resize(pixels_.size() + static_cast<std::size_t>(kImageBytes));
    auto* to = pixels_.data() + pixels_.size() - kImageBytes;
    for (std::int64_t pixel = 0; pixel < kPlane; ++pixel)
      for (std::int64_t channel = 0; channel < 3; ++channel)
        *to++ = static_cast<unsigned char>(planes[channel * kPlane + pixel]);
    ++in_file_;
  }
  void begin_file() { in_file_ = 0; }
  StoredImages images() && {
    StoredImages out;
    out.pixels = at::empty({static_cast<std::int64_t>(labels_.size()), kSide, kSide, 3}, at::kByte);
    std::memcpy(out.pixels.mutable_data_ptr(), pixels_.data(), pixels_.size());
    out.labels = std::move(labels_);
    return out;
  }

 private:
  std::int64_t classes_, in_file_ = 0;
  std::vector<unsigned char> pixels_;
  std::vector<std::int64_t> labels_;
};

std::string read_text(const std::string& path) {
  const auto bytes = read_bytes(path);
  return {bytes.begin(), bytes.end()};
}

void add_binary(CifarImages& out, const std::string& path, std::int64_t label_bytes) {
  const auto bytes = read_text(path);
  const auto record = static_cast<std::size_t>(label_bytes + kImageBytes);
  if (bytes.empty() || bytes.size() % record != 0)
    throw DataError(fmt::format("{}: {} bytes are no whole number of images of {} bytes; the file is damaged", path,
                                bytes.size(), record));
  for (std::size_t at = static_cast<std::size_t>(label_bytes); at < bytes.size(); at += record)
    out.add(path, static_cast<unsigned char>(bytes[at - 1]), bytes.data() + at);
}

/// A pickled dictionary.
class PickledDict {
 public:
  explicit PickledDict(const std::string& path) : path_(path) {
    try {
      pickle_ = checkpoint::read_pickle(path, read_text(path));
    } catch (const CheckpointError& error) {
      throw DataError(error.what());
    }
  }
  [[noreturn]] void refuse(const std::string& key, const char* what) const {
    throw DataError(fmt::format("{}: its entry \"{}\" is no {}; use a file as published, which Python 2 has written",
                                path_, key, what));
  }
  const PickleValue& find(const std::string& key) const {
    if (pickle_.root->kind == PickleKind::dict)
      for (std::size_t i = 0; i < pickle_.root->items.size(); i += 2)
        if (pickle_.root->items[i]->kind == PickleKind::text && pickle_.root->items[i]->text == key)
          return *pickle_.root->items[i + 1];
    refuse(key, "part of a dictionary");
  }
  const std::vector<const PickleValue*>& list(const std::string& key, PickleKind of) const {
    const auto& found = find(key);
    if (found.kind != PickleKind::sequence) refuse(key, "list");
    for (const auto* item : found.items)
      if (item->kind != of) refuse(key, of == PickleKind::text ? "list of texts" : "list of integers");
    return found.items;
  }
  /// The bytes of a NumPy array [count, kImageBytes] of bytes. Its state: version, shape, type, whether columns are
  /// contiguous, bytes (numpy.ndarray.__setstate__).
  std::string_view planes(const std::string& key, std::size_t count) const {
    const auto& array = find(key);
    const auto* state = array.kind == PickleKind::object && array.items.size() == 2 ? array.items[1] : nullptr;
    if (state == nullptr || state->kind != PickleKind::sequence || state->items.size() != 5 ||
        state->items[3]->kind != PickleKind::integer || state->items[3]->integer != 0 ||
        state->items[4]->kind != PickleKind::text ||
        state->items[4]->text.size() != count * static_cast<std::size_t>(kImageBytes))
      refuse(key, "array of bytes, 3072 of each image, in Python 2's form");
    return state->items[4]->text;
  }

 private:
  std::string path_;
  checkpoint::Pickle pickle_;
};

void add_pickled(CifarImages& out, const std::string& path, const std::string& labels_key) {
  const PickledDict dict(path);
  const auto& labels = dict.list(labels_key, PickleKind::integer);
  const auto planes = dict.planes("data", labels.size());
  for (std::size_t i = 0; i < labels.size(); ++i)
    out.add(path, labels[i]->integer, planes.data() + i * static_cast<std::size_t>(kImageBytes));
}

std::vector<std::string> read_names(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw DataError(fmt::format("{}: cannot be opened: {}", path, std::strerror(errno)));
  std::vector<std::string> names;
  for (std::string line; std::getline(file, line);) {
    if (line.ends_with('\r')) line.pop_back();
    if (!line.empty()) names.push_back(std::move(line));
  }
  return names;
}

std::vector<std::string> read_pickled_names(const std::string& path, const std::string& key) {
  const PickledDict dict(path);
  std::vector<std::string> names;
  for (const auto* name : dict.list(key, PickleKind::text)) names.push_back(name->text);
  return names;
}

}  // namespace

const CifarForm kCifar10{10,
                         {"data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5"},
                         "test_batch",
                         1,
                         "batches.meta.txt",
                         "batches.meta",
                         "label_names",
                         "labels"};
const CifarForm kCifar100{100, {"train"}, "test", 2, "fine_label_names.txt", "meta", "fine_label_names", "fine_labels"};

StoredSplits read_cifar(const std::string& folder, const CifarForm& form) {
  const auto path = [&](const std::string& name) { return (fs::path(folder) / name).string(); };
  std::error_code error;
  const bool binary = fs::exists(path(form.train.front() + ".bin"), error);
  const auto read = [&](const std::vector<std::string>& files) {
    CifarImages out(form.classes);
    for (const auto& file : files) {
      out.begin_file();
      if (binary)
        add_binary(out, path(file + ".bin"), form.label_bytes);
      else
        add_pickled(out, path(file), form.labels_key);
    }
    return std::move(out).images();
  };
  StoredSplits out{read(form.train), read({form.test}), {}};
  const auto names = path(binary ? form.names : form.pickled_names);
  out.classes = binary ? read_names(names) : read_pickled_names(names, form.names_key);
  for (const auto& name : out.classes)
    if (name != text::printable(name)) throw DataError(fmt::format("{}: a name is not UTF-8", names));
  if (static_cast<std::int64_t>(out.classes.size()) != form.classes)
    throw DataError(
        fmt::format("{}: has the names of {} classes instead of {}", names, out.classes.size(), form.classes));
  return out;
}

}  // namespace trireme::datasets
