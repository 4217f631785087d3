// trireme predict
#include <ATen/ops/topk.h>
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "apps/commands/commands.h"
#include "apps/commands/load_config.h"
#include "apps/commands/process.h"
#include "apps/report.h"
#include "core/base/error.h"
#include "core/base/log.h"
#include "core/base/terminal_text.h"
#include "core/base/text.h"
#include "core/data/class_names.h"
#include "core/setup/run_setup.h"
#include "core/train/run.h"

namespace trireme::apps {
namespace {

using Json = nlohmann::ordered_json;

/// A field of a CSV line, quoted where RFC 4180 says so.
std::string csv_field(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string out = "\"";
  for (const char c : text) out += c == '"' ? std::string("\"\"") : std::string(1, c);
  return out + "\"";
}

/// The beginning of a text, in one line of at most so many columns.
std::string beginning_of(std::string text, std::size_t columns) {
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return std::isspace(c) != 0; }, ' ');
  text = for_terminal(text);
  if (text::width(text) <= columns) return text;
  const std::string dots = "...";
  std::size_t end = 0;
  while (text::width(std::string_view(text).substr(0, end + 1)) <= columns - dots.size()) ++end;
  return text.substr(0, end) + dots;
}

/// Parts of a line of CSV or of text.
std::string joined(const std::vector<std::string>& parts, bool csv) {
  std::vector<std::string> out;
  for (const auto& part : parts) out.push_back(csv ? csv_field(part) : part);
  return text::join(out, csv ? "," : " | ");
}

/// What the model's outputs are.
enum class Outputs { classes, labels, numbers };

Outputs outputs_of(const Task& task) {
  const auto problem = task.problem_type();
  return problem == "regression"                   ? Outputs::numbers
         : problem == "multi_label_classification" ? Outputs::labels
                                                   : Outputs::classes;
}

/// One line for each sample: in columns, as CSV or as JSON.
class Printer {
 public:
  /// `names`: of the outputs. `command` outlives the printer.
  Printer(const PredictCommand& command, data::FileSamples samples, Outputs outputs, std::vector<std::string> names)
      : command_(command),
        samples_(std::move(samples)),
        outputs_(outputs),
        names_(std::move(names)),
        top_(std::min(command.top.value_or(1), std::ssize(names_))) {
    if (command.csv) put(header() + "\n");
    if (command.csv || command.jsonl) return;
    for (const auto& sample : samples_.shown) widest_ = std::max(widest_, text::width(head_of(sample)));
  }

  /// `samples`: int64 [B]; `predictions`: float64 [B, outputs].
  void print(const at::Tensor& samples, const at::Tensor& predictions) const {
    for (std::int64_t i = 0; i < samples.size(0); ++i) {
      const auto& sample = samples_.shown.at(static_cast<std::size_t>(samples[i].item<std::int64_t>()));
      const auto outputs = predictions[i].reshape({-1});
      put((command_.csv     ? csv_of(sample, outputs)
           : command_.jsonl ? json_of(sample, outputs)
                            : line_of(sample, outputs)) +
          "\n");
    }
    std::fflush(stdout);
  }

 private:
  struct Output {
    std::string name;
    double value;
  };

  /// Whether the most probable outputs are printed, not all.
  [[nodiscard]] bool is_ranked() const { return outputs_ == Outputs::classes || command_.top; }
  [[nodiscard]] const char* kind() const { return outputs_ == Outputs::classes ? "class" : "label"; }
  [[nodiscard]] std::vector<Output> all(const at::Tensor& outputs) const {
    std::vector<Output> out;
    for (std::size_t i = 0; i < names_.size(); ++i)
      out.push_back({names_[i], outputs[static_cast<std::int64_t>(i)].item<double>()});
    return out;
  }
  [[nodiscard]] std::vector<Output> printed(const at::Tensor& outputs) const {
    if (!is_ranked()) return all(outputs);
    const auto [values, indices] = at::topk(outputs, top_);
    std::vector<Output> out;
    for (std::int64_t k = 0; k < top_; ++k)
      out.push_back({names_.at(static_cast<std::size_t>(indices[k].item<std::int64_t>())), values[k].item<double>()});
    return out;
  }
  /// For programs. A number has the digits of a float.
  [[nodiscard]] std::string text_of(double value) const {
    return outputs_ == Outputs::numbers ? fmt::format("{}", static_cast<float>(value)) : fmt::format("{:.6f}", value);
  }

