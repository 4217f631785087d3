// Images that one thread reads, decodes, augments and normalises in a second:
//
//   images FOLDER [SIZE] [SECONDS] [plain | crop | decode]
//
// FOLDER: as for the data set image_folder. SIZE: pixels per side (default 224). crop: a random resized crop and flips
// (default); plain: the resize of an evaluation; decode: nothing but reading and decoding, of the files in
// FOLDER/train. Prints JSON. bench/images_vs_torchvision.py and bench/decoding_vs_pillow.py compare it.
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "core/data/batch_maker.h"
#include "datasets/datasets.h"
#include "datasets/image.h"

namespace trireme {
namespace {

using Clock = std::chrono::steady_clock;

/// Calls `next`, which returns how many images it has made, until the time is over.
template <class Next>
int report(double seconds, Next next) {
  std::int64_t images = 0;
  double spent = 0;
  for (const auto begin = Clock::now(); spent < seconds;
       spent = std::chrono::duration<double>(Clock::now() - begin).count())
    images += next(images);
  fmt::print("{{\"images\": {}, \"seconds\": {:.3f}, \"images_per_s\": {:.1f}}}\n", images, spent,
             static_cast<double>(images) / spent);
  return 0;
}

int decode(const std::string& folder, double seconds) {
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder + "/train"))
    if (entry.is_regular_file()) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return report(seconds, [&](std::int64_t images) {
    const auto& file = files.at(static_cast<std::size_t>(images) % files.size());
    static_cast<void>(datasets::decode_file(file, {}));
    return 1;
  });
}

int measure(int argc, char** argv) {
  if (argc < 2) {
    std::fputs("images FOLDER [SIZE] [SECONDS] [plain | crop | decode]\n", stderr);
    return 2;
  }
  at::set_num_threads(1);
  const std::string how = argc > 4 ? argv[4] : "crop";
  const double seconds = argc > 3 ? std::atof(argv[3]) : 5;
  if (how == "decode") return decode(argv[1], seconds);
  datasets::FolderOptions options;
  options.path = argv[1];
  options.image_size = argc > 2 ? std::atoi(argv[2]) : 224;
  options.random_resized_crop = options.flip = how == "crop";
  options.cache_mb = 0;
  auto source = datasets::image_folder(options);
  const auto data = data::open(source, {});
  const data::BatchMaker maker(data.train, {.augment = true});
  constexpr std::int64_t kBatch = 8;
  return report(seconds, [&](std::int64_t images) {
    auto step = maker.start(std::vector<std::int64_t>(kBatch), /*repeat_first=*/false);
    for (std::size_t i = 0; i < kBatch; ++i, ++images)
      maker.read(step, i, images % data.train->size(), images / data.train->size());
    maker.upload(step);
    for (auto& raw : maker.collect(std::move(step), {{0, kBatch}})) static_cast<void>(maker.finish(std::move(raw)));
    return kBatch;
  });
}

}  // namespace
}  // namespace trireme

int main(int argc, char** argv) try { return trireme::measure(argc, argv); } catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 2;
}
