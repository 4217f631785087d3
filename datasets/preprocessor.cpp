#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "core/base/error.h"
#include "core/base/json_text.h"
#include "core/checkpoint/weights/weights.h"
#include "core/config/table.h"
#include "datasets/image_options.h"

namespace trireme::datasets {
namespace {

constexpr int kBilinear = 2;  // the value in Pillow, which transformers writes
constexpr double kByte = 1.0 / 255;

/// The file's `key`, or `otherwise` if it is missing or null; newer versions of transformers write null.
template <class T>
T value_or(const nlohmann::json& stored, const char* key, T otherwise) {
  const auto found = stored.find(key);
  return found == stored.end() || found->is_null() ? otherwise : found->get<T>();
}

/// The file's `key`: a number for each channel, or one number for all.
std::vector<double> channels(const nlohmann::json& stored, const char* key, double otherwise, std::size_t count) {
  const auto found = stored.find(key);
  if (found == stored.end() || found->is_null()) return std::vector<double>(count, otherwise);
  if (found->is_number()) return std::vector<double>(count, found->get<double>());
  auto values = found->get<std::vector<double>>();
  if (values.size() != count)
    throw CheckpointError(fmt::format("{} has {} numbers instead of {}", key, values.size(), count));
  return values;
}

/// (pixel * factor - mean) / std for pixels in 0..255, converted to pixels in 0..1.
Normalisation normalisation_of(const nlohmann::json& stored, std::size_t count) {
  if (!stored.is_object()) throw CheckpointError("not an image processor configuration: not a JSON object");
  const bool normalises = value_or(stored, "do_normalize", true);
  Normalisation out{normalises ? channels(stored, "image_mean", 0.5, count) : std::vector<double>(count, 0.0),
                    normalises ? channels(stored, "image_std", 0.5, count) : std::vector<double>(count, 1.0)};
  const double factor = value_or(stored, "do_rescale", true) ? value_or(stored, "rescale_factor", kByte) : 1.0;
  const double scale = factor / kByte;
  if (std::abs(scale - 1) > 1e-6)
    for (auto* values : {&out.mean, &out.std})
      for (auto& value : *values) value /= scale;
  for (const double value : out.std)
    if (!(value > 0)) throw CheckpointError("image_std must be above 0");
  return out;
}

bool same(const std::vector<double>& a, const std::vector<double>& b) {
  for (std::size_t i = 0; i < a.size(); ++i)
    if (!(std::abs(a[i] - b[i]) <= 1e-6)) return false;
  return a.size() == b.size();
}

/// Warns about settings in the file that the images are not prepared by, which could lower the accuracy.
void warn_of_the_rest(const nlohmann::json& stored, const ImageOptions& options, const std::string& path,
                      const Log& log) {
  const int resample = value_or(stored, "resample", kBilinear);
  if (value_or(stored, "do_resize", true) && resample != kBilinear)
    log.warn("{}: resample = {}, but Trireme resizes images bilinearly", path, resample);
  if (value_or(stored, "do_center_crop", false) && !options.resize_shorter) {
    const auto size = value_or(stored, "size", nlohmann::json::object());
    const auto shorter = size.is_object() ? value_or<std::int64_t>(size, "shortest_edge", 0) : 0;
    log.warn("{}: do_center_crop = true, but the whole image is resized to image_size; set data.resize_shorter{}", path,
             shorter > 0 ? fmt::format(" = {}", shorter) : "");
  }
}

/// The normalisation in the weights' preprocessor_config.json at `path`; unset when there is no such file.
std::optional<Normalisation> stored_normalisation(const std::string& weights, const std::string& path,
                                                  std::size_t count, const ImageOptions& options, const Log& log) {
  const auto stored = checkpoint::read_beside_weights(weights, checkpoint::kPreprocessorConfig);
  if (stored.is_null()) return std::nullopt;
  try {
    const auto found = normalisation_of(stored, count);
    warn_of_the_rest(stored, options, path, log);
    return found;
  } catch (const nlohmann::json::exception& error) {
    throw CheckpointError(fmt::format("{}: not an image processor configuration: {}", path, json_problem(error)));
  } catch (const CheckpointError& error) {
    throw CheckpointError(fmt::format("{}: {}", path, error.what()));
  }
}

/// Sets the option to the weights' values. @throws ConfigError when the user set it to others
void adopt(std::optional<std::vector<double>>& option, const std::vector<double>& theirs, const char* key,
           const std::string& path, const data::OpenContext& context) {
  if (option && !same(*option, theirs))
    config::fail(context.section, key,
                 fmt::format("conflicts with image_{} = {} in {}, with which the weights were trained; remove data.{}, "
                             "or change that file",
                             key, config::to_toml(theirs), path, key));
  option = theirs;
}

}  // namespace

void fill_normalisation(ImageOptions& options, const data::OpenContext& context, const Normalisation& usual) {
  if (!context.weights.empty()) {
    const auto path = checkpoint::beside_weights(context.weights, checkpoint::kPreprocessorConfig);
    if (const auto theirs = stored_normalisation(context.weights, path, usual.mean.size(), options, context.log)) {
      const bool matches_weights =
          same(options.mean.value_or(usual.mean), theirs->mean) && same(options.std.value_or(usual.std), theirs->std);
      adopt(options.mean, theirs->mean, "mean", path, context);
      adopt(options.std, theirs->std, "std", path, context);
      if (!matches_weights)
        context.log.note("images   normalised by mean {} and std {}, from {}", config::to_toml(*options.mean),
                         config::to_toml(*options.std), path);
    }
  }
  if (!options.mean) options.mean = usual.mean;
  if (!options.std) options.std = usual.std;
}

std::string preprocessor_config(const ImageOptions& options, const nn::ImageSize& size) {
  const nlohmann::json sides{{"height", size.height}, {"width", size.width}};
  nlohmann::json preprocessor{{"image_processor_type", "ViTImageProcessor"},
                              {"do_convert_rgb", options.mean.value().size() == 3},
                              {"do_resize", true},
                              {"size", sides},
                              {"resample", kBilinear},
                              {"do_rescale", true},
                              {"rescale_factor", kByte},
                              {"do_normalize", true},
                              {"image_mean", options.mean.value()},
                              {"image_std", options.std.value()}};
  if (options.resize_shorter) {  // ViTImageProcessor has no central crop
    preprocessor["image_processor_type"] = "BitImageProcessor";
    preprocessor["size"] = {{"shortest_edge", *options.resize_shorter}};
    preprocessor["do_center_crop"] = true;
    preprocessor["crop_size"] = sides;
  }
  return json_text(preprocessor, 2) + "\n";
}

}  // namespace trireme::datasets
