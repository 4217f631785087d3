// Tensors that are stored in slices: every layout reads what every other one wrote, its own bytes alone; manifests that
// are not to be trusted are refused.
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "core/checkpoint/sharded_tensors.h"
#include "core/checkpoint/train_state.h"
#include "tests/unit/checkpoint/folder.h"

namespace trireme::checkpoint {
namespace {

namespace fs = std::filesystem;
using shard::Placement;
using shard::Range;

/// The ranks' placements of one tensor.
using Layout = std::vector<Placement>;

Placement tensor() { return Placement::whole("t", {6, 9}); }

Layout along(std::int64_t dim, int parts) {
  Layout out;
  const auto size = tensor().shape[static_cast<std::size_t>(dim)];
  for (int i = 0; i < parts; ++i) out.push_back(tensor().cut(dim, {shard::split(size, parts, i)}));
  return out;
}

/// A fused tensor of three parts, each cut in two.
Layout fused() { return {tensor().cut(1, {{0, 2}, {3, 5}, {6, 8}}), tensor().cut(1, {{2, 3}, {5, 6}, {8, 9}})}; }

/// Each slice of `layout`, which is along dim 1, in two of uneven rows.
Layout and_rows(const Layout& layout) {
  Layout out;
  for (const auto& placement : layout)
    for (const auto& rows : {Range{0, 4}, Range{4, 6}}) out.push_back(Placement(placement).cut(0, {rows}));
  return out;
}

/// Each slice of `layout` in flat ranges.
Layout flat(const Layout& layout, int parts) {
  Layout out;
  for (auto placement : layout)
    for (int i = 0; i < parts; ++i) {
      placement.flat.reset();
      placement.flat = shard::split(placement.local_numel(), parts, i);
      out.push_back(placement);
    }
  return out;
}

/// Writes the tensor as ranks with this layout would.
Manifest store(const std::string& folder, const Layout& layout, const at::Tensor& full, bool transposed,
               const std::string& parts = "") {
  Manifest manifest;
  ShardedTensor out{full.sizes().vec(), full.scalar_type(), transposed, parts, {}};
  for (std::size_t rank = 0; rank < layout.size(); ++rank) {
    if (layout[rank].local_numel() == 0) continue;
    const auto file = fmt::format("weights-{:05d}-00.safetensors", rank);
    manifest.files[file] = write_safetensors(folder + "/" + file, {{"t", layout[rank].slice(full)}});
    out.slices.push_back({file, layout[rank]});
  }
  manifest.tensors["weights"] = {{"t", out}};
  return read_part(manifest_text(manifest));
}

/// Manifests of earlier versions say the same of slices with one cut.
TEST(Manifest, WritesOneCutWithoutAList) {
  const auto text_of = [](const Placement& placement) {
    Manifest manifest;
    manifest.tensors["weights"] = {{"t", {{6, 9}, at::kFloat, false, "", {{"w", placement}}}}};
    auto text = manifest_text(manifest);
    std::erase_if(text, [](char c) { return c == ' ' || c == '\n'; });
    return text.substr(text.find("\"slices\":") + 9);
  };
  EXPECT_TRUE(text_of(tensor()).starts_with(R"([{"file":"w"}])"));
  EXPECT_TRUE(
      text_of(flat(fused(), 2)[0]).starts_with(R"([{"dim":1,"file":"w","flat":[0,18],"ranges":[[0,2],[3,5],[6,8]]}])"));
  EXPECT_TRUE(text_of(and_rows(along(1, 2))[1])
                  .starts_with(R"([{"cuts":[{"dim":0,"ranges":[[4,6]]},{"dim":1,"ranges":[[0,5]]}],"file":"w"}])"));
}

std::map<std::string, Layout> layouts() {
  return {{"whole", {tensor()}},
          {"rows", along(0, 4)},
          {"columns", along(1, 2)},
          {"fused", fused()},
          {"flat", flat({tensor()}, 5)},
          {"rows, flat", flat(along(0, 2), 3)},
          {"more ranks", along(0, 8)},
          {"fused, flat", flat(fused(), 3)},
          {"both dims", and_rows(along(1, 2))},
          {"both dims, flat", flat(and_rows(fused()), 3)}};
}

TEST(ShardedTensors, EveryLayoutReadsEveryOther) {
  const auto full = at::arange(54, at::kDouble).view({6, 9});
  for (const bool transposed : {false, true})
    for (const auto& [from, written] : layouts()) {
      const TestFolder folder;
      const ShardedTensors stored(folder.path(), "weights", store(folder.path(), written, full, transposed));
      EXPECT_EQ(stored.info("t").shape, (transposed ? std::vector<std::int64_t>{9, 6} : full.sizes().vec()));
      for (const auto& [to, read] : layouts())
        for (auto placement : read) {
          placement.stored_transposed = transposed;
          const auto before = stored.bytes_read();
          EXPECT_TRUE(at::equal(stored.read("t", placement), placement.slice(full))) << from << " -> " << to;
          EXPECT_EQ(stored.bytes_read() - before, static_cast<std::uint64_t>(placement.local_numel()) * 8);
        }
      // A reader for which files have the layout of the memory.
      auto other = Placement::whole("t", stored.info("t").shape);
      other.cut(0, {{1, 3}});
      EXPECT_TRUE(at::equal(stored.read("t", other), other.slice((transposed ? full.t() : full).contiguous()))) << from;
      other.flat = Range{2, 5};
      EXPECT_TRUE(at::equal(stored.read("t", other), other.slice((transposed ? full.t() : full).contiguous()))) << from;
    }
}

/// A tensor that other files hold in parts is read by its parts' names, and by its own.
TEST(ShardedTensors, PartsThatAreStoredApart) {
  const auto full = at::arange(54, at::kDouble).view({6, 9});
  for (const auto& [from, written] : layouts()) {
    const TestFolder folder;
    const auto manifest = store(folder.path(), written, full, false, "e.*.w");
    const ShardedTensors stored(folder.path(), "weights", manifest);
    EXPECT_EQ(stored.names(), (std::vector<std::string>{"e.0.w", "e.1.w", "e.2.w", "e.3.w", "e.4.w", "e.5.w"}));
    EXPECT_TRUE(at::equal(stored.read("t", tensor()), full)) << from;
    for (std::int64_t i = 0; i < 6; ++i) {
      const auto name = fmt::format("e.{}.w", i);
      auto part = Placement::whole(name, {9});
      EXPECT_EQ(stored.info(name).shape, part.shape);
      EXPECT_TRUE(at::equal(stored.read(name, part), full[i])) << from << ", " << name;
      part.cut(0, {{1, 3}, {6, 9}});
      EXPECT_TRUE(at::equal(stored.read(name, part), part.slice(full[i]))) << from << ", " << name;
      part.flat = Range{1, 4};
      EXPECT_TRUE(at::equal(stored.read(name, part), part.slice(full[i]))) << from << ", " << name;
      stored.verify(name, part);
    }
    EXPECT_EQ(stored.bytes_verified() > 0, true);
    expect_error([&] { (void)stored.info("e.6.w"); }, {"there is no tensor \"e.6.w\"; did you mean"});
  }
}

// A reader verifies the blocks of its slice alone: at most 1.1 times its bytes, unless it takes columns of rows.
TEST(ShardedTensors, AReaderVerifiesItsOwnBlocks) {
  const auto large = Placement::whole("t", {4096, 1024});  // 32 MiB
  const auto cut = [&](std::int64_t dim, int parts) {
    Layout out;
    const auto size = large.shape[static_cast<std::size_t>(dim)];
    for (int i = 0; i < parts; ++i) out.push_back(Placement(large).cut(dim, {shard::split(size, parts, i)}));
    return out;
  };
  const std::map<std::string, Layout> layouts{{"whole", {large}},
                                              {"rows", cut(0, 4)},
                                              {"flat", flat({large}, 5)},
                                              {"rows, flat", flat(cut(0, 2), 3)},
                                              {"columns", cut(1, 2)}};
  const auto full = at::arange(4096 * 1024, at::kDouble).view({4096, 1024});
  for (const auto& [from, written] : layouts) {
    const TestFolder folder;
    const auto manifest = store(folder.path(), written, full, false);
    for (const auto& [to, read] : layouts)
      for (const auto& placement : read) {
        const ShardedTensors stored(folder.path(), "weights", manifest);
        stored.verify("t", placement);
        const auto needed = static_cast<double>(placement.local_numel()) * 8;
        const auto verified = stored.bytes_verified();
        const auto ratio = static_cast<double>(verified) / needed;
        EXPECT_GE(ratio, 1.0);
        EXPECT_LE(ratio, to == "columns" && from != to ? 2.01 : 1.1) << from << " -> " << to;
        stored.verify("t", placement);
        EXPECT_EQ(stored.bytes_verified(), verified) << "each block once";
      }
  }
}

// Wherever a byte changes, exactly the readers of its block notice.
TEST(ShardedTensors, DamageIsFoundByThoseWhoReadIt) {
  const auto large = Placement::whole("t", {64, 1024});  // 512 KiB: 8 blocks and the header
  const auto halves = flat({large}, 2);
  const auto full = at::arange(64 * 1024, at::kDouble).view({64, 1024});
  const TestFolder folder;
  const auto manifest = store(folder.path(), {large}, full, false);
  const auto path = folder / "weights-00000-00.safetensors";
  const auto good = bytes_of(path);
  ASSERT_EQ(manifest.files.begin()->second.sums.size(), good.size() / 65536 + 1);
  const auto is_damaged = [&](const Placement& placement) {
    try {
      ShardedTensors(folder.path(), "weights", manifest).verify("t", placement);
      return false;
    } catch (const CheckpointError&) {
      return true;
    }
  };
  const auto change = [&](std::size_t at) {
    auto bytes = good;
    bytes[at] = static_cast<char>(bytes[at] ^ 1);
    put_bytes(path, bytes);
  };
  EXPECT_FALSE(is_damaged(halves[0]) || is_damaged(halves[1]));
  for (std::size_t at = 0; at < good.size(); at += 30000) {
    change(at);
    const auto data = at - std::min(at, good.size() - full.nbytes());
    EXPECT_TRUE(is_damaged(halves[data < full.nbytes() / 2 ? 0 : 1])) << at;
    EXPECT_TRUE(is_damaged(large)) << at;
    if (at >= std::size_t{5} * 65536) {
      EXPECT_FALSE(is_damaged(halves[0])) << at;
    }
  }
  change(good.size() - 1);
  expect_error([&] { ShardedTensors(folder.path(), "weights", manifest).verify("t", halves[1]); },
               {"weights-00000-00.safetensors is damaged: bytes 524288 to ", "but the manifest says "});
}

TEST(ShardedTensors, WhatIsMissingIsNamed) {
  const TestFolder folder;
  const auto full = at::arange(54, at::kDouble).view({6, 9});
  auto manifest = store(folder.path(), along(0, 2), full, false);
  auto& tensor_t = manifest.tensors["weights"]["t"];
  tensor_t.slices.pop_back();
  const ShardedTensors stored(folder.path(), "weights", manifest);
  expect_error([&] { (void)stored.read("t", tensor()); },
               {"/weights: no slice of the tensor \"t\" holds its element 27"});
  tensor_t.dtype = at::kFloat;
  const ShardedTensors other(folder.path(), "weights", manifest);
  expect_error([&] { (void)other.read("t", along(0, 2)[0]); },
               {"weights-00000-00.safetensors: tensor \"t\" is F64 [3, 9], but F32 [3, 9] in the manifest"});
  expect_error([&] { (void)other.read("u", tensor()); }, {"there is no tensor \"u\""});
}

TEST(Manifest, IsNotTrusted) {
  const std::string good =
      R"({"format": 2, "files": {"w": {"bytes": 400, "crc32": "01ab23cd"}}, "tensors": {"weights": {"t": )"
      R"({"dtype": "F32", "shape": [4, 2], "slices": [{"file": "w", "dim": 0, "ranges": [[0, 4]]}]}}}})";
  const TestFolder folder;
  put_bytes(folder / kManifest, good);
  EXPECT_EQ(read_manifest(folder.path()).tensors.at("weights").at("t").slices.size(), 1U);
  const struct {
    const char *from, *to, *says;
  } rows[] = {
      {"\"format\": 2", "\"format\": 3", "format 3, but this version reads formats 1 to 2"},
      {"\"format\": 2", "\"format\": \"2\"", "not a manifest"},
      {"\"ranges\": [[0, 4]]}", "\"ranges\": [[0, 2]]}, {\"file\": \"w\", \"dim\": 0, \"ranges\": [[0, 2]]}",
       "tensor \"t\" of the weights has a slice twice"},
      {good.c_str(), "[]", "not a manifest: a JSON array in place of an object"},
      {"{\"w\": {\"bytes\"", "{\"../w\": {\"bytes\"", "\"../w\" is not the name of a file beside the manifest"},
      {"{\"w\": {\"bytes\"", "{\"..\": {\"bytes\"", "\"..\" is not the name of a file"},
      {"{\"w\": {\"bytes\"", "{\"/etc/passwd\": {\"bytes\"", "is not the name of a file"},
      {"\"01ab23cd\"", "\"01ab23cd\", \"blocks\": {\"bytes\": 100, \"sums\": \"01ab23cd01ab23cd\"}",
       "\"w\" has 400 bytes, which are not 2 blocks of 100"},
      {"\"01ab23cd\"", "\"01ab23cd\", \"blocks\": {\"bytes\": 0, \"sums\": \"01ab23cd\"}", "not 1 blocks of 0"},
      {"\"01ab23cd\"", "\"01ab23cd\", \"blocks\": {\"bytes\": 9223372036854775807, \"sums\": \"01ab23cd\"}",
       "not 1 blocks of 9223372036854775807"},
      {"\"01ab23cd\"", "\"01ab23cd\", \"blocks\": {\"bytes\": 200, \"sums\": \"01ab23cd01ab23ce\"}",
       "\"w\" has the CRC-32 01ab23cd, but its last block ends with 01ab23ce"},
      {"01ab23cd", "01ab23c", "is not eight hexadecimal digits"},
      {"01ab23cd", "0xab23cd", "is not eight hexadecimal digits"},
      {"\"bytes\": 400", "\"size\": 400", "key 'bytes' not found"},
      {"\"bytes\": 400", "\"bytes\": 31", "the slices in \"w\" need more than its 31 bytes"},
      {"\"bytes\": 400", "\"bytes\": -1", "\"w\" has -1 bytes"},
      {"\"bytes\": 400", "\"bytes\": 9223372036854775808", "a number of bytes is not an integer below 2^63"},
      {"\"format\": 2", "\"format\": 1e300", "the format is not an integer"},
      {"[4, 2]", "[4, 2.5]", "a dim of a shape is not an integer"},
      {"[4, 2]", "[4, [2]]", "a dim of a shape is a JSON array"},
      {"F32", "F33", "unknown dtype"},
      {"[4, 2]", "[4, -2]", "tensor \"t\" has an impossible shape"},
      {"[4, 2]", "[4294967296, 4294967296]", "tensor \"t\" has an impossible shape"},
      {"[4, 2]", "[72057594037927936, 1]", "of the weights has 72057594037927936 elements, but its slices 4"},
      {"[4, 2]", "[5, 2]", "has 10 elements, but its slices 8"},
      {"\"dim\": 0", "\"dim\": 2", "has no dim 2"},
      {"[[0, 4]]", "[[0, 5]]", "the range [0, 5) is not within [0, 4)"},
      {"[[0, 4]]", "[[3, 1]]", "the range [3, 1) is not within"},
      {"[[0, 4]]", "[[-1, 4]]", "the range [-1, 4) is not within"},
      {"[[0, 4]]", "[[0, 4], [0, 4]]", "but its slices 16"},
      {"[[0, 4]]", "[]", "has a slice without ranges"},
      {"[[0, 4]]", "[[0]]", "not a manifest"},
      {"\"dim\": 0, \"ranges\": [[0, 4]]",
       "\"cuts\": [{\"dim\": 1, \"ranges\": [[0, 2]]}, {\"dim\": 0, \"ranges\": [[0, 3]]}]", "but its slices 6"},
      {"\"dim\": 0, \"ranges\": [[0, 4]]",
       "\"cuts\": [{\"dim\": 0, \"ranges\": [[0, 2]]}, {\"dim\": 0, \"ranges\": [[2, 4]]}]",
       "has a slice with two cuts of dim 0"},
      {"\"ranges\": [[0, 4]]", "\"ranges\": [[0, 4]], \"cuts\": [{\"dim\": 0, \"ranges\": [[0, 4]]}]",
       "has a slice with two cuts of dim 0"},
      {"\"dim\": 0, \"ranges\": [[0, 4]]", "\"cuts\": 3", "not a manifest"},
      {"[[0, 4]]", "[[0, 4]], \"flat\": [0, 9]", "the range [0, 9) is not within [0, 8)"},
      {"\"file\": \"w\"", "\"file\": \"v\"", "\"t\" is in \"v\", which is not among the files"},
      {"\"shape\": [4, 2]", "\"shape\": [4, 2, 1], \"stored_transposed\": true",
       "is stored transposed, but has 3 dims"},
      {"\"shape\": [4, 2]", "\"shape\": [4, 2], \"stored_unstacked\": \"e.w\"",
       "cannot be stored as parts named \"e.w\""},
      {"\"shape\": [4, 2]", "\"shape\": [4, 2], \"stored_unstacked\": \"e.*\", \"stored_transposed\": true",
       "cannot be stored as parts named \"e.*\""},
  };
  for (const auto& [from, to, says] : rows) {
    auto text = good;
    const auto at = text.find(from);
    ASSERT_NE(at, text.npos) << from;
    put_bytes(folder / kManifest, text.replace(at, std::string(from).size(), to));
    expect_error([&] { (void)read_manifest(folder.path()); }, {kManifest, says});
  }
}

/// Files have a limited size, and a tensor without elements is stored too.
TEST(Checkpoints, HaveSeveralFilesAndEmptyTensors) {
  const TestFolder run;
  CheckpointContents contents;
  contents.record.progress.global_step = 1;
  const auto value = [](std::int64_t i) { return at::arange(100 * i, 100 * i + 100, at::kFloat); };
  for (std::int64_t i = 0; i < 5; ++i)
    contents.weights.push_back({Placement::whole(fmt::format("w{}", i), {100}), value(i)});
  contents.weights.push_back({Placement::whole("none", {0, 3}), at::arange(0).view({0, 3})});
  contents.most_file_bytes = 900;
  const Checkpoint checkpoint(save_checkpoint(run.path(), contents, 1, alone()));
  EXPECT_EQ(names_in(checkpoint.folder()),
            (std::vector<std::string>{"config.toml", "manifest.json", "state.json", "weights-00000-00.safetensors",
                                      "weights-00000-01.safetensors", "weights-00000-02.safetensors"}));
  for (std::int64_t i = 0; i < 5; ++i)
    EXPECT_TRUE(at::equal(checkpoint.weights().read(fmt::format("w{}", i), contents.weights[i].placement), value(i)));
  EXPECT_EQ(checkpoint.weights().info("none").shape, (std::vector<std::int64_t>{0, 3}));
}

/// Of the version before: full tensors in one file of each kind.
TEST(Checkpoints, OfFormat1AreRead) {
  const std::string folder = TRIREME_SOURCE_DIR "/tests/golden/checkpoint_format_1";
  const Checkpoint checkpoint(folder);
  EXPECT_EQ(checkpoint.record().progress.global_step, 2);
  ASSERT_NE(checkpoint.average(), nullptr);
  const SafeTensors weights(folder + "/weights.safetensors"), average(folder + "/average.safetensors");
  EXPECT_EQ(checkpoint.weights().names(), weights.names());
  EXPECT_EQ(checkpoint.optimizer().names().size(), 3 * weights.names().size());
  const auto opened = open_checkpoint_weights(folder);
  for (const auto& name : average.names())
    EXPECT_TRUE(at::equal(opened->read(name, Placement::whole(name, average.info(name).shape)), average.read(name)));
}

}  // namespace
}  // namespace trireme::checkpoint
