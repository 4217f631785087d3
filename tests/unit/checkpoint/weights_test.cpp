// Weights in Hugging Face layout: the paths they are read from, heads, conversions, refusals.
#include "core/checkpoint/weights/weights.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "core/checkpoint/formats/safetensors.h"
#include "core/checkpoint/train_state.h"
#include "tests/unit/checkpoint/folder.h"

namespace trireme::checkpoint {
namespace {

const std::vector<std::pair<std::string, std::vector<std::int64_t>>> kModel{
    {"vit.embeddings.cls_token", {1, 1, 4}},
    {"vit.encoder.layer.0.output.dense.weight", {4, 6}},
    {"vit.layernorm.bias", {4}},
    {"classifier.weight", {3, 4}},
    {"classifier.bias", {3}}};

std::int64_t count(const std::vector<std::int64_t>& shape) {
  std::int64_t n = 1;
  for (const auto extent : shape) n *= extent;
  return n;
}

/// What tensor `index` of the model holds in the files.
at::Tensor stored(std::size_t index, at::ScalarType dtype = at::kFloat) {
  const auto& shape = kModel[index].second;
  const auto first = static_cast<std::int64_t>(100 * (index + 1));
  return at::arange(first, first + count(shape), dtype).view(shape);
}

std::vector<std::pair<std::string, at::Tensor>> full_model() {
  std::vector<std::pair<std::string, at::Tensor>> out;
  for (std::size_t i = 0; i < kModel.size(); ++i) out.emplace_back(kModel[i].first, stored(i));
  return out;
}

std::vector<shard::Slice> slices(const std::vector<std::pair<std::string, at::Tensor>>& full) {
  std::vector<shard::Slice> out;
  for (const auto& [name, value] : full) out.push_back({shard::Placement::whole(name, value.sizes().vec()), value});
  return out;
}

std::vector<nn::Parameter> fresh_parameters(at::ScalarType dtype = at::kFloat) {
  std::vector<nn::Parameter> out;
  for (const auto& [name, shape] : kModel)
    out.push_back({name, at::full(shape, -1, dtype).requires_grad_(), shard::Placement::whole(name, shape)});
  return out;
}

/// Log lines as text.
class Lines {
 public:
  Lines() : file_(std::tmpfile()), log(0, file_) {}
  ~Lines() { std::fclose(file_); }
  std::string text() {
    std::string out(static_cast<std::size_t>(std::ftell(file_)), '\0');
    std::rewind(file_);
    EXPECT_EQ(std::fread(out.data(), 1, out.size(), file_), out.size());
    return out;
  }

 private:
  std::FILE* file_;

