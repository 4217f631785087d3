// State dicts of torch.save: files made by PyTorch (tests/golden/make/make_state_dict.py), hostile pickles, damaged
// files.
#include "core/checkpoint/formats/state_dict.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <caffe2/serialize/inline_container.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/checkpoint/formats/safetensors.h"
#include "core/checkpoint/weights/weights.h"
#include "core/checkpoint/weights/weights_source.h"
#include "tests/unit/checkpoint/folder.h"
#include "tests/unit/checkpoint/pickles.h"

namespace trireme::checkpoint {
namespace {

const std::string kFixtures = TRIREME_SOURCE_DIR "/tests/golden/state_dict/";

/// Element i is i - 2, as in the fixtures.
at::Tensor ascending(std::vector<std::int64_t> shape, at::ScalarType dtype = at::kFloat) {
  std::int64_t numel = 1;
  for (const auto extent : shape) numel *= extent;
  return at::arange(-2, numel - 2).to(dtype).view(shape);
}

at::Tensor read_whole(const WeightsFile& file, const std::string& name) {
  return file.read(name, shard::Placement::whole(name, file.info(name).shape));
}

void expect_tensor(const WeightsFile& file, const std::string& name, const at::Tensor& expected) {
  const auto info = file.info(name);
  EXPECT_EQ(info.dtype, expected.scalar_type()) << name;
  EXPECT_EQ(info.shape, expected.sizes().vec()) << name;
  const auto got = read_whole(file, name);
  EXPECT_TRUE(got.is_contiguous() && got.scalar_type() == expected.scalar_type() && at::equal(got, expected)) << name;
}

TEST(StateDict, NetworksOfEveryForm) {
  struct Row {
    const char* file;
    bool buffers;
    std::string entry{};
  };
  for (const auto& [name, buffers, entry] : std::vector<Row>{{"plain.pth", true},
                                                             {"compressed.pth", true},
                                                             {"old.pth", true},
                                                             {"parameters.pth", false},
                                                             {"wrapped.pth", true, "model"},
                                                             {"model_state_dict.pth", true, "model_state_dict"},
                                                             {"module.pth", true, "module"},
                                                             {"net.pth", true, "net"},
                                                             {"network.pth", true, "network"},
                                                             {"checkpoint_2.pth", true, "state_dict"},
                                                             {"checkpoint_4.pth", true, "state_dict"},
                                                             {"checkpoint_old.pth", true, "state_dict"}}) {
    SCOPED_TRACE(name);
    ASSERT_TRUE(is_torch_file(kFixtures + name));
    const StateDict file(kFixtures + name);
    EXPECT_EQ(file.entry(), entry);
    std::vector<std::string> names{"0.bias", "0.weight", "1.bias", "1.weight"};
    if (buffers)
      names = {"0.bias", "0.weight", "1.bias", "1.num_batches_tracked", "1.running_mean", "1.running_var", "1.weight"};
    EXPECT_EQ(file.names(), names);
    for (const auto& tensor : file.names())
      if (tensor == "1.num_batches_tracked")
        expect_tensor(file, tensor, at::full({}, -2, at::kLong));
      else
        expect_tensor(file, tensor, tensor == "0.weight" ? ascending({3, 2}) : ascending({3}));
  }
}

class StateDictFile : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Formats, StateDictFile, testing::Values("", "old_"),
                         [](const auto& each) { return each.param.empty() ? "Zip" : "Old"; });

TEST_P(StateDictFile, EveryDtype) {
  const StateDict file(kFixtures + GetParam() + "dtypes.pth");
  const std::map<std::string, at::ScalarType> dtypes{
      {"float64", at::kDouble}, {"float32", at::kFloat}, {"float16", at::kHalf}, {"bfloat16", at::kBFloat16},
      {"int64", at::kLong},     {"int32", at::kInt},     {"int16", at::kShort},  {"int8", at::kChar}};
  for (const auto& [name, dtype] : dtypes) expect_tensor(file, name + ".weight", ascending({2, 3}, dtype));
  expect_tensor(file, "uint8.weight", at::arange(0, 6).to(at::kByte).view({2, 3}));
  expect_tensor(file, "bool.weight", at::arange(0, 6).remainder(2).to(at::kBool).view({2, 3}));
  expect_tensor(file, "scalar", ascending({}));
  expect_tensor(file, "empty", ascending({0, 4}));
  expect_tensor(file, "a \"quoted\" name/\u00fc", ascending({5}));
  EXPECT_EQ(file.names().size(), 13U);
}

TEST_P(StateDictFile, ViewsTiedStoragesAndSlices) {
  const StateDict file(kFixtures + GetParam() + "views.pth");
  const auto base = ascending({4, 3});
  const std::map<std::string, at::Tensor> views{{"whole", base},
                                                {"transposed", base.t()},
                                                {"row", base.select(0, 2)},
                                                {"columns", base.narrow(1, 1, 2)},
                                                {"expanded", base.select(0, 0).expand({5, 3})},
                                                {"one", ascending({2, 2})},
                                                {"two", ascending({2, 2})}};
  for (const auto& [name, value] : views) {
    expect_tensor(file, name, value);
    auto placement = shard::Placement::whole(name, value.sizes().vec());
    placement.cuts = {{0, {{1, 2}}}};
    EXPECT_TRUE(at::equal(file.read(name, placement), value.narrow(0, 1, 1))) << name;
    placement.cuts = {{0, {{1, 1}}}};
    EXPECT_EQ(file.read(name, placement).numel(), 0) << name;
  }
  // What is read is a copy: a change of it reaches no tensor that shares the storage.
  read_whole(file, "one").fill_(7);
  expect_tensor(file, "two", ascending({2, 2}));
  expect_error([&] { (void)file.read("row", shard::Placement::whole("row", {4})); }, {"\"row\" has shape [3]", "[4]"});
  expect_error([&] { (void)file.info("rows"); }, {"views.pth: holds no tensor \"rows\"; did you mean \"row\"?"});
}

TEST(StateDict, WhatIsNoStateDict) {
  const std::vector<std::pair<const char*, std::vector<std::string>>> rows{
      {"attack.pth", {"attack.pth: holds no tensors", "it has \"weight\""}},
      {"whole.pth", {"holds an object of torch.nn.modules.container.Sequential, whose code is not run"}},
      {"script.pt", {"is a TorchScript program", "torch.jit.load"}},
      {"two.pth", {"holds tensors under \"state_dict\" and under \"model\""}},
      {"elsewhere.pth", {"holds no tensors, neither by name nor under", "it has \"weights\", \"epoch\"; save"}},
      {"list.pth", {"holds no dictionary of tensors"}},
      {"negative.pth", {"tensor \"negative\" is no plain tensor", "clone()"}}};
  for (const auto& [file, says] : rows) {
    EXPECT_TRUE(is_torch_file(kFixtures + file)) << file;
    expect_error([&, name = file] { const StateDict opened(kFixtures + name); }, says);
  }
  EXPECT_FALSE(std::filesystem::exists("state_dict_attack"));
  EXPECT_FALSE(is_torch_file(TRIREME_SOURCE_DIR "/tests/golden/checkpoint.safetensors"));
}

std::string repeated(const std::string& text, int times) {
  std::string out;
  for (int i = 0; i < times; ++i) out += text;
  return out;
}

/// A file with this pickle and the record data/0 of 16 bytes.
std::string archive(const TestFolder& folder, const std::string& pickle, const char* byteorder = "little") {
  const auto path = folder / "x.pth";
  caffe2::serialize::PyTorchStreamWriter writer(path);
  const std::vector<float> values{1, 2, 3, 4};
  writer.writeRecord("data.pkl", pickle.data(), pickle.size());
  writer.writeRecord("byteorder", byteorder, std::string(byteorder).size());
  writer.writeRecord("data/0", values.data(), 16);
  writer.writeEndOfFile();
  return path;
}

TEST(StateDict, HostilePickles) {
  const TestFolder folder;
  const std::string begin = "\x80\x02}" + text_of("w"), set = "s.";
  const auto with = [&](const std::string& tensor) { return begin + tensor + set; };
  EXPECT_TRUE(
      at::equal(read_whole(StateDict(archive(folder, with(tensor_of("0", 1, tuple_of({3}), tuple_of({1}))))), "w"),
                at::arange(2, 5).to(at::kFloat)));
  constexpr auto kBig = std::int64_t{1} << 62;
  const std::string beyond = "reaches beyond the 16 bytes of its storage", sizes = "sizes and strides";
  const std::vector<std::pair<std::string, std::string>> rows{
      {with(tensor_of("0", 2, tuple_of({3}), tuple_of({1}))), beyond},
      {with(tensor_of("0", 0, tuple_of({2, 2}), tuple_of({3, 2}))), beyond},
      {with(tensor_of("0", 0, tuple_of({3}), tuple_of({1}), "LongStorage")), beyond},
      {with(tensor_of("0", kBig, tuple_of({2}), tuple_of({kBig}))), beyond},
      {with(tensor_of("0", 0, tuple_of({kBig, kBig}), tuple_of({0, 0}))), beyond},
      {with(tensor_of("0", 0, tuple_of({kBig}), tuple_of({kBig}))), beyond},
      {with(tensor_of("0", kBig, tuple_of({}), tuple_of({}), "DoubleStorage")), beyond},
      {with(tensor_of("0", -1, tuple_of({1}), tuple_of({1}))), "storage or offset"},
      {with(tensor_of("0", 0, tuple_of({1}), tuple_of({-1}))), sizes},
      {with(tensor_of("0", 0, tuple_of({-1}), tuple_of({1}))), sizes},
      {with(tensor_of("0", 0, tuple_of({1, 1}), tuple_of({1}))), sizes},
      {with(tensor_of("0", 0, text_of("a"), tuple_of({1}))), sizes},
      {with(tensor_of("0", 0, tuple_of(std::vector<std::int64_t>(65, 1)), tuple_of({1}))), sizes},
      {with(tensor_of("1", 0, tuple_of({1}), tuple_of({1}))), "the file lacks storage 1"},
      {with(tensor_of("0", 0, tuple_of({1}), tuple_of({1}), "UntypedStorage")), "no valid storage"},
      {begin + tensor_of("0", 0, "))", "") + "s" + text_of("w") + tensor_of("0", 0, ")", ")") + set, "twice"},
      {with("ctorch._utils\n_rebuild_tensor_v2\n)R"), "no plain tensor"},
      {begin + tensor_of("0", 0, ")", ")") + "s" + text_of("q") + "ctorch._utils\n_rebuild_qtensor\n)R" + set,
       "\"q\" is no plain tensor (it is made by torch._utils._rebuild_qtensor)"},
      {with(tensor_of("0", 0, tuple_of({1}), tuple_of({1}), "ComplexFloatStorage")), "is complex or quantised"},
      {with(tensor_of(std::string(101, '0'), 0, tuple_of({1}), tuple_of({1}))), "no valid storage"},
      // Few bytes that name much, many times.
      {"\x80\x04(" + text_of(std::string(1 << 20, 'a')) + "\x94" +
           repeated("h" + std::string(1, '\0') + "h" + std::string(1, '\0') + "\x93", 100'000) + "t.",
       "no dictionary"},
      {"\x80\x02]q" + std::string(1, '\0') + "(" + repeated("NN\x86", 1000) + "e(" +
           repeated("ccollections\nOrderedDict\nh" + std::string(1, '\0') + "\x85R", 10'000) + "t.",
       "too many entries"},
      {with("ctorch._utils\n_rebuild_parameter\n)R"), "holds no tensors"},
      {with("cbuiltins\neval\n(" + text_of("1") + "tR"), "holds no tensors"},
      {"\x80\x04" + text_of("os") + text_of("system") + "\x93.", "no dictionary"},
      {"\x80\x04" + text_of("os") + text_of("system") + "\x93)R.", "holds an object of os.system"},
      {"\x80\x02" + std::string("}") + text_of("w") + "]\x81.", "no dictionary"},
      {"\x80\x02" + std::string("}") + text_of("w") + "}\x81.", "another type"},
      {"\x80\x02N\x82\x01.", "instruction 0x82"},
      {"(dp0\n.", "protocol 2 or newer"},
      {"", "ends too early"},
      {"\x80\x02}s.", "a value is missing"},
      {"\x80\x02)(u.", "another type"},
      {"\x80\x02}((u.", "a value is missing"},
      {"\x80\x02}(NNNu.", "key has no value"},
      {"\x80\x02u.", "a mark is missing"},
      {"\x80\x02h\x05.", "was not stored"},
      {"\x80\x02j\xff\xff\xff\xff.", "was not stored"},
      {"\x80\x02X\xff\xff\xff\xff" + std::string("a."), "ends too early"},
      {"\x80\x02\x8a", "ends too early"},
      {"\x80\x02" + std::string("cos"), "a name has no end"},
      {"\x80\x02)q" + std::string("\x01Nb."), "no dictionary"},
      {"\x80\x02)N\x90.", "a mark is missing"},
      {"\x80\x02)(N\x90.", "another type"},
      {"\x80\x02" + std::string("0."), "a value is missing"},
      {"\x80\x02.", "a value is missing"},
      // Deep nesting, and a list that holds itself: neither reading nor destroying may recurse.
      {"\x80\x02)" + std::string(2'000'000, '\x85') + ".", "no dictionary"},
      {"\x80\x02" + std::string(4'000'000, '}') + ".", "over 2097152 values"},
      {"\x80\x02]q" + std::string(1, '\0') + "h" + std::string(1, '\0') + "a.", "no dictionary"},
      {"\x80\x02" + std::string(4'000'000, '(') + ".", "a value is missing"},
      {"\x80\x02" + std::string(17 << 20, 'N') + ".", "its pickle has 17.0 MiB"}};
  for (std::size_t i = 0; i < rows.size(); ++i) {
    SCOPED_TRACE(i);
    const auto path = archive(folder, rows[i].first);
    expect_error([&] { const StateDict file(path); }, {path, rows[i].second});
  }
  expect_error([&] { const StateDict file(archive(folder, with(")"), "big")); }, {"big-endian"});
}

// A file that ends early is refused. One with a changed byte is refused, or reading it stays inside the file.
TEST(StateDict, DamagedFiles) {
  const TestFolder folder;
  for (const char* fixture : {"plain.pth", "compressed.pth", "parameters.pth", "old.pth"}) {
    const auto good = bytes_of(kFixtures + fixture);
    const auto path = folder / fixture;
    for (std::size_t size = 0; size < good.size(); size += 29) {
      put_bytes(path, good.substr(0, size));
      expect_error([&] { const StateDict file(path); }, {path});
    }
    int refused = 0, tried = 0;
    for (std::size_t at = 0; at < good.size(); at += 7, ++tried) {  // LibTorch's errors take a millisecond each
      auto bad = good;
      bad[at] = static_cast<char>(bad[at] ^ (tried % 2 == 0 ? '\x01' : '\x90'));
      put_bytes(path, bad);
      try {
        const StateDict file(path);
        for (const auto& name : file.names()) (void)read_whole(file, name);
      } catch (const CheckpointError&) {
        ++refused;
      }
    }
    EXPECT_GT(refused, tried / 8) << fixture;
  }
}

/// Loads the network of plain.pth, with its buffers; returns whether every value is the file's.
bool loads(const std::string& path) {
  std::vector<nn::Parameter> parameters;
  OtherTensors others;
  for (const char* name : {"0.weight", "0.bias", "1.weight", "1.bias"}) {
    const std::vector<std::int64_t> shape =
        name == std::string("0.weight") ? std::vector<std::int64_t>{3, 2} : std::vector<std::int64_t>{3};
    parameters.push_back({name, at::ones(shape).requires_grad_(), shard::Placement::whole(name, shape)});
  }
  for (const char* name : {"1.running_mean", "1.running_var"})
    others.buffers.push_back({shard::Placement::whole(name, {3}), at::ones({3})});
  others.buffers.push_back({shard::Placement::whole("1.num_batches_tracked", {}), at::full({}, 1, at::kLong)});
  load_weights(path, parameters, "", Log(), others);
  bool equal = true;
  for (const auto& p : parameters) equal = equal && at::equal(p.value.detach(), ascending(p.placement.shape));
  for (const auto& [placement, value] : others.buffers)
    equal = equal && at::equal(value, ascending(placement.shape, value.scalar_type()));
  return equal;
}

TEST(StateDict, IsFoundAsWeights) {
  const TestFolder folder;
  const auto copy = [&](const char* from, const std::string& to) {
    put_bytes(folder / to, bytes_of(kFixtures + from));
  };
  EXPECT_TRUE(loads(kFixtures + "plain.pth"));
  copy("wrapped.pth", "resnet.pth");
  expect_error([&] { find_weights(folder.path()); }, {"holds none of", "name it: " + (folder / "resnet.pth")});
  copy("plain.pth", "pytorch_model.bin");
  EXPECT_TRUE(loads(folder.path()));
  EXPECT_TRUE(read_beside_weights(folder.path()).is_null());

  // With an index; parameters.pth lacks the buffers.
  make_folder(folder / "sharded");
  copy("plain.pth", "sharded/b.bin");
  copy("parameters.pth", "sharded/p.bin");
  std::string map;
  for (const auto& name : StateDict(kFixtures + "plain.pth").names())
    map += fmt::format("{}\"{}\": \"{}.bin\"", map.empty() ? "" : ", ", name, name.find('_') == name.npos ? "p" : "b");
  write_file(folder / "sharded/pytorch_model.bin.index.json", fmt::format(R"({{"weight_map": {{{}}}}})", map));
  EXPECT_TRUE(loads(folder / "sharded"));
  copy("parameters.pth", "sharded/b.bin");
  expect_error([&] { loads(folder / "sharded"); }, {"b.bin: holds no tensor \"1."});

  write_safetensors(folder / "model.safetensors", {{"0.weight", at::ones({3, 2})}});
  EXPECT_EQ(find_weights(folder.path()), folder / "model.safetensors");
}

}  // namespace
}  // namespace trireme::checkpoint