  [[nodiscard]] std::string header() const {
    auto columns = samples_.columns;
    if (!is_ranked()) columns.insert(columns.end(), names_.begin(), names_.end());
    for (std::int64_t k = 1; is_ranked() && k <= top_; ++k)
      for (const std::string name : {kind(), "probability"})
        columns.push_back(k == 1 ? name : fmt::format("{}_{}", name, k));
    return joined(columns, true);
  }
  [[nodiscard]] std::string csv_of(const std::vector<std::string>& sample, const at::Tensor& outputs) const {
    auto fields = sample;
    for (const auto& [name, value] : printed(outputs)) {
      if (is_ranked()) fields.push_back(name);
      fields.push_back(text_of(value));
    }
    return joined(fields, true);
  }

  [[nodiscard]] std::string json_of(const std::vector<std::string>& sample, const at::Tensor& outputs) const {
    // NaN and infinity, which JSON does not have, become null.
    const auto number = [&](double value) { return Json::parse(std::isfinite(value) ? text_of(value) : "null"); };
    auto line = Json::object();
    for (std::size_t i = 0; i < sample.size(); ++i) line[samples_.columns[i]] = sample[i];
    const auto ranked = printed(outputs);
    if (outputs_ == Outputs::classes) {
      line["class"] = ranked.front().name;
      line["probability"] = number(ranked.front().value);
    } else {
      auto& values = line[outputs_ == Outputs::labels ? "labels" : "values"] = Json::object();
      for (const auto& [name, value] : all(outputs)) values[name] = number(value);
    }
    if (command_.top)
      for (const auto& [name, value] : ranked)
        line["top"].push_back(Json{{kind(), name}, {"probability", number(value)}});
    return line.dump(-1, ' ', false, Json::error_handler_t::replace);
  }

  [[nodiscard]] std::string line_of(const std::vector<std::string>& sample, const at::Tensor& outputs) const {
    const auto head = head_of(sample);
    auto line = head + std::string(widest_ - text::width(head), ' ');
    bool is_empty = true;
    for (const auto& [name, value] : printed(outputs)) {
      if (outputs_ == Outputs::labels && !command_.top && value < 0.5) continue;
      is_empty = false;
      line += fmt::format("   {} ", for_terminal(name));
      line += outputs_ == Outputs::numbers ? text_of(value) : fmt::format("{:.1f} %", 100 * value);
    }
    return line + (is_empty ? "   -" : "");
  }
  /// An image's whole name, or the beginnings of texts.
  [[nodiscard]] std::string head_of(const std::vector<std::string>& sample) const {
    constexpr std::size_t kColumns = 60;
    std::vector<std::string> parts;
    for (const auto& part : sample)
      parts.push_back(samples_.columns.front() == "text" ? beginning_of(part, kColumns / sample.size())
                                                         : for_terminal(part));
    return joined(parts, false);
  }

  const PredictCommand& command_;
  data::FileSamples samples_;
  Outputs outputs_;
  std::vector<std::string> names_;
  std::int64_t top_;
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
  auto setup = train::prepare_evaluation(std::move(config), alone, command.weights, Log(), command.inputs);
  const auto outputs = outputs_of(*setup.task.made);
  if (command.top && outputs == Outputs::numbers)
    throw ConfigError(fmt::format("--top: the task \"{}\" predicts numbers, none of which is more probable; remove it",
                                  setup.task.kind.name()));
  const auto world = comm::World::start(alone, options);
  comm::warn_of_cpu(*world, Log());
  const auto all = text::quantity(std::ssize(setup.files.shown), setup.files.columns.front());
  const Printer printer(command, std::move(setup.files), outputs,
                        data::distinct_names(setup.data.info.spec.class_names));
  const auto unreadable =
      train::run_prediction(std::move(setup), *world,
                            [&](const auto& samples, const auto& predictions) { printer.print(samples, predictions); });
  if (!unreadable.empty())
    throw DataError(fmt::format("{} of {} could not be read; the lines above name them", unreadable.size(), all));
  return 0;
}

}  // namespace trireme::apps
