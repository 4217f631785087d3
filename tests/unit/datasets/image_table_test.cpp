// Tables of images: the samples of an image folder, the column of splits, what is held out, and every error.
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "datasets/image.h"
#include "tests/unit/datasets/text_tools.h"

namespace trireme::data {
namespace {

namespace fs = std::filesystem;
using datasets::ImageTableOptions;
using testing_tools::label_of;
using testing_tools::ramp;

class ImageTable : public TextTest {
 protected:
  /// set/{train,validation}/{a,b}/*.png, images that all differ: an image folder.
  ImageTable() {
    std::int64_t side = 8;
    for (const std::string name : {"train/a/1", "train/a/2", "train/b/3", "validation/a/4", "validation/b/5"}) {
      fs::create_directories(fs::path(folder_.path("set/" + name)).parent_path());
      write_png(folder_.path("set/" + name + ".png"), ramp(side, side + 3));
      ++side;
    }
  }
  template <class Options>
  [[nodiscard]] static Options with_size(Options options) {
    options.image_size = 8;
    return options;
  }
  /// A table of all splits.
  [[nodiscard]] ImageTableOptions with_splits(const std::string& rows) const {
    auto o = with_size(ImageTableOptions{});
    o.train = write("set/all.csv", "file_name,label,split\n" + rows);
    o.split = "split";
    return o;
  }
  [[nodiscard]] std::string error_of_table(const ImageTableOptions& options) const {
    return error_of(image_table(options));
  }
};

TEST_F(ImageTable, GivesTheSamplesOfAnImageFolder) {
  datasets::FolderOptions of_folder;
  of_folder.path = folder_.path("set");
  const auto expected = open(image_folder(with_size(of_folder)));
  auto one = with_splits(
      "train/a/1.png,a,train\nvalidation/a/4.png,a,dev\ntrain/a/2.png,a,train\ntrain/b/3.png,b,train\n"
      "validation/b/5.png,b,validation\n");
  auto by_path = with_size(ImageTableOptions{});
  by_path.path = folder_.path("tables");
  by_path.images = folder_.path("set/");
  static_cast<void>(write("tables/train.tsv", "index\tfile\tlabel\n0\ttrain/a/1.png\ta\n1\t" +
                                                  folder_.path("set/train/a/2.png") + "\ta\n\n2\ttrain/b/3.png\tb\n"));
  static_cast<void>(write("tables/val.jsonl",
                          "{\"path\":\"validation/a/4.png\",\"label\":\"a\"}\n"
                          "{\"label\":\"b\",\"path\":\"validation/b/5.png\"}\n"));
  static_cast<void>(write("tables/test.csv", "image\nnot looked up, because there is nothing to evaluate\n"));
  auto of_hub = with_size(ImageTableOptions{});  // the Hub's layout: the metadata beside the images
  of_hub.path = folder_.path("set");
  static_cast<void>(write("set/train/metadata.csv", "file_name,label\na/1.png,a\na/2.png,a\nb/3.png,b\n"));
  static_cast<void>(
      write("set/validation/metadata.jsonl",
            "{\"file_name\":\"a/4.png\",\"label\":\"a\"}\n{\"file_name\":\"b/5.png\",\"label\":\"b\"}\n"));
  for (auto options : {one, by_path, of_hub}) {
    SCOPED_TRACE(options.path + options.train);
    options.flip = true;
    options.random_resized_crop = true;
    of_folder.flip = of_folder.random_resized_crop = true;
    const auto sets = open(image_table(options)), augmented = open(image_folder(with_size(of_folder)));
    EXPECT_EQ(sets.info.spec.class_names, expected.info.spec.class_names);
    EXPECT_EQ(sets.info.spec.targets, expected.info.spec.targets);
    EXPECT_EQ(sets.info.files, expected.info.files);
    EXPECT_EQ(sets.test, nullptr);
    for (const auto split : {Split::train, Split::validation}) {
      auto now = sets;
      auto before = split == Split::train ? augmented : expected;
      ASSERT_EQ(now.of(split)->size(), before.of(split)->size());
      for (std::int64_t i = 0; i < now.of(split)->size(); ++i) {
        const auto sample = *now.of(split)->get(i, 1, split == Split::train);
        const auto like = *before.of(split)->get(i, 1, split == Split::train);
        EXPECT_TRUE(at::equal(sample.inputs["pixel_values"], like.inputs["pixel_values"])) << i;
        EXPECT_EQ(label_of(sample), label_of(like)) << i;
      }
    }
  }
}

TEST_F(ImageTable, HasLabelsAndNumbers) {
  auto o = with_size(ImageTableOptions{});
  o.train = o.validation = write("set/two.csv", "image,x,y,v\ntrain/a/1.png,1,0,0.5\ntrain/b/3.png,1,1,-2\n");
  o.labels = {"x", "y"};
  const auto labels = open(image_table(o));
  EXPECT_EQ(labels.info.spec.class_names, o.labels);
  o.labels.clear();
  o.numbers = {"v"};
  const auto numbers = open(image_table(o));
  EXPECT_NE(labels.info.digest, numbers.info.digest);
  Loader of_labels(labels.train, {.global_batch = 2, .micro_batch = 2}),
      of_numbers(numbers.train, {.global_batch = 2, .micro_batch = 2});
  of_labels.start_epoch(0);
  of_numbers.start_epoch(0);
  const auto flags = of_labels.next()->micro.front().targets[nn::kLabels],
             values = of_numbers.next()->micro.front().targets[nn::kLabels];
  EXPECT_EQ(flags.scalar_type(), at::kBool);
  EXPECT_EQ(values_of(flags.to(at::kLong)), (std::vector<std::int64_t>{1, 0, 1, 1}));
  EXPECT_EQ(values_of((values * 2).to(at::kLong)), (std::vector<std::int64_t>{1, -4}));
  o.mixup = 0.2;
  EXPECT_EQ(error_of<ConfigError>(image_table(o)),
            "mixup: has no effect: labels of set/two.csv are not one class for each image; remove it");
}

TEST_F(ImageTable, AValidationSplitIsTakenFromTheTrainingImages) {
  std::string rows;
  for (int i = 0; i < 10; ++i) rows += fmt::format("train/a/1.png,{},train\n", i < 6 ? "x" : "y");
  auto o = with_splits(rows);
  o.validation_share = 0.34;
  const auto sets = open(image_table(o));
  std::multiset<std::int64_t> held;
  for (std::int64_t i = 0; i < sets.validation->size(); ++i) held.insert(label_of(*sets.validation->get(i, 0, false)));
  EXPECT_EQ(held, (std::multiset<std::int64_t>{0, 0, 1})) << "of each class";
  EXPECT_EQ(sets.train->size(), 7);
  o.split_seed = 1;
  EXPECT_NE(open(image_table(o)).info.digest, sets.info.digest);
  EXPECT_EQ(error_of<ConfigError>(image_table([&] {
              auto both = with_splits(rows + "train/a/2.png,x,val\n");
              both.validation_share = 0.1;
              return both;
            }())),
            "validation_share: has no effect, because set/all.csv has a validation split; remove one of the two");
}

TEST_F(ImageTable, ATestSplitWithHiddenLabelsIsLeftOut) {
  const std::string rows = "train/a/1.png,a,train\ntrain/b/3.png,b,train\nvalidation/a/4.png,a,val\n";
  EXPECT_EQ(open(image_table(with_splits(rows + "train/a/2.png,,test\n"))).test, nullptr);
  EXPECT_EQ(open(image_table(with_splits(rows + "train/a/2.png,b,test\n"))).test->size(), 1);
}

TEST_F(ImageTable, ImagesThatCannotBeReadAreSkippedIfAsked) {
  const auto o = with_splits("train/a/1.png,a,train\ngone.png,a,train\ntrain/b/3.png,b,train\ntrain/a/2.png,a,dev\n");
  EXPECT_EQ(error_of_table(o),
            "set/all.csv:3: set/gone.png: no such file; correct the row, or set data.on_bad_sample = \"skip\" to "
            "continue without it");
  auto skipping = quiet();
  skipping.skip_bad_samples = true;
  auto source = image_table(o);
  const auto sets = data::open(source, skipping);
  ASSERT_EQ(sets.train->size(), 3);
  EXPECT_FALSE(sets.train->get(1, 0, false));
  EXPECT_TRUE(sets.train->get(2, 0, false));
  EXPECT_EQ(sets.train->skipped(), std::vector<std::int64_t>{1});
}

TEST_F(ImageTable, SaysWhatIsWrong) {
  const struct {
    const char *rows, *message;
    bool held_out = false;
  } cases[] = {
      {"train/a/1.png,a,train\ntrain/a/2.png,a,holdout\n",
       "set/all.csv:3: the split \"holdout\" is unknown; write train, validation (or valid, val, dev) or test"},
      {"train/a/1.png,a,train\n",
       "set/all.csv: no row has the split validation in the column \"split\" (or valid, val, dev); or set "
       "data.validation_share, which takes it from the training images"},
      {"train/a/1.png,a,test\n", "set/all.csv: no row has the split train in the column \"split\""},
      {"train,a,train\n",
       "set/all.csv:2: set/train: a folder; correct the row, or set data.on_bad_sample = \"skip\" to continue without "
       "it"},
      {"train/a/1.png,a,train\ntrain/a/2.png,ant,dev\n",
       "set/all.csv:3: the label \"ant\" is not in the train split (its labels: a); a class must be in train to be "
       "learned"},
      {"train/a/1.png,,train\n", "set/all.csv:2: the label is blank; write the class there, or remove the row", true}};
  for (const auto& c : cases) {
    auto o = with_splits(c.rows);
    if (c.held_out) o.validation_share = 0.5;
    EXPECT_EQ(error_of_table(o), c.message) << c.rows;
  }
  auto two = with_size(ImageTableOptions{});
  two.train = two.validation = write("set/two.csv", "image,path,label\na,b,c\n");
  EXPECT_EQ(
      error_of_table(two),
      "set/two.csv:1: there are columns \"image\" and \"path\" (the columns: image, path, label); name the column "
      "of the image with data.image");
  two.image = "img";
  EXPECT_EQ(error_of_table(two),
            "set/two.csv:1: there is no column \"img\", which data.image names (the columns: image, path, label)");
  two.split = "label";
  EXPECT_EQ(error_of<ConfigError>(image_table(two)),
            "data.split = \"label\": needs one table for all splits, which train names; remove path, validation and "
            "test");
}

}  // namespace
}  // namespace trireme::data
