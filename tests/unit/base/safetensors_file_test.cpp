// The reader of safetensors files against files made by hand, most of them malformed.
#include "core/base/safetensors_file.h"

#include <ATen/core/Tensor.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

namespace trireme {
namespace {

class SafeTensorsFileTest : public testing::Test {
 protected:
  void TearDown() override { std::filesystem::remove(path_); }

  void write(const std::string& header, const std::string& data, std::uint64_t promised = ~0ULL) {
    if (promised == ~0ULL) promised = header.size();
    std::ofstream out(path_, std::ios::binary);
    out.write(reinterpret_cast<const char*>(&promised), 8);
    out << header << data;
  }
  std::string error() {
    try {
      SafeTensorsFile file(path_);
      return "no error";
    } catch (const FormatError& e) {
      return e.what();
    }
  }

  std::string path_ = (std::filesystem::temp_directory_path() / fmt::format("trireme_{}.safetensors", ::getpid()));
};

TEST_F(SafeTensorsFileTest, ReadsTensorsAndMetadata) {
  const float values[] = {1, 2, 3, 4, 5, 6};
  std::string data(reinterpret_cast<const char*>(values), sizeof values);
  data += std::string("\x07", 1);
  // A header of odd length leaves the floats unaligned in the file.
  write(
      R"({"w":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},"none":{"dtype":"I64","shape":[0,4],)"
      R"("data_offsets":[24,24]},"s":{"dtype":"U8","shape":[],"data_offsets":[24,25]},"__metadata__":{"format":"pt"}})",
      data);
  SafeTensorsFile first(path_);
  const SafeTensorsFile file(std::move(first));
  ASSERT_EQ(file.tensors().size(), 3U);
  EXPECT_EQ(file.metadata().at("format"), "pt");
  const auto w = file.read("w");
  EXPECT_EQ(w.sizes(), (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(w[1][2].item<float>(), 6);
  EXPECT_EQ(file.read("none").sizes(), (std::vector<std::int64_t>{0, 4}));
  EXPECT_EQ(file.read("s").item<std::int64_t>(), 7);
  EXPECT_EQ(file.entry("w").numel(), 6);
  try {
    static_cast<void>(file.read("nine"));
    FAIL();
  } catch (const FormatError& e) {
    EXPECT_EQ(std::string(e.what()), path_ + ": holds no tensor \"nine\"; did you mean \"none\"?");
  }
}

TEST_F(SafeTensorsFileTest, RefusesMalformedFiles) {
  const auto tensor = [](const char* rest) { return fmt::format(R"({{"a":{{{}}}}})", rest); };
  const std::string deep(100'000, '[');
  const struct {
    std::string header, data, says;
    std::uint64_t promised = ~0ULL;
  } cases[] = {
      {"{}", "", "its header should have 3 bytes, and 2", 3},
      {"{}", "", "not a safetensors file", 0x7FFFFFFFFFFFFFFF},
      {"https://git-lfs.github.com/spec/v1", "", "is a Git LFS pointer", 0x206e6f6973726576},  // "version "
      {"E html>", "", "it is a web page", 0x505954434f44213c},
      {"archive/data.pkl", "", "it is a PyTorch file", 0x0000080804034b50},
      {"{\"a\"", "", "not valid JSON"},
      {deep, "", "the header, line 1, column 129: nested deeper than 128 levels"},
      {"[]", "", "not an object"},
      {"{\"a\":1}", "", "tensor \"a\": has no \"dtype\""},
      {R"({"__metadata__":{"x":1}})", "", "the value of \"x\" is not a string"},
      {R"({"__metadata__":[]})", "", "\"__metadata__\" is not an object"},
      {tensor(R"("dtype":"F3","shape":[1],"data_offsets":[0,4])"), "abcd", "unknown dtype \"F3\""},
      {tensor(R"("dtype":"F32","data_offsets":[0,4])"), "abcd", "has no \"shape\""},
      {tensor(R"("dtype":"F32","shape":[1],"data_offsets":[0])"), "abcd", "has no \"data_offsets\""},
      {tensor(R"("dtype":"F32","shape":[1],"data_offsets":[0,5])"), "abcd", "lie outside the 4 bytes"},
      {tensor(R"("dtype":"F32","shape":[1],"data_offsets":[4,0])"), "abcd", "lie outside the 4 bytes"},
      {tensor(R"("dtype":"F32","shape":[1],"data_offsets":[-4,0])"), "abcd", "not a non-negative integer"},
      {tensor(R"("dtype":"F32","shape":[1.0],"data_offsets":[0,4])"), "abcd", "not a non-negative integer"},
      {tensor(R"("dtype":"F32","shape":[-1],"data_offsets":[0,4])"), "abcd", "not a non-negative integer"},
      {tensor(R"("dtype":"F32","shape":[2],"data_offsets":[0,4])"), "abcd", "needs 8 bytes, but its offsets span 4"},
      // 2^62 x 4 bytes wraps to 0, and 2^32 x 2^32 to 0: both must be refused as too many.
      {tensor(R"("dtype":"F32","shape":[4611686018427387904],"data_offsets":[0,0])"), "", "too many elements"},
      {tensor(R"("dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0])"), "", "too many elements"},
      {tensor(R"("dtype":"F32","shape":[0,18446744073709551615],"data_offsets":[0,0])"), "", "too many elements"},
      {tensor(R"("dtype":"U8","shape":[2],"data_offsets":[1,3])"), "abc", "bytes 0..1 of the data belong to no tensor"},
      {tensor(R"("dtype":"U8","shape":[2],"data_offsets":[0,2])"), "abc", "bytes 2..3 of the data belong to no tensor"},
      {R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
       "abc", "two tensors overlap at byte 1"},
      {R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})",
       "ab", "holds \"a\" twice"},
  };
  for (const auto& c : cases) {
    write(c.header, c.data, c.promised);
    EXPECT_NE(error().find(c.says), std::string::npos) << c.says << " expected, got: " << error().substr(0, 300);
    EXPECT_EQ(error().rfind(path_, 0), 0U) << "the message begins with the file";
  }
}

TEST_F(SafeTensorsFileTest, RefusesMissingShortAndIrregularFiles) {
  EXPECT_NE(error().find("cannot be opened: No such file"), std::string::npos);
  std::ofstream(path_) << "abc";
  EXPECT_NE(error().find("3 bytes are too few for a header"), std::string::npos);
  std::filesystem::remove(path_);
  std::filesystem::create_directory(path_);
  EXPECT_NE(error().find("not a regular file"), std::string::npos);
}

}  // namespace
}  // namespace trireme
