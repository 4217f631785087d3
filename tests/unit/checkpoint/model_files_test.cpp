// An exported model: in one file or in several with an index, in another dtype, over an earlier export.
#include "core/checkpoint/weights/model_files.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "core/checkpoint/weights/weights.h"
#include "core/checkpoint/weights/weights_source.h"
#include "tests/unit/checkpoint/folder.h"

namespace trireme::checkpoint {
namespace {

constexpr std::int64_t kRows = 800, kColumns = 300;  // 938 KiB in float32

/// "a", "b" (stored transposed), "c" and "count", which no dtype of an export changes.
std::vector<shard::Slice> model_tensors() {
  std::vector<shard::Slice> out;
  for (const auto* name : {"a", "b", "c"}) {
    auto placement = shard::Placement::whole(name, {kRows, kColumns});
    placement.stored_transposed = placement.name == "b";
    out.push_back(
        {placement, at::arange(kRows * kColumns, at::kFloat).view({kRows, kColumns}).div(1024).add(*name - 'a')});
  }
  out.push_back({shard::Placement::whole("count", {}), at::full({}, 7, at::kLong)});
  return out;
}

/// Expects that the folder's model is model_tensors(), converted.
void expect_model(const std::string& folder, at::ScalarType dtype) {
  const WeightsSource source(find_weights(folder));
  EXPECT_EQ(source.names().size(), 4U);
  for (const auto& [placement, value] : model_tensors()) {
    const auto* file = source.file_of(placement.name);
    ASSERT_NE(file, nullptr) << placement.name;
    const auto got = file->read(placement.name, placement);
    const auto wanted = value.is_floating_point() ? value.to(dtype) : value;
    EXPECT_TRUE(got.scalar_type() == wanted.scalar_type() && at::equal(got, wanted)) << placement.name;
  }
}

using Names = std::vector<std::string>;
const Names kWhole{"config.json", kModelTensors};
const Names kThree{"config.json", "model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors",
                   "model-00003-of-00003.safetensors", kModelIndex};
const Names kTwo{"config.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", kModelIndex};

struct Export {
  std::int64_t shard_mb;
  std::optional<at::ScalarType> dtype;
  Names files;
};

// Each replaces the one before it, from slices and from a file.
TEST(ModelFiles, AnExportReplacesTheOneBefore) {
  const TestFolder scratch;
  const auto source = scratch / "all.safetensors";
  write_slices(source, model_tensors(), alone());
  const std::vector<Export> rows{{0, {}, kWhole},        {1, {}, kThree},          {1, at::kBFloat16, kTwo},
                                 {2, at::kHalf, kWhole}, {2, at::kDouble, kThree}, {100, {}, kWhole}};
  for (const bool from_file : {false, true}) {
    const auto folder = scratch / (from_file ? "from_file" : "from_slices");
    for (const auto& row : rows) {
      SCOPED_TRACE(&row - rows.data());
      const ExportFormat format{row.shard_mb, row.dtype};
      if (from_file)
        export_file(source, folder, format, {{kModelConfig, "{}"}});
      else
        save_weights(folder, model_tensors(), {{kModelConfig, "{}"}}, alone(), format);
      EXPECT_EQ(names_in(folder), row.files);
      expect_model(folder, row.dtype.value_or(at::kFloat));
    }
  }
}

TEST(ModelFiles, AnExportKeepsFilesOfOtherNames) {
  const TestFolder folder;
  const Names own{"model-1-of-two.safetensors", "model-best.safetensors"};
  for (const auto& name : own) write_file(folder / name, "a user's own");
  save_weights(folder.path(), model_tensors(), {}, alone(), {.shard_mb = 1});
  save_weights(folder.path(), model_tensors(), {}, alone());
  EXPECT_EQ(names_in(folder.path()), (Names{own[0], own[1], kModelTensors}));
}

TEST(ModelFiles, TheIndexIsAsTransformersWritesIt) {
  const TestFolder folder;
  save_weights(folder.path(), model_tensors(), {}, alone(), {.shard_mb = 1});
  const auto index = read_json(folder / kModelIndex);
  EXPECT_EQ(index.at("metadata").at("total_size"), 3 * 4 * kRows * kColumns + 8);
  // The widest dtype comes first.
  EXPECT_EQ(index.at("weight_map"), (nlohmann::json{{"count", "model-00001-of-00003.safetensors"},
                                                    {"a", "model-00001-of-00003.safetensors"},
                                                    {"b", "model-00002-of-00003.safetensors"},
                                                    {"c", "model-00003-of-00003.safetensors"}}));
  EXPECT_EQ(SafeTensors(folder / "model-00002-of-00003.safetensors").info("b").shape,
            (std::vector<std::int64_t>{kColumns, kRows}));
}

TEST(ModelFiles, ValuesBeyondTheRangeOfTheDtypeAreRefused) {
  const TestFolder folder;
  const auto large = shard::Placement::whole("large", {2});
  const auto save = [&](at::ScalarType dtype, double value) {
    save_weights(folder.path(), {{large, at::full({2}, value, at::kFloat)}}, {}, alone(), {.dtype = dtype});
  };
  expect_error([&] { save(at::kHalf, 1e5); }, {"large", "beyond the range of float16"});
  EXPECT_NO_THROW(save(at::kBFloat16, 1e5));
}

}  // namespace
}  // namespace trireme::checkpoint
