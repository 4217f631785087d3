// Image folders: order, names, every error message, and bad samples.
#include "tests/unit/datasets/folder.h"

#include <ATen/ops/equal.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "core/data/datasets.h"
#include "core/data/loader.h"
#include "datasets/held_out.h"
#include "datasets/image.h"
#include "datasets/transform.h"

namespace trireme::data {
namespace {

using namespace datasets;

namespace fs = std::filesystem;
using testing_tools::Folder;
using testing_tools::label_of;
using testing_tools::message_of;
using testing_tools::open_set;
using testing_tools::plain;
using testing_tools::ramp;

/// Writes an image that its red value identifies.
void put(const Folder& folder, const std::string& name, unsigned char red, std::int64_t side = 8) {
  fs::create_directories(fs::path(folder.path(name)).parent_path());
  write_png(folder.path(name), plain(side, side, red, 0, 0));
}

void put_all(const Folder& folder) {
  put(folder, "train/b/2.png", 1);
  put(folder, "train/b/10.JPEG", 0);  // "10" is before "2" in byte order; the file is a PNG
  put(folder, "train/a/x.jpg", 2);
  put(folder, "validation/a/v.png", 3);
  put(folder, "validation/b/v.png", 4);
}

datasets::FolderOptions options_for(const std::string& path) {
  datasets::FolderOptions options;
  options.path = path;
  options.image_size = 8;
  return options;
}

int red_of(const Sample& sample) {
  return static_cast<int>((sample.inputs.front()[0][0][0].item<double>() * 0.5 + 0.5) * 255 + 0.5);
}

TEST(ImageFolder, ListsClassesAndFilesInByteOrder) {
  const Folder folder;
  put_all(folder);
  folder.write("train/.hidden/x.png", "");
  folder.write("train/a/.DS_Store", "");
  folder.write("train/a/notes.txt", "");
  folder.write("train/readme.md", "");
  auto sets = open_set(options_for(folder.path()), 1, Log(1));
  EXPECT_EQ(sets.info.spec.class_names, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(sets.info.spec.classes, 2);
  ASSERT_EQ(sets.train->size(), 3);
  EXPECT_EQ(sets.validation->size(), 2);
  EXPECT_EQ(sets.test, nullptr);
  const int reds[] = {2, 0, 1}, labels[] = {0, 1, 1};
  for (std::int64_t i = 0; i < 3; ++i) {
    const auto sample = sets.train->get(i, 0, true);
    EXPECT_EQ(red_of(*sample), reds[i]);
    EXPECT_EQ(label_of(*sample), labels[i]);
  }
  EXPECT_EQ(sets.train->spec().input("pixel_values")->shape, (std::vector<std::int64_t>{3, 8, 8}));
  put(folder, "test/b/t.png", 9);
  fs::rename(folder.path("validation"), folder.path("val"));
  sets = open_set(options_for(folder.path()), 1, Log(1));
  EXPECT_EQ(sets.validation->size(), 2);
  EXPECT_EQ(label_of(*sets.test->get(0, 0, false)), 1);
}

TEST(ImageFolder, IsListedByOneRankPerHost) {
  const Folder folder;
  put_all(folder);
  put(folder, "train/a/\xff.png", 2);  // a name need not be UTF-8
  const auto rank = [](int local_rank) {
    LaunchInfo info{Launcher::mpirun, local_rank, 3, local_rank, 3};
    info.job = fmt::format("folder test {}", ::getpid());
    return info;
  };
  const auto options = options_for(folder.path());
  const auto first = open_set(options, 1, Log(1), {.launch = rank(0)});
  fs::rename(folder.path("validation"), folder.path("gone"));  // listing the folder again would fail
  for (const int local_rank : {1, 2}) {
    const auto sets = open_set(options, 1, Log(1), {.launch = rank(local_rank)});
    EXPECT_EQ(sets.info.spec.class_names, first.info.spec.class_names);
    ASSERT_EQ(sets.train->size(), 4);
    EXPECT_EQ(sets.validation->size(), 2);
    EXPECT_EQ(sets.test, nullptr);
    for (std::int64_t i = 0; i < 4; ++i) {
      EXPECT_EQ(label_of(*sets.train->get_with({}, i, 0, false)), label_of(*first.train->get_with({}, i, 0, false)));
      EXPECT_EQ(red_of(*sets.train->get(i, 0, false)), red_of(*first.train->get(i, 0, false)));
    }
  }
  auto other_run = rank(0);
  other_run.job += " of another run";
  EXPECT_THROW(open_set(options, 1, Log(1), {.launch = other_run}), DataError);
}

TEST(ImageFolder, TheValidationSplitHasSeveralNames) {
  for (const auto* name : {"valid", "val", "dev"}) {
    const Folder folder;
    put_all(folder);
    fs::rename(folder.path("validation"), folder.path(name));
    EXPECT_EQ(open_set(options_for(folder.path()), 1, Log(1)).validation->size(), 2) << name;
  }
}

TEST(HeldOut, TakesTheSameShareOfEachClass) {
  const auto label = [](std::int64_t i) { return i < 90 ? 0 : i < 110 ? 1 : i < 112 ? 2 : 3; };  // 90, 20, 2 and 1
  const auto held = datasets::hold_out(113, label, {.validation_share = 0.1, .split_seed = 5});
  std::array<std::int64_t, 4> counts{};
  for (const auto i : held.validation) ++counts[static_cast<std::size_t>(label(i))];
  EXPECT_EQ(counts, (std::array<std::int64_t, 4>{9, 2, 1, 0}));
  auto all = held.train;
  all.insert(all.end(), held.validation.begin(), held.validation.end());
  EXPECT_TRUE(std::is_sorted(held.train.begin(), held.train.end()));
  std::sort(all.begin(), all.end());
  for (std::int64_t i = 0; i < 113; ++i) ASSERT_EQ(all.at(static_cast<std::size_t>(i)), i);
  EXPECT_EQ(datasets::hold_out(113, label, {.validation_share = 0.1, .split_seed = 5}).validation, held.validation);
  EXPECT_NE(datasets::hold_out(113, label, {.validation_share = 0.1, .split_seed = 6}).validation, held.validation);
  EXPECT_EQ(datasets::hold_out(113, label, {.validation_share = 0.999, .split_seed = 5}).train.size(), 4U)
      << "no class is without a sample to train on";
}

TEST(HeldOut, FoldsHoldEachSampleOnce) {
  const auto label = [](std::int64_t i) { return i < 9 ? 0 : i < 16 ? 1 : i < 19 ? 2 : 3; };  // 9, 7, 3 and 1
  std::vector<int> in_folds(20);
  for (std::int64_t fold = 0; fold < 4; ++fold) {
    const auto held = datasets::hold_out(20, label, {.folds = 4, .fold = fold, .split_seed = 5});
    std::array<std::int64_t, 4> counts{};
    for (const auto i : held.validation) {
      ++counts[static_cast<std::size_t>(label(i))];
      ++in_folds[static_cast<std::size_t>(i)];
    }
    EXPECT_EQ(counts[0], fold < 1 ? 3 : 2) << fold;
    EXPECT_EQ(counts[1], fold == 0 ? 1 : 2) << fold;
    EXPECT_EQ(counts[2], fold < 3 ? 1 : 0) << fold;
    EXPECT_EQ(held.train.size() + held.validation.size(), 20U) << fold;
  }
  EXPECT_EQ(in_folds, [] {
    std::vector<int> once(20, 1);
    once[19] = 0;  // the only one of its class is always for training
    return once;
  }());
}

TEST(ImageFolder, TakesAValidationSplitFromTheTrainingImages) {
  const Folder folder;
  for (int i = 0; i < 30; ++i)
    put(folder, fmt::format("train/{}/{:02}.png", i % 3 == 0 ? "a" : "b", i), static_cast<unsigned char>(i));
  auto options = options_for(folder.path());
  options.validation_share = 0.2;
  options.split_seed = 3;
  const auto sets = open_set(options, 1, Log(1)), again = open_set(options, 2, Log(1));
  ASSERT_EQ(sets.train->size(), 24);
  ASSERT_EQ(sets.validation->size(), 6);
  EXPECT_EQ(sets.info.digest, again.info.digest) << "the run's seed does not matter";
  std::set<int> seen;
  std::int64_t of_a = 0;
  for (const auto& set : {sets.train, sets.validation})
    for (std::int64_t i = 0; i < set->size(); ++i) {
      const auto sample = set->get(i, 0, false).value();
      const auto red = red_of(sample);
      seen.insert(red);
      EXPECT_EQ(label_of(sample), red % 3 == 0 ? 0 : 1);
      of_a += set == sets.validation && red % 3 == 0;
    }
  EXPECT_EQ(seen.size(), 30U);
  EXPECT_EQ(of_a, 2);
  options.split_seed = 4;
  EXPECT_NE(open_set(options, 1, Log(1)).info.digest, sets.info.digest);
  options.validation_share.reset();
  EXPECT_EQ(testing_tools::message_of<ConfigError>([&] { open_set(options, 1, Log(1)); }),
            "data.split_seed = 4: has no effect without validation_share or folds; remove it, or set one of them");
  put(folder, "validation/a/x.png", 1);
  put(folder, "validation/b/x.png", 1);
  options.validation_share = 0.2;
  EXPECT_EQ(
      testing_tools::message_of<ConfigError>([&] { open_set(options, 1, Log(1)); }),
      "validation_share: has no effect, because " + folder.path() + " has a validation split; remove one of the two");
}

// data.exif and data.background reach the decoder, and what has an orientation is counted.
TEST(ImageFolder, DecodesAsItsKeysSay) {
  const Folder folder;
  const fs::path formats(TRIREME_SOURCE_DIR "/tests/golden/formats");
  for (const auto* split : {"train", "validation"}) {
    fs::create_directories(folder.path(std::string(split) + "/a"));
    fs::copy_file(formats / "held_6.jpg", folder.path(std::string(split) + "/a/1.jpg"));
    fs::copy_file(formats / "alpha_lossless.webp", folder.path(std::string(split) + "/a/2.WEBP"));
  }
  auto options = options_for(folder.path());
  options.cache_mb = 0;
  const auto usual = open_set(options, 1, Log(1));
  options.exif = "apply";
  options.background = {{255, 0, 0}};
  const auto changed = open_set(options, 1, Log(1));
  for (std::int64_t i = 0; i < 2; ++i)
    EXPECT_FALSE(
        at::equal(usual.train->get(i, 0, false)->inputs.front(), changed.train->get(i, 0, false)->inputs.front()));
  for (const auto& sets : {usual, changed}) {
    EXPECT_EQ(sets.train->oriented(), std::vector<std::int64_t>{0});
    EXPECT_TRUE(sets.validation->oriented().empty()) << "none was read";
  }
}

TEST(ImageFolder, SaysWhatIsWrong) {
  const struct {
    const char* what;
    std::function<void(const Folder&)> damage;
    const char* says;  // after the folder's path
  } cases[] = {
      {"a missing train split", [](const Folder& f) { fs::remove_all(f.path("train")); },
       "/train: the train split is missing; create it, with one subfolder of images per class"},
      {"a missing validation split", [](const Folder& f) { fs::remove_all(f.path("validation")); },
       "/validation: the validation split is missing; create it, with one subfolder of images per class, or set "
       "data.validation_share, such as 0.1, to take it from the training images"},
      {"a file for a split",
       [](const Folder& f) {
         fs::remove_all(f.path("train"));
         f.write("train", "x");
       },
       "/train: the train split is missing; create it, with one subfolder of images per class"},
      {"a class whose name is no text", [](const Folder& f) { put(f, "train/caf\xE9/x.png", 1); },
       "/train/caf\\xE9: this class folder's name is not UTF-8; rename it"},
      {"an empty class", [](const Folder& f) { fs::create_directories(f.path("train/c")); },
       "/train/c: no image (.jpg, .jpeg, .png, .webp, .bmp, .gif, .tif, .tiff) in this class folder; add some or "
       "remove the folder"},
      {"an empty validation class", [](const Folder& f) { fs::remove(f.path("validation/b/v.png")); },
       "/validation/b: no image (.jpg, .jpeg, .png, .webp, .bmp, .gif, .tif, .tiff) in this class folder; add some or "
       "remove the folder"},
      {"a split without classes", [](const Folder& f) { fs::create_directories(f.path("test")); },
       "/test: no class folder in this split; expected {}/test/<class>/*.jpg"},
      {"a class that train lacks", [](const Folder& f) { put(f, "validation/zebra/v.png", 1); },
       "/validation/zebra: class \"zebra\" is not in {}/train (classes: a, b); a class must be in train to be learned"},
      {"an image beside the classes", [](const Folder& f) { put(f, "train/stray.png", 1); },
       "/train/stray.png: this image is in no class folder; move it into one, or remove it"},
      {"a folder in a class", [](const Folder& f) { put(f, "train/a/more/x.png", 1); },
       "/train/a/more: a folder in a class folder; move its images into {}/train/a, or remove it"},
      {"both names of a split", [](const Folder& f) { fs::create_directories(f.path("val")); },
       ": has validation and val, which mean the same split; remove one"},
      {"no folder at all", [](const Folder& f) { fs::remove_all(f.path()); },
       ": no such folder; set data.path to a folder with train/ and validation/ in it"},
      {"a file for a folder",
       [](const Folder& f) {
         fs::remove_all(f.path());
         std::ofstream(f.path()) << "x";
       },
       ": not a folder; set data.path to a folder with train/ and validation/ in it"},
  };
  for (const auto& c : cases) {
    const Folder folder;
    put_all(folder);
    c.damage(folder);
    const auto got = message_of([&] { open_set(options_for(folder.path()), 1, Log(1)); });
    EXPECT_EQ(got, folder.path() + fmt::format(fmt::runtime(c.says), folder.path())) << c.what;
  }
  const Folder folder;
  put_all(folder);
  EXPECT_EQ(
      message_of([&] { open_set(options_for(folder.path("train")), 1, Log(1)); }),
      fmt::format("{0}/train: this is one split; set data.path to the folder that contains it: {0}", folder.path()));
  EXPECT_EQ(message_of<ConfigError>([] { open_set(options_for(""), 1, Log(1)); }),
            "the program's options: [data] path: is required with name = \"image_folder\": the folder of the data set");
}

TEST(ImageFolder, RefusesInvalidOptions) {
  const Folder folder;
  put_all(folder);
  const auto says = [&](auto&& change) {
    auto options = options_for(folder.path());
    change(options);
    return message_of<ConfigError>([&] { open_set(options, 1, Log(1)); });
  };
  using O = datasets::FolderOptions;
  EXPECT_EQ(says([](O& o) { o.mean = {1}; }).find("data.mean = [1.0]: must have 3 elements, not 1"), 0U);
  EXPECT_EQ(says([](O& o) { o.std = {1, 0, 1}; }).find("data.std = [1.0, 0.0, 1.0]: each number must be above 0"), 0U);
  EXPECT_EQ(says([](O& o) { o.image_size = 0; }).find("data.image_size = 0: it must be at least 1"), 0U);
  EXPECT_EQ(says([](O& o) {
              o.random_resized_crop = true;
              o.crop_scale = {0.5, 0.2};
            }).find("data.crop_scale = [0.5, 0.2]: must be the smaller fraction first, then the larger"),
            0U);
  EXPECT_EQ(says([](O& o) { o.resize_shorter = 7; }).find("data.resize_shorter = 7: is less than image_size = 8, "),
            0U);
  EXPECT_EQ(says([](O& o) {
              o.image_size = {8, 0};
            }).find("data.image_size = [8, 0]: each number must be at least 1"),
            0U);
  EXPECT_EQ(says([](O& o) {
              o.image_size = {6, 9};
              o.resize_shorter = 8;
            }).find("data.resize_shorter = 8: is less than the longer side of image_size = [6, 9], "),
            0U);
  EXPECT_EQ(says([](O& o) {
              o.image_size.reset();
              o.resize_shorter = 223;
            }).find("data.resize_shorter = 223: is less than image_size = 224, "),
            0U);
  EXPECT_EQ(says([](O& o) {
              o.rand_augment = 1;
              o.rand_augment_magnitude = 31;
            }).find("data.rand_augment_magnitude = 31: it must be at least 0 and at most 30"),
            0U);
  EXPECT_EQ(says([](O& o) {
              o.rand_augment_magnitude = 5;
            }).find("data.rand_augment_magnitude = 5: has no effect with rand_augment = 0; remove it"),
            0U);
  EXPECT_EQ(says([](O& o) { o.random_erasing = 1.5; }).find("data.random_erasing = 1.5: it must be at least 0 and"),
            0U);
}

TEST(ImageFolder, AugmentsTheTrainSplitAloneAndCropsTheOthersCentre) {
  const Folder folder;
  put_all(folder);
  for (const auto* split : {"train", "validation"}) write_png(folder.path(split) + "/a/ramp.png", ramp(20, 31));
  auto options = options_for(folder.path());
  options.resize_shorter = 10;
  options.random_resized_crop = true;
  options.rand_augment = 2;
  options.rand_augment_magnitude = 12;
  options.random_erasing = 0.5;
  const auto sets = open_set(options, 1, Log(1));
  TransformOptions plain_transform;
  plain_transform.size = 8;
  plain_transform.resize_shorter = 10;
  const auto want = testing_tools::normalised(fit(ramp(20, 31), plain_transform), plain_transform);
  const auto pixels = [](Dataset& split, int epoch, bool augment) {
    return split.get(0, epoch, augment)->inputs.front();
  };
  for (int epoch = 0; epoch < 4; ++epoch) {
    EXPECT_TRUE(at::equal(pixels(*sets.validation, epoch, true), want));
    EXPECT_TRUE(at::equal(pixels(*sets.train, epoch, false), want)) << "an evaluation of the train split";
    EXPECT_FALSE(at::equal(pixels(*sets.train, epoch, true), want));
  }

  using Json = nlohmann::json;
  const auto written = [](const Datasets& data) { return Json::parse(data.info.files.at("preprocessor_config.json")); };
  auto got = written(sets);
  EXPECT_EQ(got["image_processor_type"], "BitImageProcessor");
  EXPECT_EQ(got["size"], (Json{{"shortest_edge", 10}}));
  EXPECT_EQ(got["do_center_crop"], true);
  EXPECT_EQ(got["crop_size"], (Json{{"height", 8}, {"width", 8}}));
  options.resize_shorter.reset();
  got = written(open_set(options, 1, Log(1)));
  EXPECT_EQ(got["image_processor_type"], "ViTImageProcessor");
  EXPECT_EQ(got["size"], (Json{{"height", 8}, {"width", 8}}));
  EXPECT_FALSE(got.contains("do_center_crop"));
}

TEST(ImageFolder, ABadSampleEndsTheRunOrIsSkippedAndCounted) {
  const Folder folder;
  put_all(folder);
  const auto bad = folder.write("train/a/broken.jpg", "text");
  auto options = options_for(folder.path());
  auto sets = open_set(options, 1, Log(1));
  EXPECT_EQ(message_of([&] { sets.train->get(0, 0, true); }),
            bad +
                ": no image, by its first bytes: none of JPEG, PNG, WebP, BMP, GIF, TIFF; repair or remove it, or set "
                "data.on_bad_sample = \"skip\" "
                "to continue without it");

  std::FILE* lines = std::tmpfile();
  sets = open_set(options, 1, Log(2, lines), {.skip_bad_samples = true});
  for (int epoch = 0; epoch < 3; ++epoch) {
    EXPECT_FALSE(sets.train->get(0, epoch, true).has_value());
    EXPECT_TRUE(sets.train->get(1, epoch, true).has_value());
  }
  EXPECT_EQ(sets.train->skipped().size(), 1U);
  std::rewind(lines);
  char text[512] = {};
  const auto length = std::fread(text, 1, sizeof text - 1, lines);
  std::fclose(lines);
  EXPECT_EQ(std::string(text, length), "warning: rank 2: a sample is skipped: " + bad +
                                           ": no image, by its first bytes: none of JPEG, PNG, WebP, BMP, GIF, TIFF\n");

  // In a loader of two ranks, the next sample replaces the bad one on either rank.
  std::vector<std::int64_t> ids;
  for (int rank = 0; rank < 2; ++rank) {
    Loader loader(sets.train, {.global_batch = 4, .micro_batch = 2, .dp_rank = rank, .dp_size = 2, .workers = 2});
    loader.start_epoch(0);
    const auto step = loader.next();
    EXPECT_EQ(step->local_samples, 2);
    for (std::int64_t i = 0; i < 2; ++i) ids.push_back(step->micro[0].sample_ids[i].item<std::int64_t>());
  }
  EXPECT_EQ(ids, (std::vector<std::int64_t>{1, 1, 2, 3}));
}

TEST(ImageFolder, AugmentationIsTheSameWithAnyWorkersRanksAndCache) {
  const Folder folder;
  for (int i = 0; i < 24; ++i) {
    const auto name = fmt::format("train/{}/{:02}.png", i % 2 == 0 ? "a" : "b", i);
    fs::create_directories(fs::path(folder.path(name)).parent_path());
    write_png(folder.path(name), testing_tools::ramp(20 + i, 31 - i / 2));
  }
  put(folder, "validation/a/v.png", 1);
  auto options = options_for(folder.path());
  options.flip = options.random_resized_crop = true;
  std::vector<at::Tensor> reference(24);
  int differ = 0;
  for (const double cache : {0.0, 512.0})
    for (const int ranks : {1, 3})
      for (const std::int64_t workers : {1, 4}) {
        options.cache_mb = cache;
        const auto sets = open_set(options, 6, Log(1));
        for (std::int64_t epoch = 0; epoch < 2; ++epoch)
          for (int rank = 0; rank < ranks; ++rank) {
            Loader loader(sets.train, {.global_batch = 9,
                                       .micro_batch = 2,
                                       .dp_rank = rank,
                                       .dp_size = ranks,
                                       .seed = 3,
                                       .shuffle = true,
                                       .augment = true,
                                       .workers = workers});
            loader.start_epoch(epoch);
            while (const auto step = loader.next())
              for (const auto& micro : step->micro)
                for (std::int64_t i = 0; i < micro.size(); ++i) {
                  auto& want = reference[static_cast<std::size_t>(micro.sample_ids[i].item<std::int64_t>())];
                  if (!want.defined()) want = micro.inputs.front()[i];
                  const bool same = at::equal(want, micro.inputs.front()[i]);
                  if (epoch == 0)
                    EXPECT_TRUE(same);
                  else if (!same)
                    ++differ;
                }
          }
      }
  EXPECT_GT(differ, 8 * 20) << "crops differ between epochs";
  // Without `augment`, and in the other splits, the image is unchanged.
  const auto sets = open_set(options, 6, Log(1));
  EXPECT_TRUE(at::equal(sets.train->get(3, 0, false)->inputs.front(), sets.train->get(3, 5, false)->inputs.front()));
  EXPECT_TRUE(
      at::equal(sets.validation->get(0, 0, true)->inputs.front(), sets.validation->get(0, 5, true)->inputs.front()));
}

}  // namespace
}  // namespace trireme::data
