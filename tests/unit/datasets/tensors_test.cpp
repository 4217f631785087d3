// The tensors data set: every dtype and every error message.
#include <ATen/ops/equal.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "core/data/datasets.h"
#include "core/data/loader.h"
#include "datasets/transform.h"
#include "tests/unit/datasets/folder.h"

namespace trireme::data {
namespace {

using namespace datasets;

using testing_tools::bytes_of;
using testing_tools::Folder;
using testing_tools::label_of;
using testing_tools::message_of;
using testing_tools::normalised;
using testing_tools::open_set;
using testing_tools::safetensors;
using testing_tools::training_images;

constexpr std::int64_t kSide = 4, kEach = 3 * kSide * kSide;

at::Tensor values(std::int64_t n) {
  std::vector<double> v(static_cast<std::size_t>(n * kEach));
  std::iota(v.begin(), v.end(), 1.0);
  return at::tensor(v).view({n, 3, kSide, kSide});
}
std::string raw(const at::Tensor& t) {
  const auto c = t.contiguous();
  return {static_cast<const char*>(c.const_data_ptr()), c.nbytes()};
}
std::string file(const std::vector<std::int64_t>& labels, const std::string& shape = "",
                 const std::string& dtype = "F32", at::ScalarType type = at::kFloat) {
  const auto n = static_cast<std::int64_t>(labels.size());
  return safetensors(
      {{"pixel_values", dtype, shape.empty() ? fmt::format("{},3,4,4", n) : shape, raw(values(n).to(type))},
       {"labels", "I64", std::to_string(n), bytes_of(labels)}});
}
datasets::TensorsOptions options_for(const Folder& folder) {
  datasets::TensorsOptions options;
  options.path = folder.path();
  return options;
}

TEST(Tensors, ReadsEveryDtype) {
  const struct {
    const char* name;
    at::ScalarType type, got;
  } cases[] = {{"F64", at::kDouble, at::kDouble},
               {"F32", at::kFloat, at::kFloat},
               {"F16", at::kHalf, at::kFloat},
               {"BF16", at::kBFloat16, at::kFloat},
               {"U8", at::kByte, at::kFloat}};
  for (const auto& c : cases) {
    const Folder folder;
    folder.write("train.safetensors", file({0, 2, 1}, "", c.name, c.type));
    folder.write("validation.safetensors", file({3}, "", c.name, c.type));
    const auto sets = open_set(options_for(folder), 1, Log(1));
    EXPECT_EQ(sets.info.spec.class_names, (std::vector<std::string>{"0", "1", "2", "3"}))
        << "labels of every split count";
    EXPECT_EQ(sets.train->size(), 3);
    EXPECT_EQ(sets.test, nullptr);
    const auto sample = sets.train->get(1, 0, true);
    EXPECT_EQ(label_of(*sample), 2);
    auto want = values(3)[1].to(c.type).to(c.got);
    if (c.type == at::kByte)
      want = testing_tools::normalised(values(3)[1].to(at::kByte).permute({1, 2, 0}).contiguous(), {});
    EXPECT_TRUE(at::equal(sample->inputs.front(), want)) << c.name;
    EXPECT_EQ(*sets.train->spec().input("pixel_values"), (nn::SampleTensor{"pixel_values", c.got, {3, kSide, kSide}}));
  }
}

TEST(Tensors, AugmentsTheTrainSplitAlone) {
  for (const bool bytes : {false, true}) {
    const Folder folder;
    for (const auto* split : {"train", "validation", "test"})
      folder.write(std::string(split) + ".safetensors",
                   bytes ? file({0, 1}, "", "U8", at::kByte) : file({0, 1}, "", "F32", at::kFloat));
    auto options = options_for(folder);
    options.flip = true;
    const auto sets = open_set(options, 1, Log(1));
    int flipped = 0;
    const auto plain = sets.train->get(0, 0, false)->inputs.front();
    for (int epoch = 0; epoch < 40; ++epoch) {
      const auto got = sets.train->get(0, epoch, true)->inputs.front();
      EXPECT_TRUE(at::equal(got, plain) || at::equal(got, plain.flip({2})));
      flipped += at::equal(got, plain) ? 0 : 1;
      EXPECT_TRUE(at::equal(sets.test->get(0, epoch, true)->inputs.front(), plain));
    }
    EXPECT_TRUE(flipped > 8 && flipped < 32) << flipped;
    options.random_resized_crop = true;
    const auto cropped = open_set(options, 1, Log(1)).train->get(0, 0, true)->inputs.front();
    EXPECT_EQ(cropped.sizes(), plain.sizes());
    EXPECT_FALSE(at::equal(cropped, plain));

    options = options_for(folder);
    options.random_erasing = 1;
    const auto erased = open_set(options, 1, Log(1)).train->get(0, 0, true)->inputs.front();
    const auto zeros = (erased == 0).sum().item<std::int64_t>();
    EXPECT_TRUE(zeros > 0 && zeros < erased.numel()) << zeros;
    EXPECT_TRUE(at::equal(at::where(erased == 0, plain, erased), plain));
    options.rand_augment = 2;
    const auto refusal = message_of<ConfigError>([&] { open_set(options, 1, Log(1)); });
    EXPECT_EQ(refusal.find("rand_augment: has no effect: the pixel_values in ") != std::string::npos, !bytes)
        << refusal;
    options.resize_shorter = 5;
    EXPECT_NE(message_of<ConfigError>([&] { open_set(options, 1, Log(1)); }).find("resize_shorter: has no effect: "),
              std::string::npos);
  }
}

TEST(Tensors, ImagesNeedNotBeSquare) {
  for (const bool bytes : {false, true}) {
    const Folder folder;
    for (const auto* split : {"train", "validation"})
      folder.write(std::string(split) + ".safetensors",
                   bytes ? file({0, 1}, "2,3,2,8", "U8", at::kByte) : file({0, 1}, "2,3,2,8"));
    auto options = options_for(folder);
    options.image_size = {2, 8};
    const auto plain = open_set(options, 1, Log(1));
    EXPECT_EQ(plain.info.spec.input("pixel_values")->shape, (std::vector<std::int64_t>{3, 2, 8}));
    const auto stored = values(2)[1].view({3, 2, 8});
    EXPECT_TRUE(training_images(plain.train, 0)[1]
                    .to(at::kDouble)
                    .allclose(bytes ? normalised(stored.permute({1, 2, 0})) : stored, 1e-6, 1e-6));
    if (bytes) {
      EXPECT_NE(plain.info.files.at("preprocessor_config.json").find("\"height\": 2"), std::string::npos);
      EXPECT_NE(plain.info.files.at("preprocessor_config.json").find("\"width\": 8"), std::string::npos);
    }
    options.random_resized_crop = options.flip = true;
    options.cutmix = 1;
    const auto augmented = training_images(open_set(options, 1, Log(1)).train, 0);
    EXPECT_EQ(augmented.sizes(), (std::vector<std::int64_t>{2, 3, 2, 8}));
    options.image_size = {8, 2};
    EXPECT_EQ(message_of([&] { open_set(options, 1, Log(1)); }),
              folder.path("train.safetensors") + ": images of 2 x 8 pixels, but data.image_size says [8, 2]");
  }
}

// The inputs are token ids and a mask; the labels are token labels, some of which do not count, and real numbers.
TEST(Tensors, HoldsAnyInputsAndLabels) {
  const Folder folder;
  const std::vector<std::int32_t> ids{5, 6, 7, 8, 9, 4};
  const std::vector<std::int64_t> labels{3, -100, 0, 1, 2, -100};
  const std::vector<float> weights{0.5F, 2.0F};
  for (const auto* split : {"train", "validation"})
    folder.write(std::string(split) + ".safetensors",
                 safetensors({{"input_ids", "I32", "2,3", bytes_of(ids)},
                              {"attention_mask", "BOOL", "2,3", std::string("\1\1\0\1\0\0", 6)},
                              {"weight", "F32", "2", bytes_of(weights)},
                              {"labels", "I64", "2,3", bytes_of(labels)}}));
  const auto sets = open_set(options_for(folder), 1, Log(1));
  EXPECT_EQ(sets.info.spec.classes, 4);
  EXPECT_TRUE(sets.info.spec.ignored_labels && sets.info.spec.class_names.empty());
  EXPECT_EQ(*sets.info.spec.input("input_ids"), (nn::SampleTensor{"input_ids", at::kLong, {3}}));
  const auto sample = sets.train->get(1, 0, true);
  EXPECT_TRUE(at::equal(sample->inputs["input_ids"], at::tensor(std::vector<std::int64_t>{8, 9, 4})));
  EXPECT_TRUE(at::equal(sample->inputs["attention_mask"], at::tensor({1, 0, 0}).to(at::kBool)));
  EXPECT_EQ(sample->inputs["weight"].item<double>(), 2);
  EXPECT_TRUE(at::equal(sample->targets["labels"], at::tensor(std::vector<std::int64_t>{1, 2, -100})));
  const auto some = sets.train->get_with({"attention_mask"}, 1, 0, true);
  EXPECT_EQ(some->inputs.names(), (std::vector<std::string>{"attention_mask"}));
  // A batch has the inputs in the spec's order, dense, whichever of them other ranks need too.
  for (const std::vector<std::string>& side :
       {std::vector<std::string>{}, {"weight"}, {"weight", "attention_mask"}, {"input_ids"}}) {
    LoaderOptions loading{.global_batch = 2, .micro_batch = 2, .side_inputs = side};
    for (const bool all : {true, false}) {
      if (!all) loading.needed = side;
      Loader loader(sets.train, loading);
      loader.start_epoch(0);
      const auto batch = loader.next()->micro.front();
      EXPECT_EQ(batch.inputs.names(), (std::vector<std::string>{"attention_mask", "input_ids", "weight"}));
      for (const auto& [name, tensor] : batch.inputs) {
        EXPECT_TRUE(tensor.is_contiguous()) << name;
        const bool is_read = all || std::find(side.begin(), side.end(), name) != side.end();
        EXPECT_EQ(tensor.is_meta(), !is_read) << name;
        EXPECT_TRUE(!is_read || at::equal(tensor[1], sample->inputs[name])) << name;
      }
      EXPECT_TRUE(at::equal(batch.targets["labels"][1], sample->targets["labels"]));
    }
  }
  auto options = options_for(folder);
  options.flip = true;
  EXPECT_THROW(open_set(options, 1, Log(1)), ConfigError) << "there is no image to flip";
}

TEST(Tensors, SaysWhatIsWrong) {
  const auto nan = std::numeric_limits<float>::quiet_NaN();
  const struct {
    const char* split;
    std::string content, says;  // after the file's path
  } cases[] = {
      {"train", "",
       ": not a safetensors file: 0 bytes are too few for a header (a tensors data set has labels [N, ...] and inputs, "
       "such as pixel_values [N, 3, H, W])"},
      {"train", safetensors({{"pixel_values", "U8", "1,3,1,1", "abc"}, {"label", "I64", "1", std::string(8, '\0')}}),
       ": holds no tensor \"labels\"; did you mean \"label\"? (a tensors data set has labels [N, ...] and inputs, such "
       "as pixel_values [N, 3, H, W])"},
      {"train", safetensors({{"labels", "I64", "1", std::string(8, '\0')}}),
       ": holds labels, but no inputs, such as pixel_values [N, 3, H, W]"},
      {"train",
       safetensors({{"pixel_values", "I16", "1,3,1,1", "abcdef"}, {"labels", "I64", "1", std::string(8, '\0')}}),
       ": pixel_values is int16; it must be float64, float32, float16, bfloat16 or uint8"},
      {"train", file({0, 1}, "2,2,3,8"), ": pixel_values is [2, 2, 3, 8]; it must be [N, 3, H, W]"},
      {"train", file({0, 1}, "2,48"), ": pixel_values is [2, 48]; it must be [N, 3, H, W]"},
      {"train", file({0, -1}),
       ": label -1 of sample 1 is out of range; labels are 0, 1, ... classes - 1 (at most 999999), or -100 for one "
       "that "
       "does not count"},
      {"validation", file({1LL << 40}),
       ": label 1099511627776 of sample 0 is out of range; labels are 0, 1, ... classes - 1 (at most 999999), or -100 "
       "for one that does not count"},
      {"train",
       safetensors({{"pixel_values", "U8", "2,3,1,1", "abcdef"}, {"labels", "I64", "1", std::string(8, '\0')}}),
       ": pixel_values is [2, 3, 1, 1], but there are 1 labels; each sample needs both"},
      {"train", safetensors({{"pixel_values", "U8", "1,3,1,1", "abc"}, {"labels", "I64", "", std::string(8, '\0')}}),
       ": labels is int64 []; it must be [N, ...], of integers or floating point"},
      {"validation",
       safetensors({{"pixel_values", "U8", "2,3,4,4", std::string(96, 'a')},
                    {"labels", "I64", "2", std::string(16, '\0')},
                    {"mask", "BOOL", "2,3", std::string(6, '\1')}}),
       ": holds mask (bool, 2-dimensional), pixel_values (float32, 4-dimensional), labels (int64, 1-dimensional), but "
       "the train split has pixel_values (float32, 4-dimensional), labels (int64, 1-dimensional)"},
      {"test", file({}), ": holds no samples"},
      {"validation",
       safetensors({{"pixel_values", "U8", "1,3,1,1", "abc"}, {"labels", "I32", "1", std::string(4, '\0')}}),
       ": images of 1 x 1 pixels, but the train split says 4"},
      {"validation", file({0, 1}, "2,3,2,8"), ": images of 2 x 8 pixels, but the train split says 4"},
  };
  for (const auto& c : cases) {
    const Folder folder;
    folder.write("train.safetensors", file({0, 1}));
    folder.write("validation.safetensors", file({0, 1}));
    const auto path = folder.write(std::string(c.split) + ".safetensors", c.content);
    EXPECT_EQ(message_of([&] { open_set(options_for(folder), 1, Log(1)); }), path + c.says);
  }
  const Folder folder;
  folder.write("train.safetensors", file({0, 1}));
  EXPECT_EQ(message_of([&] { open_set(options_for(folder), 1, Log(1)); }),
            folder.path("validation.safetensors") +
                ": cannot be opened: No such file or directory (a tensors data set has labels [N, ...] and inputs, "
                "such as pixel_values [N, 3, H, W])");
  folder.write("validation.safetensors", file({0, 1}));
  auto options = options_for(folder);
  options.image_size = 5;
  EXPECT_EQ(message_of([&] { open_set(options, 1, Log(1)); }),
            folder.path("train.safetensors") + ": images of 4 x 4 pixels, but data.image_size says 5");
  options = options_for(folder);
  options.path = "";
  EXPECT_EQ(message_of<ConfigError>([&] { open_set(options, 1, Log(1)); }),
            "the program's options: [data] path: is required with name = \"tensors\": the folder of the data set");

  // A NaN is found when its sample is read; the other samples are good.
  std::vector<float> pixels(96, 1.0F);
  pixels[50] = nan;
  const auto path = folder.write("train.safetensors",
                                 safetensors({{"pixel_values", "F32", "2,3,4,4", bytes_of(pixels)},
                                              {"labels", "I64", "2", bytes_of(std::vector<std::int64_t>{0, 1})}}));
  auto sets = open_set(options_for(folder), 1, Log(1));
  EXPECT_TRUE(sets.train->get(0, 0, false).has_value());
  EXPECT_EQ(message_of([&] { sets.train->get(1, 0, false); }),
            path +
                ": pixel_values of sample 1 contains a value that is not finite; repair or remove it, or set "
                "data.on_bad_sample = \"skip\" to continue without it");
}

}  // namespace
}  // namespace trireme::data