 public:
  Log log;
};

void expect_loaded(const std::string& path, const std::string& expected_log = "", bool head = true) {
  auto parameters = fresh_parameters();
  Lines lines;
  load_weights(path, parameters, "classifier.", lines.log);
  for (std::size_t i = 0; i < kModel.size(); ++i) {
    const bool unchanged = !head && i >= 3;
    EXPECT_TRUE(at::equal(parameters[i].value, unchanged ? at::full_like(stored(i), -1) : stored(i)))
        << kModel[i].first;
    EXPECT_TRUE(parameters[i].value.requires_grad() && parameters[i].value.is_leaf());
  }
  const auto text = lines.text();
  if (expected_log.empty())
    EXPECT_EQ(text, "");
  else
    EXPECT_NE(text.find(expected_log), std::string::npos) << text;
}

// A buffer that fits is read; one that is missing or has another shape or dtype keeps its values.
TEST(Weights, BuffersThatFit) {
  const TestFolder folder;
  std::vector<NamedValue> values;
  for (std::size_t i = 0; i < kModel.size(); ++i) values.push_back({kModel[i].first, stored(i)});
  values.push_back({"norm.running_mean", at::full({4}, 3.0)});
  values.push_back({"norm.count", at::full({}, 9, at::kLong)});
  values.push_back({"norm.other_shape", at::full({5}, 3.0)});
  values.push_back({"norm.other_kind", at::full({4}, 3, at::kLong)});
  write_safetensors(folder / "w.safetensors", values);
  OtherTensors others;
  for (const auto* name : {"norm.running_mean", "norm.count", "norm.other_shape", "norm.other_kind", "norm.missing"}) {
    const bool count = name == std::string("norm.count");
    const auto value = count ? at::full({}, 1, at::kLong) : at::full({4}, 1.0);
    others.buffers.push_back({shard::Placement::whole(name, value.sizes().vec()), value});
  }
  auto parameters = fresh_parameters();
  Lines lines;
  load_weights(folder / "w.safetensors", parameters, "classifier.", lines.log, others);
  const std::vector<double> wanted{3, 9, 1, 1, 1};
  for (std::size_t i = 0; i < wanted.size(); ++i)
    EXPECT_EQ(others.buffers[i].value.flatten()[0].item<double>(), wanted[i]) << others.buffers[i].placement.name;
  EXPECT_NE(lines.text().find("3 buffers of this model are missing or of another shape or type, and start from the "
                              "model's own values: norm.other_shape, norm.other_kind, norm.missing"),
            std::string::npos);
}

TEST(Weights, EveryPath) {
  const TestFolder run;
  save_weights(run / "model", slices(full_model()), {{kModelConfig, R"({"hidden_size": 4})"}}, alone());
  EXPECT_EQ(names_in(run / "model"), (std::vector<std::string>{"config.json", "model.safetensors"}));
  EXPECT_EQ(SafeTensors(run / "model/model.safetensors").metadata().at("format"), "pt");
  for (const auto& path : {run.path(), run / "model", run / "model/model.safetensors"}) {
    expect_loaded(path);
    EXPECT_EQ(read_beside_weights(path)["hidden_size"], 4);
  }
  // Shards with an index.
  nlohmann::json index{{"metadata", {{"total_size", 1}}}, {"weight_map", nlohmann::json::object()}};
  make_folder(run / "sharded");
  std::vector<NamedValue> parts[2];
  for (std::size_t i = 0; i < kModel.size(); ++i) {
    parts[i % 2].push_back({kModel[i].first, stored(i)});
    index["weight_map"][kModel[i].first] = fmt::format("model-{}.safetensors", i % 2);
  }
  for (int i : {0, 1}) write_safetensors(run / fmt::format("sharded/model-{}.safetensors", i), parts[i]);
  write_file(run / "sharded/model.safetensors.index.json", index.dump());
  expect_loaded(run / "sharded");
  expect_loaded(run / "sharded/model.safetensors.index.json");
  EXPECT_TRUE(read_beside_weights(run / "sharded").is_null());
}

TEST(Weights, BaseModelWithoutPrefix) {
  const TestFolder folder;
  auto tensors = std::vector<NamedValue>{{"pooler.dense.bias", at::full({4}, 1)}};
  for (std::size_t i = 0; i < 3; ++i) tensors.push_back({kModel[i].first.substr(4), stored(i)});
  write_safetensors(folder / "base.safetensors", tensors);
  expect_loaded(folder / "base.safetensors", "the head is newly initialized: classifier.weight, classifier.bias",
                false);
  expect_loaded(folder / "base.safetensors", "1 tensor not in this model, ignored: pooler.dense.bias", false);
  tensors.pop_back();  // a tensor is missing, so the prefix is not guessed
  write_safetensors(folder / "base.safetensors", tensors);
  auto parameters = fresh_parameters();
  expect_error([&] { load_weights(folder / "base.safetensors", parameters, "classifier.", Log()); },
               {"3 tensors missing: vit.embeddings.cls_token"});
}

// Files converted from TensorFlow name a norm's parameters gamma and beta, in a base model's file too.
TEST(Weights, TensorflowNamesOfNorms) {
  const TestFolder folder;
  const std::vector<std::string> names{"bert.a.LayerNorm.weight", "bert.a.LayerNorm.bias", "bert.a.dense.weight"};
  for (const bool base : {false, true}) {
    std::vector<nn::Parameter> own;
    std::vector<NamedValue> tensors;
    for (std::size_t i = 0; i < names.size(); ++i) {
      own.push_back({names[i], at::full({2}, -1.0), shard::Placement::whole(names[i], {2})});
      auto name = names[i].substr(base ? 5 : 0);
      if (i == 0) name.replace(name.rfind("weight"), 6, "gamma");
      if (i == 1) name.replace(name.rfind("bias"), 4, "beta");
      tensors.push_back({name, at::full({2}, static_cast<double>(i))});
    }
    write_safetensors(folder / "w.safetensors", tensors);
    Lines lines;
    load_weights(folder / "w.safetensors", own, "", lines.log);
    for (std::size_t i = 0; i < names.size(); ++i)
      EXPECT_EQ(own[i].value[1].item<double>(), static_cast<double>(i)) << names[i];
    EXPECT_EQ(lines.text(), "");
  }
}

// What a wrapper in Python puts before all names is left out, unless the model's own names begin so.
TEST(Weights, NamesInAWrapper) {
  const TestFolder folder;
  for (const std::string wrapper : {"module.", "_orig_mod.module."}) {
    for (const bool base : {false, true}) {
      std::vector<NamedValue> tensors;
      for (std::size_t i = 0; i < (base ? 3 : kModel.size()); ++i)
        tensors.push_back({wrapper + kModel[i].first.substr(base ? 4 : 0), stored(i)});
      write_safetensors(folder / "w.safetensors", tensors);
      expect_loaded(folder / "w.safetensors", "all names begin with \"" + wrapper + "\", which is left out", !base);
    }
  }
  const std::vector<nn::Parameter> own{{"module.x", at::full({2}, -1.0), shard::Placement::whole("module.x", {2})}};
  write_safetensors(folder / "own.safetensors", {{"module.x", at::full({2}, 5.0)}});
  Lines lines;
  load_weights(folder / "own.safetensors", own, "", lines.log);
  EXPECT_EQ(own[0].value[1].item<double>(), 5);
  EXPECT_EQ(lines.text(), "");
  auto parameters = fresh_parameters();
  expect_error([&] { load_weights(folder / "own.safetensors", parameters, "", Log()); }, {"5 tensors missing"});
}

// Tensors of further layers say that the model has another depth; others are not needed.
TEST(Weights, DeeperThanTheModel) {
  const TestFolder folder;
  const auto write = [&](const std::string& extra, std::size_t prefix) {
    std::vector<NamedValue> tensors{{extra.substr(prefix), at::full({4}, 1.0)}};
    for (std::size_t i = 0; i < 3; ++i) tensors.push_back({kModel[i].first.substr(prefix), stored(i)});
    write_safetensors(folder / "w.safetensors", tensors);
  };
  for (const std::size_t prefix : {0, 4}) {  // of an exported base model
    write("vit.encoder.layer.12.output.dense.weight", prefix);
    auto parameters = fresh_parameters();
    expect_error(
        [&] { load_weights(folder / "w.safetensors", parameters, "classifier.", Log()); },
        {"1 tensor of layers that this model does not have: ", "encoder.layer.12.output.dense.weight; set the"});
    EXPECT_EQ(parameters[0].value.min().item<float>(), -1) << "nothing may change when something does not fit";
    for (const std::string other : {"vit.encoder.layer.0.output.dense.scale", "vit.encoder.layer0.output.dense.weight",
                                    "vit.encoder.layer.output.dense.weight"}) {
      write(other, prefix);
      expect_loaded(folder / "w.safetensors", "1 tensor not in this model, ignored: " + other.substr(prefix), false);
    }
  }
}

// A parameter of which files hold a tensor for each index of dim 0, such as an expert's, in every layout: written and
// read by the parts' names, from a file and from a checkpoint.
TEST(Weights, TensorsThatAreStoredApart) {
  const auto full = at::arange(72, at::kDouble).view({3, 4, 6});
  auto whole = shard::Placement::whole("m.up", {3, 4, 6});
  whole.stored_unstacked = "m.experts.*.up";
  const auto other = shard::Placement::whole("m.gate", {2});
  const auto flat = [](shard::Placement of, std::int64_t begin, std::int64_t end) {
    of.flat = shard::Range{begin, end};
    return of;
  };
  const auto cut = [&](std::int64_t dim, std::vector<shard::Range> ranges) {
    return shard::Placement(whole).cut(dim, std::move(ranges));
  };
  const auto both = cut(0, {{0, 1}, {2, 3}}).cut(2, {{1, 2}, {4, 6}});
  const std::vector<shard::Placement> rows{whole,
                                           cut(0, {{1, 3}}),
                                           cut(1, {{0, 3}}),
                                           both,
                                           cut(0, {}),
                                           flat(whole, 20, 50),
                                           flat(whole, 24, 48),
                                           flat(cut(0, {{1, 3}}), 0, 25),
                                           flat(both, 5, 17)};
  const TestFolder folder;
  save_weights(folder / "model", {{whole, full}, {other, at::full({2}, 7.0)}}, {}, alone());
  CheckpointContents contents;
  contents.record.progress.global_step = 4;
  contents.weights = {{whole, full}, {other, at::full({2}, 7.0)}};
  save_checkpoint(folder / "run", contents, 1, alone());
  const SafeTensors written(folder / "model/model.safetensors");
  EXPECT_EQ(written.names(),
            (std::vector<std::string>{"m.experts.0.up", "m.experts.1.up", "m.experts.2.up", "m.gate"}));
  EXPECT_TRUE(at::equal(written.read("m.experts.1.up"), full[1]));
  std::vector<NamedValue> wrapped{{"module.m.gate", at::full({2}, 7.0)}};
  for (std::int64_t i = 0; i < 3; ++i) wrapped.push_back({fmt::format("module.m.experts.{}.up", i), full[i]});
  write_safetensors(folder / "wrapped.safetensors", wrapped);

  for (const auto& placement : rows)
    for (const auto& path :
         {folder / "model", folder / "run/checkpoints/step-00000004", folder / "wrapped.safetensors"}) {
      const std::vector<nn::Parameter> parameters{
          {"m.gate", at::full({2}, -1.0, at::kDouble).requires_grad_(), other},
          {"m.up", at::full(placement.local_shape(), -1.0, at::kDouble).requires_grad_(), placement}};
      load_weights(path, parameters, "", Log());
      EXPECT_TRUE(at::equal(parameters[1].value, placement.slice(full)))
          << path << ", " << fmt::format("{}", fmt::join(placement.local_shape(), " x "));
      EXPECT_TRUE(parameters[1].value.requires_grad() && parameters[1].value.is_leaf());
    }

  const auto refused = [&](const std::string& path, const std::vector<std::string>& says) {
    for (const auto& placement : {whole, cut(0, {{0, 1}})}) {  // the second has no elements of the parts in question
      const std::vector<nn::Parameter> parameters{{"m.gate", at::full({2}, -1.0, at::kDouble), other},
                                                  {"m.up", at::full(placement.local_shape(), -1.0), placement}};
      expect_error([&] { load_weights(path, parameters, "", Log()); }, says);
      EXPECT_EQ(parameters[0].value.max().item<double>(), -1) << "nothing may change when something does not fit";
    }
  };
  auto parts = wrapped;
  parts.erase(parts.begin() + 2);
  write_safetensors(folder / "missing.safetensors", parts);
  refused(folder / "missing.safetensors", {"1 tensor missing: m.experts.1.up"});
  parts = wrapped;
  parts[2].value = parts[2].value.t();
  write_safetensors(folder / "shape.safetensors", parts);
  refused(folder / "shape.safetensors", {"1 do not fit: m.experts.1.up [4, 6] (the file has", "[6, 4])"});
  parts = wrapped;
  parts.push_back({"module.m.experts.3.up", full[0]});
  write_safetensors(folder / "more.safetensors", parts);
  refused(folder / "more.safetensors", {"of layers that this model does not have: ", "m.experts.3.up"});
}

TEST(Weights, NewHeadForOtherLabels) {
  const TestFolder folder;
  auto full = full_model();
  full[3].second = at::full({1000, 4}, 7);
  full[4].second = at::full({1000}, 7);
  save_weights(folder.path(), slices(full), {}, alone());
  expect_loaded(folder.path(), "classifier.weight [3, 4] (the file has [1000, 4]), classifier.bias [3]", false);
  auto parameters = fresh_parameters();
  expect_error([&] { load_weights(folder.path(), parameters, "", Log()); }, {"2 do not fit: classifier.weight [3, 4]"});
}

TEST(Weights, SlicesAndConversion) {
  const TestFolder folder;
  std::vector<NamedValue> tensors;
  for (std::size_t i = 0; i < kModel.size(); ++i) tensors.push_back({kModel[i].first, stored(i, at::kHalf)});
  write_safetensors(folder / "model.safetensors", tensors);
  for (const auto dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
    auto parameters = fresh_parameters(dtype);
    auto& cut = parameters[1];
    cut.placement.cut(1, {{0, 1}, {3, 4}});
    cut.value = at::full({4, 2}, -1, dtype).requires_grad_();
    load_weights(folder.path(), parameters, "", Log());
    EXPECT_TRUE(at::equal(cut.value, cut.placement.slice(stored(1, dtype))));
    EXPECT_TRUE(at::equal(parameters[0].value, stored(0, dtype)));
  }
}

TEST(Weights, ReadsACheckpointFolder) {
  const TestFolder folder;
  CheckpointContents contents;
  contents.record.progress.global_step = 4;
  for (std::size_t i = 0; i < kModel.size(); ++i) {
    const auto value = stored(i);
    contents.weights.push_back({shard::Placement::whole(kModel[i].first, value.sizes().vec()), value});
  }
  save_checkpoint(folder / "run", contents, 1, alone());
  expect_loaded(folder / "run/checkpoints/step-00000004");
  auto parameters = fresh_parameters();
  expect_error([&] { load_weights(folder / "run", parameters, "", Log()); },
               {"has no model yet", "name one of its checkpoints, " + (folder / "run/checkpoints/step-N")});
}

// Non-finite weights are found in every dtype; finite ones whose sum overflows are accepted.
TEST(Weights, NonFiniteWeightsAreNamed) {
  for (const auto dtype : {at::kDouble, at::kFloat, at::kHalf, at::kBFloat16}) {
    const TestFolder folder;
    const auto write = [&](double value) {
      auto full = full_model();
      for (auto& [name, tensor] : full) tensor = tensor.to(dtype);
      full[1].second[2][3] = value;
      full[4].second.fill_(dtype == at::kHalf ? 6e4 : 1e38);
      save_weights(folder.path(), slices(full), {}, alone());
    };
    write(1);
    auto parameters = fresh_parameters(dtype);
    EXPECT_NO_THROW(load_weights(folder.path(), parameters, "", Log()));
    for (const double bad : {NAN, -INFINITY}) {
      write(bad);
      try {
        load_weights(folder.path(), parameters, "", Log());
        ADD_FAILURE() << "accepted " << bad << " in " << dtype;
      } catch (const NonFiniteError& error) {
        EXPECT_NE(std::string(error.what()).find("\"vit.encoder.layer.0.output.dense.weight\""), std::string::npos)
            << error.what();
      }
    }
  }
}

TEST(Weights, Refusals) {
  const TestFolder folder;
  auto parameters = fresh_parameters();
  const auto load = [&](const std::string& path) {
    return [&, path] { load_weights(path, parameters, "classifier.", Log()); };
  };
  expect_error(load(folder / "none"), {folder / "none", "no such file or folder"});
  expect_error(load(folder.path()), {"holds none of model.safetensors, ", "pytorch_model.bin.index.json, nor"});
  put_bytes(folder / "pytorch_model.bin", "x");
  expect_error(load(folder.path()), {"pytorch_model.bin: "});
  put_bytes(folder / "model.safetensors", "not at all");
  expect_error(load(folder.path()), {"model.safetensors: "});

  auto full = full_model();
  full[1].second = full[1].second.t();
  full[2].first = "vit.layernorm.biass";
  save_weights(folder.path(), slices(full), {}, alone());
  expect_error(load(folder.path()),
               {"1 tensor missing: vit.layernorm.bias",
                "1 do not fit: vit.encoder.layer.0.output.dense.weight [4, 6] (the file has [6, 4])"});
  EXPECT_EQ(parameters[0].value.min().item<float>(), -1) << "nothing may change when something does not fit";
  full = full_model();
  full[2].second = full[2].second.to(at::kLong);
  save_weights(folder.path(), slices(full), {}, alone());
  expect_error(load(folder.path()), {"vit.layernorm.bias (the file has dtype int64)"});
  std::vector<nn::Parameter> many;
  for (int i = 0; i < 9; ++i)
    many.push_back({fmt::format("x.{}", i), at::full({1}, 0), shard::Placement::whole("", {1})});
  expect_error([&] { load_weights(folder.path(), many, "", Log()); },
               {"9 tensors missing: x.0, x.1, x.2, x.3, x.4 and 4 more"});

  put_bytes(folder / "config.json", "{");
  expect_error([&] { (void)read_beside_weights(folder.path()); }, {"config.json: line ", "not valid JSON"});
  const std::string deep(200'000, '[');
  put_bytes(folder / "config.json", deep);
  expect_error([&] { (void)read_beside_weights(folder.path()); },
               {"config.json: line 1, column 129: nested deeper than 128 levels"});
  put_bytes(folder / "i.index.json", "{\"weight_map\": " + deep);
  expect_error(load(folder / "i.index.json"), {"i.index.json: line 1, column 143: nested deeper than 128 levels"});
  for (const char* map : {"[]", "{}", R"({"weight_map": {"a": 3}})", R"({"weight_map": {"a": "../a"}})",
                          R"({"weight_map": {"a": "/etc/passwd"}})", R"({"weight_map": {"a": "model.safetensors"}})",
                          R"({"weight_map": {"a": "gone.safetensors"}})", "nonsense"}) {
    put_bytes(folder / "i.index.json", map);
    expect_error(load(folder / "i.index.json"), {});
  }
}

}  // namespace
}  // namespace trireme::checkpoint
