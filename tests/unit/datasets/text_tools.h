// Texts for the tests of their data sets: a folder with a cache folder of its own, and a small vocabulary.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <chrono>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "core/data/datasets.h"
#include "tests/unit/datasets/folder.h"

namespace trireme::data {

class TextTest : public testing::Test {
 protected:
  TextTest() {
    if (const char* before = ::getenv("XDG_CACHE_HOME")) cache_before_ = before;
    ::setenv("XDG_CACHE_HOME", folder_.path("cache").c_str(), 1);
  }
  ~TextTest() override {
    cache_before_ ? ::setenv("XDG_CACHE_HOME", cache_before_->c_str(), 1) : ::unsetenv("XDG_CACHE_HOME");
  }

  /// Writes a file whose last change is long ago.
  [[nodiscard]] std::string write(const std::string& name, const std::string& bytes) const {
    const auto path = folder_.write(name, bytes);
    std::filesystem::last_write_time(path, std::filesystem::file_time_type::clock::now() - std::chrono::hours(1));
    return path;
  }
  /// WordPiece with 12 tokens: [PAD] 0, [UNK] 1, [CLS] 2, [SEP] 3, [MASK] 4, then the words a to g.
  [[nodiscard]] std::string vocabulary() const {
    return write("vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nb\nc\nd\ne\nf\ng\n");
  }
  /// The message of the error with which a data set does not open; the folder's path is left out of it.
  template <class E = DataError>
  [[nodiscard]] std::string error_of(DatasetFactory source, const OpenContext& context = quiet()) const {
    auto message = testing_tools::message_of<E>([&] { data::open(source, context); });
    for (const auto prefix = folder_.path() + "/"; message.find(prefix) != message.npos;)
      message.erase(message.find(prefix), prefix.size());
    return message;
  }
  [[nodiscard]] static Datasets open(DatasetFactory source) { return data::open(source, quiet()); }
  [[nodiscard]] static OpenContext quiet() { return {.seed = 7, .log = Log(1)}; }

  testing_tools::Folder folder_;

 private:
  std::optional<std::string> cache_before_;
};

inline std::vector<std::int64_t> values_of(const at::Tensor& tensor) {
  const auto flat = tensor.contiguous();
  return {flat.const_data_ptr<std::int64_t>(), flat.const_data_ptr<std::int64_t>() + flat.numel()};
}

}  // namespace trireme::data
