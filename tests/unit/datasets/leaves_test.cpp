// The drawn leaves are the same bytes each time, balanced, and not separable by a linear model.
#include "datasets/leaves.h"

#include <ATen/Parallel.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/linalg_solve.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/one_hot.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "core/base/random.h"
#include "datasets/image.h"
#include "tests/unit/datasets/folder.h"

namespace trireme::data {
namespace {

using namespace datasets;

using testing_tools::Folder;
using testing_tools::label_of;
using testing_tools::message_of;
using testing_tools::open_set;

/// FNV over the pixels.
std::uint64_t fingerprint(const at::Tensor& image) {
  return random::hash({static_cast<const char*>(image.const_data_ptr()), image.nbytes()});
}

TEST(Leaves, AreTheSameBytesOnEveryMachine) {
  // A change of the drawing code changes these hashes, and must be intended.
  EXPECT_EQ(fingerprint(draw_leaf(Split::train, 0, 32, 7)), 4067284987666543621ULL);
  EXPECT_EQ(fingerprint(draw_leaf(Split::train, 1, 48, 7)), 15441804664451715561ULL);
  EXPECT_EQ(fingerprint(draw_leaf(Split::validation, 2, 64, 8)), 1089861864835912267ULL);
  EXPECT_NE(fingerprint(draw_leaf(Split::train, 0, 32, 7)), fingerprint(draw_leaf(Split::train, 0, 32, 8)));
  EXPECT_NE(fingerprint(draw_leaf(Split::train, 0, 32, 7)), fingerprint(draw_leaf(Split::validation, 0, 32, 7)));
  EXPECT_NE(fingerprint(draw_leaf(Split::train, 0, 32, 7)), fingerprint(draw_leaf(Split::train, 3, 32, 7)));
}

TEST(Leaves, AreEqualInMemoryAndOnDisk) {
  const Folder folder;
  write_leaves(folder.path(), 40, 32, 7);
  datasets::LeavesOptions options;
  options.images = 40;
  options.image_size = {20, 32};
  const auto drawn = open_set(options, 1, Log(1));
  options.path = folder.path();
  options.images = datasets::LeavesOptions{}.images;
  const auto read = open_set(options, 1, Log(1));
  EXPECT_EQ(drawn.info.spec.class_names, (std::vector<std::string>{"angular_spots", "healthy", "rust"}));
  EXPECT_EQ(drawn.info.spec.class_names, read.info.spec.class_names);
  EXPECT_EQ(drawn.info.spec.input("pixel_values")->shape, (std::vector<std::int64_t>{3, 20, 32}));
  EXPECT_EQ(drawn.train->size(), 28);
  EXPECT_EQ(drawn.validation->size(), 6);
  EXPECT_EQ(drawn.test->size(), 6);
  // A folder is listed class by class, while drawn leaves alternate between the classes.
  std::vector<std::uint64_t> a, b;
  const std::pair<Dataset*, Dataset*> pairs[] = {{drawn.train.get(), read.train.get()},
                                                 {drawn.validation.get(), read.validation.get()},
                                                 {drawn.test.get(), read.test.get()}};
  std::vector<std::int64_t> labels(3);
  for (const auto& [memory, disk] : pairs) {
    ASSERT_EQ(memory->size(), disk->size());
    for (std::int64_t i = 0; i < memory->size(); ++i) {
      const auto x = memory->get(i, 0, false), y = disk->get(i, 0, false);
      a.push_back(random::mix(fingerprint(x->inputs.front()), static_cast<std::uint64_t>(label_of(*x))));
      b.push_back(random::mix(fingerprint(y->inputs.front()), static_cast<std::uint64_t>(label_of(*y))));
      ++labels[static_cast<std::size_t>(label_of(*x))];
    }
  }
  std::sort(a.begin(), a.end());
  std::sort(b.begin(), b.end());
  EXPECT_EQ(a, b);
  EXPECT_LE(*std::max_element(labels.begin(), labels.end()) - *std::min_element(labels.begin(), labels.end()), 1);

  EXPECT_EQ(message_of([&] { write_leaves(folder.path(), 19, 32, 7); }),
            "leaves: 19 images are too few for three splits of 3 classes; use at least 20");
  EXPECT_EQ(message_of([&] { write_leaves(folder.path(), 90, 8, 7); }),
            "leaves: 8 x 8 pixels; images of leaves have 16 to 4096 pixels per side");
  EXPECT_EQ(message_of([&] { write_leaves("/proc/none", 90, 32, 7); }).rfind("/proc/none/train/", 0), 0U);
  EXPECT_NE(message_of([&] { write_leaves("/proc", 90, 32, 7); }).find("is not empty"), std::string::npos);
}

struct Pixels {
  at::Tensor x, y;  ///< float [n, pixels] around 0, int64 [n]
};
Pixels pixels_of(Split split, std::int64_t images, std::int64_t size) {
  std::vector<at::Tensor> rows;
  std::vector<std::int64_t> labels;
  for (std::int64_t i = 0; i < leaf_count(split, images); ++i) {
    rows.push_back(draw_leaf(split, i, size, 7).to(at::kFloat).flatten() / 127.5 - 1);
    labels.push_back(i % kLeafClasses);
  }
  return {at::stack(rows), at::tensor(labels)};
}
double accuracy(const at::Tensor& scores, const at::Tensor& labels) {
  return (scores.argmax(1) == labels).to(at::kDouble).mean().item<double>();
}

TEST(Leaves, ALinearModelOnPixelsStaysBelow70Percent) {
  constexpr std::int64_t kImages = 1500, kSize = 32;
  at::set_num_threads(1);  // threads that wait by spinning are slow on a busy machine
  auto train = pixels_of(Split::train, kImages, kSize);
  auto held_out = pixels_of(Split::validation, kImages, kSize);
  const auto mean = train.x.mean(0);
  train.x = train.x - mean;
  held_out.x = held_out.x - mean;
  const auto targets = at::one_hot(train.y, kLeafClasses).to(at::kFloat) - 1.0 / 3;
  double best = 0;
  // Ridge regression in closed form, through the n x n Gram matrix.
  const auto gram = train.x.mm(train.x.t());
  for (const double lambda : {1e1, 1e2, 1e3, 1e4}) {
    const auto dual = at::linalg_solve(gram + lambda * at::eye(gram.size(0)), targets);
    best = std::max(best, accuracy(held_out.x.mm(train.x.t().mm(dual)), held_out.y));
  }
  // Softmax regression by gradient descent with momentum; its best step counts.
  auto w = at::zeros({train.x.size(1), kLeafClasses}), velocity = at::zeros_like(w);
  for (int step = 0; step < 100; ++step) {
    const auto residual = at::log_softmax(train.x.mm(w), 1).exp() - at::one_hot(train.y, kLeafClasses).to(at::kFloat);
    velocity = 0.9 * velocity + train.x.t().mm(residual) / train.x.size(0) + 1e-3 * w;
    w = w - 0.01 * velocity;
    if (step % 10 == 9) best = std::max(best, accuracy(held_out.x.mm(w), held_out.y));
  }
  std::printf("the best linear model reads %.1f %% of the validation leaves\n", 100 * best);
  EXPECT_LT(best, 0.70);
  EXPECT_GT(best, 0.34) << "colour alone separates some leaves";
}

}  // namespace
}  // namespace trireme::data
