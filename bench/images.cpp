// Images that one thread reads, decodes, augments and normalises in a second:
//
//   images FOLDER [SIZE] [SECONDS] [plain | crop]
//
// FOLDER: as for the data set image_folder. SIZE: pixels per side (default 224). crop: a random resized crop and flips
// (default); plain: the resize of an evaluation. Prints JSON. bench/images_vs_torchvision.py compares it.
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "core/data/batch_maker.h"
#include "datasets/datasets.h"

namespace trireme {
namespace {

int measure(int argc, char** argv) {
  if (argc < 2) {
    std::fputs("images FOLDER [SIZE] [SECONDS] [plain | crop]\n", stderr);
    return 2;
  }
  at::set_num_threads(1);
  const bool crops = argc <= 4 || std::string(argv[4]) == "crop";
  const double seconds = argc > 3 ? std::atof(argv[3]) : 5;
  datasets::FolderOptions options;
  options.path = argv[1];
  options.image_size = argc > 2 ? std::atoi(argv[2]) : 224;
  options.random_resized_crop = options.flip = crops;
  options.cache_mb = 0;
  auto source = datasets::image_folder(options);
  const auto data = data::open(source, {});
  const data::BatchMaker maker(data.train, {.augment = true});
  constexpr std::int64_t kBatch = 8;
  std::int64_t images = 0;
  using Clock = std::chrono::steady_clock;
  const auto begin = Clock::now();
  double spent = 0;
  for (; spent < seconds; spent = std::chrono::duration<double>(Clock::now() - begin).count()) {
    auto step = maker.start(std::vector<std::int64_t>(kBatch), /*repeat_first=*/false);
    for (std::size_t i = 0; i < kBatch; ++i, ++images)
      maker.read(step, i, images % data.train->size(), images / data.train->size());
    maker.upload(step);
    for (auto& raw : maker.collect(std::move(step), {{0, kBatch}})) static_cast<void>(maker.finish(std::move(raw)));
  }
  fmt::print("{{\"images\": {}, \"seconds\": {:.3f}, \"images_per_s\": {:.1f}}}\n", images, spent,
             static_cast<double>(images) / spent);
  return 0;
}

}  // namespace
}  // namespace trireme

int main(int argc, char** argv) try { return trireme::measure(argc, argv); } catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 2;
}
