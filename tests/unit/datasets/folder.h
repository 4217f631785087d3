// A folder that is removed at the end of the test, and images to put into it.
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/data/dataset.h"
#include "core/data/loader.h"
#include "datasets/datasets.h"
#include "datasets/transform.h"

namespace trireme::data::testing_tools {

struct OpenAs {
  LaunchInfo launch{};
  bool skip_bad_samples = false;
};
inline Datasets open_source(DatasetFactory source, std::uint64_t seed, const Log& log, const OpenAs& as = {}) {
  return data::open(source, {.seed = seed, .skip_bad_samples = as.skip_bad_samples, .launch = as.launch, .log = log});
}
inline Datasets open_set(const datasets::FolderOptions& options, std::uint64_t seed, const Log& log,
                         const OpenAs& as = {}) {
  return open_source(datasets::image_folder(options), seed, log, as);
}
inline Datasets open_set(const datasets::LeavesOptions& options, std::uint64_t seed, const Log& log,
                         const OpenAs& as = {}) {
  return open_source(datasets::leaves(options), seed, log, as);
}
inline Datasets open_set(const datasets::TensorsOptions& options, std::uint64_t seed, const Log& log,
                         const OpenAs& as = {}) {
  return open_source(datasets::tensors(options), seed, log, as);
}

class Folder {
 public:
  Folder() {
    const auto* test = testing::UnitTest::GetInstance()->current_test_info();
    path_ = std::filesystem::temp_directory_path() / fmt::format("trireme_{}_{}", test->name(), ::getpid());
    std::filesystem::remove_all(path_);
    std::filesystem::create_directories(path_);
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;

  [[nodiscard]] std::string path(const std::string& name = "") const {
    return name.empty() ? path_.string() : (path_ / name).string();
  }
  /// Writes a file and creates its parent folders.
  std::string write(const std::string& name, const std::string& bytes) const {
    std::filesystem::create_directories((path_ / name).parent_path());
    std::ofstream(path_ / name, std::ios::binary) << bytes;
    return path(name);
  }

 private:
  std::filesystem::path path_;
};

/// The images of all samples in an epoch of training, as one batch in their own order.
inline at::Tensor training_images(const std::shared_ptr<Dataset>& data, std::int64_t epoch) {
  Loader loader(data, {.global_batch = data->size(), .micro_batch = data->size(), .augment = true});
  loader.start_epoch(epoch);
  return loader.next()->micro.front().inputs["pixel_values"];
}
/// Uint8 [H, W, C] -> float64 [C, H, W], normalised with mean and standard deviation 0.5.
inline at::Tensor normalised(const at::Tensor& image) {
  return (image.to(at::kDouble).permute({2, 0, 1}) / 255 - 0.5) / 0.5;
}

inline std::int64_t label_of(const Sample& sample) { return sample.targets[nn::kLabels].item<std::int64_t>(); }

/// One image, normalised alone: float32 [C, H, W].
inline at::Tensor normalised(const at::Tensor& image, const datasets::TransformOptions& options) {
  return datasets::Normalise(options.mean, options.std)(image.unsqueeze(0))[0];
}

/// uint8 [height, width, 3] of one colour.
inline at::Tensor plain(std::int64_t height, std::int64_t width, unsigned char red, unsigned char green,
                        unsigned char blue) {
  auto out = at::empty({height, width, 3}, at::kByte);
  auto* bytes = out.mutable_data_ptr<unsigned char>();
  for (std::int64_t i = 0; i < height * width; ++i) {
    bytes[3 * i] = red;
    bytes[3 * i + 1] = green;
    bytes[3 * i + 2] = blue;
  }
  return out;
}

/// uint8 [height, width, 3] in which every pixel differs from its neighbours: value at (y, x, c) = 7 y + 3 x + 50 c.
inline at::Tensor ramp(std::int64_t height, std::int64_t width) {
  auto out = at::empty({height, width, 3}, at::kByte);
  auto* bytes = out.mutable_data_ptr<unsigned char>();
  for (std::int64_t y = 0; y < height; ++y)
    for (std::int64_t x = 0; x < width; ++x)
      for (std::int64_t c = 0; c < 3; ++c) *bytes++ = static_cast<unsigned char>(7 * y + 3 * x + 50 * c);
  return out;
}

/// The message of the E that an action throws.
template <class E = DataError, class Action>
std::string message_of(Action&& action) {
  try {
    action();
  } catch (const E& error) {
    return error.what();
  }
  return "no error";
}

/// A tensor of a safetensors file: its name, the rest of its header entry before the offsets, its bytes.
struct TensorPart {
  std::string name, dtype, shape, bytes;
};
inline std::string safetensors(const std::vector<TensorPart>& parts) {
  std::string header, data;
  for (const auto& part : parts) {
    header += fmt::format(R"({}"{}":{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})", header.empty() ? "{" : ",",
                          part.name, part.dtype, part.shape, data.size(), data.size() + part.bytes.size());
    data += part.bytes;
  }
  header += "}";
  const std::uint64_t length = header.size();
  std::string out(8, '\0');
  std::memcpy(out.data(), &length, 8);
  return out + header + data;
}
template <class T>
std::string bytes_of(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

}  // namespace trireme::data::testing_tools
