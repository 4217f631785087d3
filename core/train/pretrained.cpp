#include "core/train/pretrained.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "core/base/error.h"
#include "core/base/json_text.h"
#include "core/base/text.h"
#include "core/checkpoint/weights.h"
#include "core/data/relabel.h"
#include "core/data/transform.h"

namespace trireme::train {
namespace {

constexpr int kBilinear = 2;  // the value in Pillow, which transformers writes
constexpr double kByte = 1.0 / 255;

/// The file's `key`, or `otherwise` if it is missing or null; newer versions of transformers write null.
template <class T>
T value_or(const nlohmann::json& stored, const char* key, T otherwise) {
  const auto found = stored.find(key);
  return found == stored.end() || found->is_null() ? otherwise : found->get<T>();
}

struct Normalisation {
  std::vector<double> mean, std;
};

/// The file's `key`: three numbers, or one number for all three channels.
std::vector<double> channels(const nlohmann::json& stored, const char* key, double otherwise) {
  const auto found = stored.find(key);
  if (found == stored.end() || found->is_null()) return std::vector<double>(3, otherwise);
  if (found->is_number()) return std::vector<double>(3, found->get<double>());
  auto values = found->get<std::vector<double>>();
  if (values.size() != 3) throw CheckpointError(fmt::format("{} has {} numbers instead of 3", key, values.size()));
  return values;
}

/// (pixel * factor - mean) / std for pixels in 0..255, converted to pixels in 0..1.
Normalisation normalisation_of(const nlohmann::json& stored) {
  if (!stored.is_object()) throw CheckpointError("not an image processor configuration: not a JSON object");
  const bool normalises = value_or(stored, "do_normalize", true);
  Normalisation out{normalises ? channels(stored, "image_mean", 0.5) : std::vector<double>(3, 0.0),
                    normalises ? channels(stored, "image_std", 0.5) : std::vector<double>(3, 1.0)};
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

/// Warns about settings in the file that are not supported here and could lower the accuracy.
void warn_of_the_rest(const nlohmann::json& stored, const std::string& path, const Log& log) {
  const int resample = value_or(stored, "resample", kBilinear);
  if (value_or(stored, "do_resize", true) && resample != kBilinear)
    log.warn("{}: resample = {}, but Trireme resizes images bilinearly", path, resample);
  if (value_or(stored, "do_center_crop", false))
    log.warn("{}: do_center_crop = true, but Trireme resizes the whole image", path);
}

/// Replaces the option by the weights' values unless the user set it. Returns whether the option changed.
bool adopt(const config::Table& root, const char* key, std::vector<double>& option, const std::vector<double>& theirs,
           const std::string& path) {
  const auto* section = root.table("data");
  if (same(option, theirs)) return false;
  if (section != nullptr && section->find(key) != nullptr)
    config::fail(section, key,
                 fmt::format("conflicts with image_{} = {} in {}, with which the weights were trained; remove data.{}, "
                             "or change that file",
                             key, config::to_toml(theirs), path, key));
  option = theirs;
  return true;
}

/// The label names in a stored model's configuration, in order; empty if it has none besides "LABEL_0", ...
/// @throws CheckpointError, which names the file `path`
std::vector<std::string> stored_classes(const nlohmann::json& stored, const std::string& path) {
  std::vector<std::string> names;
  const auto labels = stored.find("id2label");
  if (labels == stored.end() || !labels->is_object()) return names;
  for (std::size_t i = 0; i < labels->size(); ++i) {
    const auto found = labels->find(std::to_string(i));
    if (found == labels->end()) return {};  // not numbered from 0
    if (!found->is_string())
      throw CheckpointError(fmt::format("{}: the name of label {} in id2label is not a string", path, i));
    const auto name = found->get<std::string>();
    if (name.empty() || name == fmt::format("LABEL_{}", i)) return {};
    names.push_back(name);
  }
  return names;
}

std::string numbered(const std::vector<std::string>& classes) {
  std::vector<std::string> out;
  for (std::size_t i = 0; i < classes.size(); ++i) out.push_back(fmt::format("{} {}", i, classes[i]));
  return text::first_few(out);
}

}  // namespace

std::string adopt_preprocessor(Prepared& p, const Log& log) {
  if (p.weights.empty()) return "";
  const auto path = checkpoint::beside_weights(p.weights, checkpoint::kPreprocessorConfig);
  const auto stored = checkpoint::read_beside_weights(p.weights, checkpoint::kPreprocessorConfig);
  if (stored.is_null()) return "";
  std::optional<Normalisation> theirs;
  try {
    theirs = normalisation_of(stored);
    warn_of_the_rest(stored, path, log);
  } catch (const nlohmann::json::exception& error) {
    throw CheckpointError(fmt::format("{}: not an image processor configuration: {}", path, json_problem(error)));
  } catch (const CheckpointError& error) {
    throw CheckpointError(fmt::format("{}: {}", path, error.what()));
  }
  const bool mean = adopt(p.config.root, "mean", p.config.data.mean, theirs->mean, path);
  const bool std = adopt(p.config.root, "std", p.config.data.std, theirs->std, path);
  if (!mean && !std) return "";
  return fmt::format("images   normalised by mean {} and std {}, from {}", config::to_toml(p.config.data.mean),
                     config::to_toml(p.config.data.std), path);
}

void adopt_labels(Prepared& p, bool evaluation, const Log& log) {
  if (p.weights.empty()) return;
  const auto stored = checkpoint::read_beside_weights(p.weights);
  const auto names = stored.is_object()
                         ? stored_classes(stored, checkpoint::beside_weights(p.weights, checkpoint::kModelConfig))
                         : std::vector<std::string>();
  const auto& classes = p.data.info.spec.class_names;
  if (names.empty() || classes.empty() || names == classes) return;
  if (data::is_reordering(classes, names)) {
    p.data = data::relabel(std::move(p.data), names);
    log.note("labels   numbered as in {}: {}", p.weights, numbered(names));
  } else if (evaluation) {
    throw ConfigError(
        fmt::format("{}: these weights are for the classes {}, but the data has {}; evaluate on data with "
                    "the model's classes",
                    p.weights, text::first_few(names), text::first_few(classes)));
  } else if (names.size() == classes.size()) {
    log.warn("{}: the head of these weights is for the classes {}; it is the starting point for {}", p.weights,
             text::first_few(names), text::first_few(classes));
  }
}

std::map<std::string, std::string> model_texts(const Prepared& p) {
  auto model = p.kind->to_hf(p.model_options.get());
  if (const auto problem = p.task->problem_type(); !problem.empty()) model["problem_type"] = problem;
  std::map<std::string, std::string> texts{{checkpoint::kModelConfig, json_text(model, 2) + "\n"}};
  // Numeric data without normalisation were prepared by the user in an unknown way.
  if (!p.data.info.normalised) return texts;
  const auto* pixels = p.data.info.spec.input(data::kPixelValues);
  if (pixels == nullptr) return texts;
  const auto size = pixels->shape.back();
  const nlohmann::json preprocessor{{"image_processor_type", "ViTImageProcessor"},
                                    {"do_convert_rgb", true},
                                    {"do_resize", true},
                                    {"size", {{"height", size}, {"width", size}}},
                                    {"resample", kBilinear},
                                    {"do_rescale", true},
                                    {"rescale_factor", kByte},
                                    {"do_normalize", true},
                                    {"image_mean", p.config.data.mean},
                                    {"image_std", p.config.data.std}};
  texts[checkpoint::kPreprocessorConfig] = json_text(preprocessor, 2) + "\n";
  return texts;
}

}  // namespace trireme::train
