// trireme checkpoint inspect
#include <c10/core/ScalarType.h>
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <set>

#include "apps/commands/commands.h"
#include "apps/commands/text_table.h"
#include "apps/report.h"
#include "core/base/json_text.h"
#include "core/base/text.h"
#include "core/checkpoint/checkpoint_files.h"
#include "core/checkpoint/weights/tensor_list.h"

namespace trireme::apps {
namespace {

using checkpoint::Manifest;
using nlohmann::json;

constexpr const char* kGroups[] = {checkpoint::kWeights, checkpoint::kAverage, checkpoint::kOptimizer};

/// A tensor of a group. `files`: those with its slices.
struct GroupTensor {
  std::string name;
  checkpoint::TensorInfo info;
  std::size_t slices = 1;
  std::set<std::string> files;
  [[nodiscard]] std::int64_t elements() const { return shard::Placement::whole(name, info.shape).full_numel(); }
  [[nodiscard]] std::uint64_t bytes() const {
    return static_cast<std::uint64_t>(elements()) * c10::elementSize(info.dtype);
  }
};

/// Shapes are those of an exported model, but for tensors of which that has the parts.
std::vector<GroupTensor> tensors_of(const std::string& folder, const Manifest& manifest, const std::string& group) {
  std::vector<GroupTensor> out;
  const auto file = checkpoint::open_group(folder, manifest, group);
  for (const auto& name : manifest.format == 1 ? file->names() : text::keys_of(manifest.tensors.at(group))) {
    GroupTensor tensor{.name = name, .info = file->info(name), .slices = 1, .files = {}};
    if (manifest.format == 1) {
      tensor.files = checkpoint::files_of(manifest, group);
    } else {
      const auto& slices = manifest.tensors.at(group).at(name).slices;
      tensor.slices = slices.size();
      for (const auto& slice : slices) tensor.files.insert(slice.file);
    }
    out.push_back(std::move(tensor));
  }
  return out;
}

struct GroupTotals {
  std::int64_t elements = 0;
  std::uint64_t bytes = 0;
  std::set<std::string> dtypes;
};

GroupTotals totals_of(const std::vector<GroupTensor>& tensors) {
  GroupTotals out;
  for (const auto& tensor : tensors) {
    out.elements += tensor.elements();
    out.bytes += tensor.bytes();
    out.dtypes.insert(dtype_text(tensor.info.dtype));
  }
  return out;
}

std::string joined(const std::set<std::string>& names) {
  return text::join(std::vector<std::string>(names.begin(), names.end()));
}

void line(const char* name, const std::string& value) {
  put(fitted(text::printable(fmt::format("{:<11} {}\n", name, value))));
}

/// "epoch 3, step 42: accuracy 0.75, loss 0.61", of what an evaluation has left in the record.
std::string metrics_text(const json& of) {
  if (!of.is_object() || of.value("epoch", 0) == 0) return "none yet";
  std::vector<std::string> values;
  for (const auto& [key, value] : of.items())
    if (key != "epoch" && key != "step" && value.is_number())
      values.push_back(fmt::format("{} {:.6g}", key, value.get<double>()));
  return fmt::format("epoch {}, step {}: {}", of.value("epoch", 0), of.value("step", 0), text::join(values));
}

void print_record(const checkpoint::CheckpointSummary& summary, const checkpoint::TrainRecord& record) {
  const auto& at = record.progress;
  line("checkpoint", summary.folder);
  line("state", fmt::format("{}; {}, written {}", name_of(summary.state),
                            text::bytes(static_cast<double>(summary.bytes)), time_text(summary.written)));
  if (!summary.problem.empty()) line("problem", summary.problem);
  line("progress", fmt::format("{} done, {} into the next; {}, {}", text::quantity(at.epoch, "epoch"),
                               text::quantity(at.step_in_epoch, "step"), text::quantity(at.global_step, "step"),
                               text::quantity(at.samples, "sample")));
  line("written by", fmt::format("{}{}{}", text::quantity(summary.ranks, "rank"), summary.layout.empty() ? "" : ", ",
                                 layout_text(summary)));
  line("seed", std::to_string(record.seed));
  std::vector<std::string> versions;
  for (const auto& [what, version] : record.versions) versions.push_back(what + " " + version);
  line("versions", versions.empty() ? "unknown" : text::join(versions));
  line("loss scale",
       record.loss_scale && !record.loss_scale->empty() ? fmt::format("{:g}", record.loss_scale->front()) : "none");
  for (const char* which : {"last", "best"})
    if (record.extra.is_object() && record.extra.contains(which)) line(which, metrics_text(record.extra[which]));
}

json record_json(const checkpoint::CheckpointSummary& summary, const checkpoint::TrainRecord& record) {
  auto out = summary_json(summary);
  const auto& at = record.progress;
  out["progress"] = {{"epoch", at.epoch},
                     {"step_in_epoch", at.step_in_epoch},
                     {"global_step", at.global_step},
                     {"samples", at.samples}};
  out["seed"] = record.seed;
  out["versions"] = record.versions;
  out["loss_scale"] = record.loss_scale ? json(*record.loss_scale) : json();
  for (const char* which : {"last", "best"})
    out[which] = record.extra.is_object() ? record.extra.value(which, json()) : json();
  return out;
}

json group_json(const std::vector<GroupTensor>& tensors, bool each) {
  const auto totals = totals_of(tensors);
  json out{
      {"tensors", tensors.size()}, {"elements", totals.elements}, {"bytes", totals.bytes}, {"dtypes", totals.dtypes}};
  if (!each) return out;
  auto& list = out["list"] = json::array();
  for (const auto& tensor : tensors)
    list.push_back({{"name", tensor.name},
                    {"dtype", dtype_text(tensor.info.dtype)},
                    {"shape", tensor.info.shape},
                    {"slices", tensor.slices},
                    {"files", tensor.files}});
  return out;
}

/// The newest intact one of a run; but of a run with one, and of the one that is named, even a damaged one is shown.
std::string shown_checkpoint(const std::string& path) {
  const auto all = checkpoint::find_checkpoints(path);
  if (all.size() == 1) return all.front();
  const auto found = checkpoint::find_intact_checkpoint(path, checkpoint::Use::weights, checkpoint::Verify::sizes);
  say_skipped(found.skipped);
  return found.folder;
}

}  // namespace

int run(const CheckpointInspectCommand& command) {
  const auto folder = shown_checkpoint(command.path);
  const auto manifest = checkpoint::read_manifest(folder);
  const auto summary = checkpoint::summarize_checkpoint(folder);
  const auto record = checkpoint::read_record(folder);
  auto out = record_json(summary, record);
  if (!command.json) print_record(summary, record);
  std::vector<std::vector<std::string>> totals{{"group", ">tensors", ">elements", ">bytes", "dtypes", ">files"}};
  std::vector<std::vector<std::string>> rows{{"tensor", "dtype", "shape", ">slices", "files"}};
  for (const std::string group : kGroups) {
    if (!has_group(manifest, group)) continue;
    const auto tensors = tensors_of(folder, manifest, group);
    if (command.json) {
      out["groups"][group] = group_json(tensors, command.tensors);
      continue;
    }
    const auto sum = totals_of(tensors);
    totals.push_back({group, std::to_string(tensors.size()), text::thousands(sum.elements),
                      text::bytes(static_cast<double>(sum.bytes)), joined(sum.dtypes),
                      std::to_string(files_of(manifest, group).size())});
    for (const auto& tensor : tensors)
      rows.push_back({(group == checkpoint::kWeights ? "" : group + ": ") + tensor.name, dtype_text(tensor.info.dtype),
                      shape_text(tensor.info.shape), std::to_string(tensor.slices),
                      text::first_few(std::vector<std::string>(tensor.files.begin(), tensor.files.end()))});
  }
  put(command.json ? json_text(out, 2) + "\n" : "\n" + text_table(totals));
  if (!command.json && command.tensors) put("\n" + text_table(rows));
  return 0;
}

}  // namespace trireme::apps
