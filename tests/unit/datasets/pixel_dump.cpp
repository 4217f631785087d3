// pixel_dump SIZE OUT FILE...: the pixel_values that training would see for each image (mean and std 0.5), as raw
// float32 [3, SIZE, SIZE] one after another. For tests/golden/check/check_pixels.py, which compares them with
// transformers.
#include <ATen/core/Tensor.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>

#include "datasets/image.h"
#include "datasets/transform.h"

int main(int count, char** arguments) {
  if (count < 4) {
    std::fprintf(stderr, "usage: pixel_dump SIZE OUT FILE...\n");
    return 2;
  }
  try {
    namespace datasets = trireme::datasets;
    datasets::TransformOptions options;
    options.size = std::atoll(arguments[1]);
    std::ofstream out(arguments[2], std::ios::binary);
    for (int i = 3; i < count; ++i) {
      const auto image = datasets::decode_image(datasets::read_bytes(arguments[i]), arguments[i]).pixels;
      const auto values = datasets::Normalise(options.mean, options.std)(datasets::fit(image, options).unsqueeze(0))[0];
      out.write(static_cast<const char*>(values.const_data_ptr()), static_cast<std::streamsize>(values.nbytes()));
    }
    return out.flush() ? 0 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
