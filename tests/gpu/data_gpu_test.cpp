// The path of samples to a GPU: batches are those of a CPU rank, they are copied ahead on a stream of their own, and
// taking one does not wait for the GPU. Without a GPU the test is skipped with a message.
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAFunctions.h>
#include <gtest/gtest.h>

#include <iostream>
#include <memory>

#include "core/base/error.h"
#include "core/base/random.h"
#include "core/data/loader.h"
#include "datasets/image_dataset.h"
#include "tests/parity/layout.h"

namespace trireme::tests {
namespace {

constexpr std::int64_t kPictures = 40;

class NoisePictures : public datasets::PixelSource {
 public:
  [[nodiscard]] std::int64_t size() const override { return kPictures; }
  [[nodiscard]] std::int64_t label(std::int64_t index) const override { return index % 7; }
  [[nodiscard]] datasets::DecodedImage load(std::int64_t index) const override {
    if (index % 9 == 4) throw DataError("unreadable");
    auto image = at::empty({30, 24, 3}, at::kByte);
    auto* bytes = image.mutable_data_ptr<std::uint8_t>();
    const auto key = random::mix(9, static_cast<std::uint64_t>(index));
    for (std::int64_t i = 0; i < image.numel(); ++i)
      bytes[i] = static_cast<std::uint8_t>(256 * random::uniform(key, static_cast<std::uint64_t>(i)));
    return {image};
  }
};

std::unique_ptr<data::Loader> loader_on(c10::Device device, bool evaluation) {
  datasets::TransformOptions transform;
  transform.size = 20;
  transform.flip = transform.crop = true;
  transform.random_erasing = 0.5;
  transform.mix = {.mixup = 0.4, .cutmix = 1};
  auto data =
      std::make_shared<datasets::ImageDataset>(std::make_shared<NoisePictures>(), transform, 3,
                                               std::make_shared<datasets::CacheBudget>(0), /*skip_bad=*/true, Log(1));
  data::LoaderOptions options{.global_batch = 5, .micro_batch = 2};
  options.shuffle = options.augment = !evaluation;
  options.evaluation = evaluation;
  options.workers = 2;
  options.device = device;
  auto loader = std::make_unique<data::Loader>(std::move(data), options);
  loader->start_epoch(1);
  return loader;
}

void expect_same(const data::StepBatch& got, const data::StepBatch& want) {
  ASSERT_EQ(got.micro.size(), want.micro.size());
  for (std::size_t m = 0; m < want.micro.size(); ++m)
    for (const auto member : {&data::Batch::inputs, &data::Batch::targets})
      for (const auto& [name, tensor] : want.micro[m].*member) {
        const auto& other = (got.micro[m].*member)[name];
        EXPECT_TRUE(other.is_cuda()) << name;
        ASSERT_EQ(other.sizes(), tensor.sizes()) << name;
        EXPECT_LE(tensor.numel() == 0 ? 0.0 : (other.cpu() - tensor).abs().max().item<double>(), 1e-5) << name;
      }
}

TEST(DataOnDevice, IsThatOfTheCpuAndDoesNotWait) {
  if (world().device().is_cpu()) {
    std::cout << "NO GPU HERE: the test was compiled and linked, and not run\n";
    return;
  }
  for (const bool evaluation : {false, true}) {
    const auto on_cpu = loader_on(at::kCPU, evaluation), on_gpu = loader_on(world().device(), evaluation);
    for (int step = 0; auto want = on_cpu->next(); ++step) {
      SCOPED_TRACE(testing::Message() << (evaluation ? "evaluation" : "training") << ", step " << step);
      // The first step copies constants, and samples that are left out cost an index.
      if (step > 0 && !evaluation) c10::cuda::warning_state().set_sync_debug_mode(c10::cuda::SyncDebugMode::L_ERROR);
      const auto got = on_gpu->next();
      c10::cuda::warning_state().set_sync_debug_mode(c10::cuda::SyncDebugMode::L_DISABLED);
      ASSERT_TRUE(got.has_value());
      expect_same(*got, *want);
    }
  }
}

}  // namespace
}  // namespace trireme::tests
