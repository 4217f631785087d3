#include "core/checkpoint/formats/safetensors.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/isinf.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <numeric>

#include "core/base/error.h"

namespace trireme::checkpoint {
namespace {

/// The header, preceded by its length and padded so that the data begin at a multiple of 8.
std::string make_header(const std::string& path, const std::vector<StoredEntry>& entries,
                        const std::vector<std::size_t>& order, const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::uint64_t at = 0;
  for (const auto index : order) {
    const auto& [name, shape, type] = entries[index];
    const auto dtype = safetensors_name(type);
    if (dtype.empty())
      throw CheckpointError(
          fmt::format("{}: tensor \"{}\": safetensors has no dtype {}", path, name, c10::getDtypeNames(type).first));
    TRIREME_CHECK(name != "__metadata__" && !header.contains(name), "{}: tensor \"{}\" appears twice", path, name);
    const std::uint64_t end = at + bytes_of(entries[index]);
    header[name] = {{"dtype", dtype}, {"shape", shape}, {"data_offsets", {at, end}}};
    at = end;
  }
  auto text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const std::uint64_t length = text.size();
  std::string out(sizeof length, '\0');
  std::memcpy(out.data(), &length, sizeof length);
  return out + text;
}

}  // namespace

std::uint64_t bytes_of(const StoredEntry& entry) {
  return static_cast<std::uint64_t>(shard::Placement::whole(entry.name, entry.shape).full_numel()) *
         c10::elementSize(entry.dtype);
}

std::vector<std::size_t> file_order(const std::vector<StoredEntry>& entries) {
  std::vector<std::size_t> order(entries.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    const auto width_a = c10::elementSize(entries[a].dtype), width_b = c10::elementSize(entries[b].dtype);
    return width_a != width_b ? width_a > width_b : entries[a].name < entries[b].name;
  });
  return order;
}

std::vector<std::vector<std::size_t>> split_by_size(const std::vector<StoredEntry>& entries, std::uint64_t most_bytes) {
  std::vector<std::vector<std::size_t>> files;
  std::uint64_t bytes = 0;  // of the last file
  for (const auto index : file_order(entries)) {
    const auto more = bytes_of(entries[index]);
    if (files.empty() || (bytes > 0 && more > most_bytes - bytes)) {
      files.emplace_back();
      bytes = 0;
    }
    files.back().push_back(index);
    bytes = std::min(bytes + more, most_bytes);
  }
  return files;
}

FileDigest write_tensors(const std::string& path, const std::vector<StoredEntry>& entries,
                         const std::vector<std::size_t>& indices, const std::function<at::Tensor(std::size_t)>& value,
                         const std::map<std::string, std::string>& metadata) {
  const auto header = make_header(path, entries, indices, metadata);
  std::uint64_t total = header.size();
  for (const auto index : indices) total += bytes_of(entries[index]);
  FileWriter file(path, total);
  file.write(header.data(), header.size());
  for (const auto index : indices) {
    const auto plain = value(index).detach().cpu().contiguous();
    TRIREME_CHECK(plain.nbytes() == bytes_of(entries[index]), "{}: tensor \"{}\" is not that of its entry", path,
                  entries[index].name);
    if (plain.nbytes() > 0) file.write(plain.const_data_ptr(), plain.nbytes());
  }
  return file.commit();
}

TensorInfo SafeTensors::info(const std::string& name) const {
  const auto& entry = file_.entry(name);
  return {entry.dtype, entry.shape};
}

at::Tensor SafeTensors::read_slice(const std::string& name, const shard::Placement& placement) const {
  auto out = at::empty(placement.local_shape(), tensors().at(name).dtype);
  const auto source = file_.bytes(name);
  auto* target = static_cast<std::byte*>(out.mutable_data_ptr());
  const std::size_t width = out.element_size();
  for (const auto& run : placement.runs())
    if (run.size > 0)
      std::memcpy(target + static_cast<std::size_t>(run.local_begin) * width,
                  source.data() + static_cast<std::size_t>(run.full_begin) * width,
                  static_cast<std::size_t>(run.size) * width);
  return out;
}

FileDigest write_safetensors(const std::string& path, const std::vector<NamedValue>& tensors,
                             const std::map<std::string, std::string>& metadata) {
  std::vector<StoredEntry> entries;
  for (const auto& [name, value] : tensors) {
    TRIREME_CHECK(value.defined(), "{}: tensor \"{}\" is undefined", path, name);
    entries.push_back({name, value.sizes().vec(), value.scalar_type()});
  }
  return write_tensors(
      path, entries, file_order(entries), [&](std::size_t i) { return tensors[i].value; }, metadata);
}

at::Tensor converted(const at::Tensor& value, const StoredEntry& entry) {
  if (value.scalar_type() == entry.dtype) return value;
  const auto out = value.to(entry.dtype);
  if (at::isinf(out).any().item<bool>() && !at::isinf(value).any().item<bool>())
    throw CheckpointError(fmt::format("{}: holds values beyond the range of {}; choose another dtype to export in",
                                      entry.name, c10::getDtypeNames(entry.dtype).first));
  return out;
}

}  // namespace trireme::checkpoint
