// Tensors written to and read from files: every dtype and shape, files that Python wrote, slices, damaged files.
#include "core/checkpoint/formats/safetensors.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cstring>

#include "tests/unit/checkpoint/folder.h"

namespace trireme::checkpoint {
namespace {

constexpr at::ScalarType kDtypes[] = {at::kDouble, at::kFloat,        at::kHalf,          at::kBFloat16,
                                      at::kLong,   at::kInt,          at::kShort,         at::kChar,
                                      at::kByte,   at::kBool,         at::kUInt16,        at::kUInt32,
                                      at::kUInt64, at::kComplexFloat, at::kFloat8_e4m3fn, at::kFloat8_e5m2};

/// Random bits: NaN payloads, infinities and negative zeros must survive too.
at::Tensor random_bits(at::ScalarType dtype, const std::vector<std::int64_t>& shape) {
  auto out = at::zeros(shape, dtype);
  const auto bits = at::randint(0, dtype == at::kBool ? 2 : 256, {static_cast<std::int64_t>(out.nbytes())}, at::kByte);
  if (out.nbytes() > 0) std::memcpy(out.mutable_data_ptr(), bits.const_data_ptr(), out.nbytes());
  return out;
}

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  const auto x = a.contiguous(), y = b.contiguous();
  return x.scalar_type() == y.scalar_type() && x.sizes() == y.sizes() &&
         (x.nbytes() == 0 || std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0);
}

TEST(SafeTensorsFormat, EveryDtypeAndShapeBitForBit) {
  const TestFolder folder;
  std::vector<NamedValue> tensors;
  for (const auto dtype : kDtypes)
    for (const auto& shape : std::vector<std::vector<std::int64_t>>{{}, {1}, {7}, {3, 5}, {0}, {4, 0, 2}, {2, 3, 1, 5}})
      tensors.push_back({fmt::format("{}.{}", c10::toString(dtype), tensors.size()), random_bits(dtype, shape)});
  tensors.push_back({"transposed", random_bits(at::kFloat, {4, 6}).t()});
  tensors.push_back({"a part", random_bits(at::kBFloat16, {8, 6}).slice(0, 1, 8, 3)});
  const auto digest = write_safetensors(folder / "x", tensors, {{"format", "pt"}});
  EXPECT_EQ(digest_file(folder / "x"), digest);
  std::uint64_t header = 0;
  std::memcpy(&header, bytes_of(folder / "x").data(), 8);
  EXPECT_EQ(header % 8, 0u);
  const SafeTensors file(folder / "x");
  EXPECT_EQ(file.metadata().at("format"), "pt");
  ASSERT_EQ(file.tensors().size(), tensors.size());
  for (const auto& [name, value] : tensors) {
    EXPECT_TRUE(same_bits(file.read(name), value)) << name;
    EXPECT_EQ(file.tensors().at(name).begin % value.element_size(), 0u) << name;
  }
  write_safetensors(folder / "none", {});
  EXPECT_TRUE(SafeTensors(folder / "none").tensors().empty());
  EXPECT_THROW(write_safetensors(folder / "y", {{"a", at::zeros({1})}, {"a", at::zeros({1})}}), LogicError);
  expect_error(
      [&] {
        write_safetensors(folder / "y", {{"c", at::zeros({1}, at::kComplexDouble)}});
      },
      {"\"c\"", "no dtype"});
  EXPECT_EQ(names_in(folder.path()), (std::vector<std::string>{"none", "x"}));
}

TEST(SafeTensorsFormat, WrittenByPython) {
  const SafeTensors file(TRIREME_SOURCE_DIR "/tests/golden/checkpoint.safetensors");
  EXPECT_EQ(file.metadata().at("note"), "made by Python");
  const std::map<std::string, at::ScalarType> dtypes{
      {"float64", at::kDouble}, {"float32", at::kFloat}, {"float16", at::kHalf}, {"bfloat16", at::kBFloat16},
      {"int64", at::kLong},     {"int32", at::kInt},     {"int16", at::kShort},  {"int8", at::kChar}};
  for (const auto& [name, dtype] : dtypes)
    EXPECT_TRUE(same_bits(file.read(name + ".weight"), at::arange(-2, 4).to(dtype).view({2, 3}))) << name;
  EXPECT_TRUE(same_bits(file.read("uint8.weight"), at::arange(0, 6).to(at::kByte).view({2, 3})));
  EXPECT_TRUE(same_bits(file.read("bool.weight"), at::arange(0, 6).remainder(2).to(at::kBool).view({2, 3})));
  EXPECT_EQ(file.read("scalar").item<float>(), -2);
  EXPECT_EQ(file.read("empty").sizes().vec(), (std::vector<std::int64_t>{0, 4}));
  EXPECT_EQ(file.read("a \"quoted\" name/\u00fc")[4].item<float>(), 2);
  EXPECT_EQ(file.tensors().size(), 13u);
}

TEST(SafeTensorsFormat, SlicesEqualSlicesOfTheWhole) {
  const TestFolder folder;
  const auto matrix = at::arange(12 * 5, at::kFloat).view({12, 5}),
             cube = at::arange(2 * 6 * 3, at::kLong).view({2, 6, 3});
  write_safetensors(folder / "x", {{"m", matrix}, {"c", cube}, {"odd", at::zeros({3}, at::kByte)}});
  const SafeTensors file(folder / "x");
  struct Row {
    const char* name;
    at::Tensor full;
    std::vector<shard::Cut> cuts;
    std::optional<shard::Range> flat;
  };
  const std::vector<Row> rows{
      {"m", matrix, {}, {}},
      {"m", matrix, {{0, {{0, 5}}}}, {}},                   // uneven: 5 of 12
      {"m", matrix, {{0, {{5, 5}}}}, {}},                   // nothing
      {"m", matrix, {{1, {{3, 5}}}}, {}},                   // columns
      {"m", matrix, {{0, {{1, 3}, {5, 7}, {9, 11}}}}, {}},  // fused parts
      {"m", matrix, {}, shard::Range{13, 29}},              // flat
      {"m", matrix, {{0, {{1, 3}, {5, 7}, {9, 11}}}}, shard::Range{7, 26}},
      {"m", matrix, {{0, {{1, 3}, {5, 10}}}, {1, {{0, 1}, {2, 5}}}}, shard::Range{3, 20}},
      {"c", cube, {{1, {{0, 1}, {2, 4}}}}, {}},
      {"c", cube, {{2, {{1, 2}}}}, shard::Range{3, 11}},
      {"c", cube, {{0, {{1, 2}}}, {2, {{1, 3}}}}, {}},
  };
  for (const auto& row : rows) {
    auto placement = shard::Placement::whole(row.name, row.full.sizes().vec());
    placement.cuts = row.cuts;
    placement.flat = row.flat;
    EXPECT_TRUE(same_bits(file.read(row.name, placement), placement.slice(row.full))) << &row - rows.data();
    if (row.full.dim() != 2) continue;
    placement.shape = {row.full.size(1), row.full.size(0)};
    placement.cuts.assign(row.cuts.rbegin(), row.cuts.rend());
    for (auto& cut : placement.cuts) cut.dim = 1 - cut.dim;
    placement.stored_transposed = true;
    EXPECT_TRUE(same_bits(file.read(row.name, placement), placement.slice(row.full.t()))) << &row - rows.data();
  }
  expect_error(
      [&] {
        (void)file.read("m", shard::Placement::whole("m", {5, 12}));
      },
      {"\"m\" has shape [12, 5]", "[5, 12]"});
  expect_error([&] { (void)file.read("mm"); }, {folder / "x", "\"mm\""});
}

TEST(SafeTensorsFormat, TornAndHostileFiles) {
  const TestFolder folder;
  write_safetensors(folder / "x", {{"w", at::arange(100, at::kFloat)}, {"b", at::arange(3, at::kHalf)}});
  const auto good = bytes_of(folder / "x");
  for (std::size_t size = 0; size < good.size(); size += size < 160 ? 1 : 37) {
    put_bytes(folder / "torn", good.substr(0, size));
    expect_error([&] { SafeTensors file(folder / "torn"); }, {folder / "torn"});
  }
  put_bytes(folder / "long", good + "more");
  expect_error([&] { SafeTensors file(folder / "long"); }, {folder / "long", "belong to no tensor"});
  // A file with any single byte of the header changed is refused, or reading it stays inside the file.
  std::uint64_t header = 0;
  std::memcpy(&header, good.data(), 8);
  int refused = 0;
  for (std::size_t at = 0; at < 8 + header; ++at)
    for (const char change : {'\x01', '\x10'}) {
      auto bad = good;
      bad[at] = static_cast<char>(bad[at] ^ change);
      put_bytes(folder / "bad", bad);
      try {
        const SafeTensors file(folder / "bad");
        for (const auto& [name, info] : file.tensors()) (void)file.read(name);
      } catch (const CheckpointError&) {
        ++refused;
      }
    }
  EXPECT_GT(refused, static_cast<int>(header));
  expect_error([&] { SafeTensors file(folder / "none"); }, {folder / "none", "No such file"});
}

}  // namespace
}  // namespace trireme::checkpoint
