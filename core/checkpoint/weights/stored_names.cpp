#include "core/checkpoint/weights/stored_names.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string_view>
#include <utility>

#include "core/base/error.h"

namespace trireme::checkpoint {
namespace {

bool in_head(const std::string& name, const std::string& head_prefix) {
  return !head_prefix.empty() && name.starts_with(head_prefix);
}

/// The part, with its dot, that follows `wrapper` in all of the files' names; "" if they differ.
std::string next_common_part(const WeightsSource& source, const std::string& wrapper) {
  std::string part;
  for (const auto& name : source.names()) {
    const auto end = name.find('.', wrapper.size());
    if (end == std::string::npos) return "";
    const auto own = name.substr(wrapper.size(), end + 1 - wrapper.size());
    if (!part.empty() && own != part) return "";
    part = own;
  }
  return part;
}

/// The name under which the files have this tensor: itself, else, for a norm's weight or bias, the one of files that
/// were converted from TensorFlow: "LayerNorm.gamma", "LayerNorm.beta". nullopt: under neither.
std::optional<std::string> name_in(const WeightsSource& source, const std::string& name) {
  if (source.file_of(name) != nullptr) return name;
  for (const auto& [ours, theirs] : {std::pair{".weight", ".gamma"}, std::pair{".bias", ".beta"}})
    if (name.ends_with(ours)) {
      auto other = name.substr(0, name.size() - std::string_view(ours).size()) + theirs;
      if (source.file_of(other) != nullptr) return other;
    }
  return std::nullopt;
}

}  // namespace

std::vector<std::int64_t> StoredTensor::shape_for(shard::Placement placement) const {
  if (!placement.shape.empty()) placement.shape.front() *= parts;
  return placement.stored_shape();
}

at::Tensor StoredTensor::read(const shard::Placement& placement) const {
  return file->read(name, parts == 1 ? placement : placement.in_whole(part, parts));
}

StoredNames::StoredNames(const WeightsSource& source, const std::vector<std::string>& names,
                         const std::string& head_prefix, const std::vector<nn::Naming>& namings)
    : source_(source), head_prefix_(head_prefix) {
  std::vector<std::string> deciding;
  for (const auto& name : names)
    if (!in_head(name, head_prefix)) deciding.push_back(name);
  while (!deciding.empty() && !decide(deciding, namings)) {
    const auto part = next_common_part(source_, wrapper_);
    wrapper_ += part;
    if (!part.empty()) continue;
    wrapper_.clear();  // none of the model's tensors is there: the caller reports them as missing
    break;
  }
  refuse_unsupported();
}

/// Whether the files have these names of the model after wrapper_: as they are, without a prefix, or by a naming. Some
/// names of a model may be the same in a naming, so the one of which most are there counts.
bool StoredNames::decide(const std::vector<std::string>& names, const std::vector<nn::Naming>& namings) {
  const auto has = [this](const std::string& name) { return name_in(source_, wrapper_ + name).has_value(); };
  auto most = std::count_if(names.begin(), names.end(), has);
  if (most == static_cast<std::ptrdiff_t>(names.size())) return true;
  const auto prefix = names.front().substr(0, names.front().find('.') + 1);
  const auto has_rest = [&](const auto& name) { return name.starts_with(prefix) && has(name.substr(prefix.size())); };
  if (most == 0 && !prefix.empty() && std::all_of(names.begin(), names.end(), has_rest)) {
    missing_prefix_ = prefix;
    return true;
  }
  for (const auto& naming : namings) {
    const auto found = std::count_if(names.begin(), names.end(), [&](const std::string& name) {
      const auto stored = naming.find(name);
      return has(stored ? stored->stored : name);
    });
    if (found <= most) continue;
    most = found;
    naming_ = &naming;
  }
  return most > 0;
}

void StoredNames::refuse_unsupported() const {
  if (naming_ == nullptr) return;
  for (const auto& name : source_.names())
    if (const auto* row = naming_->refused(name.substr(wrapper_.size())))
      throw CheckpointError(fmt::format("{}: the tensor \"{}\" {}", source_.file_of(name)->path(), name, row->reason));
}

StoredTensor StoredNames::find(const std::string& name) const {
  StoredTensor out{.name = name};
  if (const auto stored = naming_ == nullptr ? std::nullopt : naming_->find(name)) {
    out.name = stored->stored;
    out.part = stored->part;
    out.parts = stored->parts;
  } else if (!in_head(name, head_prefix_) && name.starts_with(missing_prefix_)) {
    out.name = name.substr(missing_prefix_.size());
  }
  out.name = wrapper_ + out.name;
  out.name = name_in(source_, out.name).value_or(out.name);
  out.file = source_.file_of(out.name);
  return out;
}

}  // namespace trireme::checkpoint
