// trireme predict
#include <ATen/ops/topk.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include "apps/commands/commands.h"
#include "apps/commands/load_config.h"
#include "apps/commands/process.h"
#include "apps/report.h"
#include "core/base/error.h"
#include "core/base/log.h"
#include "core/base/text.h"
#include "core/data/class_names.h"
#include "core/setup/run_setup.h"
#include "core/train/run.h"

namespace trireme::apps {
namespace {

/// A field of a CSV line, quoted where RFC 4180 says so.
std::string csv_field(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string out = "\"";
  for (const char c : text) out += c == '"' ? std::string("\"\"") : std::string(1, c);
  return out + "\"";
}

/// One line for each image, in columns or as CSV.
class Printer {
 public:
  Printer(const PredictCommand& command, std::vector<std::string> files, std::vector<std::string> classes)
      : csv_(command.csv),
        top_(std::min(command.top, static_cast<std::int64_t>(classes.size()))),
        files_(std::move(files)),
        classes_(std::move(classes)) {
    for (const auto& file : files_) widest_ = std::max(widest_, text::width(text::printable(file)));
    if (!csv_) return;
    std::string header = "image,class,probability";
    for (std::int64_t k = 2; k <= top_; ++k) header += fmt::format(",class_{0},probability_{0}", k);
    put(header + "\n");
  }

  /// `samples`: int64 [B]; `probabilities`: float64 [B, classes].
  void print(const at::Tensor& samples, const at::Tensor& probabilities) const {
    const auto [values, indices] = at::topk(probabilities, top_, /*dim=*/-1);
    for (std::int64_t i = 0; i < samples.size(0); ++i) {
      const auto& file = files_.at(static_cast<std::size_t>(samples[i].item<std::int64_t>()));
      auto line = csv_ ? csv_field(file) : padded(text::printable(file));
      for (std::int64_t k = 0; k < top_; ++k) {
        const auto& name = classes_.at(static_cast<std::size_t>(indices[i][k].item<std::int64_t>()));
        const auto probability = values[i][k].item<double>();
        line += csv_ ? fmt::format(",{},{:.6f}", csv_field(name), probability)
                     : fmt::format("   {} {:.1f} %", name, 100 * probability);
      }
      put(line + "\n");
    }
    std::fflush(stdout);
  }

 private:
  [[nodiscard]] std::string padded(const std::string& file) const {
    return file + std::string(widest_ - text::width(file), ' ');
  }
  bool csv_;
  std::int64_t top_;
  std::vector<std::string> files_, classes_;
  std::size_t widest_ = 0;
};

}  // namespace

int run(const PredictCommand& command) {
  if (command.is_checkpoint) open_checkpoint(command.weights, checkpoint::Verify::content);
  auto config = single_process_config(command);
  const auto options = world_options(config);
  const LaunchInfo alone;  // also under mpirun, where only the first process gets here
  tune_process(config, alone);
  if (command.batch) config.train.eval_batch = command.batch;
  auto setup = train::prepare_evaluation(std::move(config), alone, command.weights, Log(), command.images);
  const auto world = comm::World::start(alone, options);
  comm::warn_of_cpu(*world, Log());
  const auto count = static_cast<std::int64_t>(setup.files.size());
  const Printer printer(command, setup.files, data::distinct_names(setup.data.info.spec.class_names));
  const auto unreadable = train::run_prediction(
      std::move(setup), *world,
      [&](const auto& samples, const auto& probabilities) { printer.print(samples, probabilities); });
  if (!unreadable.empty())
    throw DataError(fmt::format("{} of {} could not be read; the lines above name them", unreadable.size(),
                                text::quantity(count, "image")));
  return 0;
}

}  // namespace trireme::apps
