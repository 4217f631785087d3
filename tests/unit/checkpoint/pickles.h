// Instructions of pickles, to write files of torch.save without Python, and those that torch.save never writes.
#pragma once

#include <c10/core/ScalarType.h>
#include <caffe2/serialize/inline_container.h>

#include <cstdint>
#include <string>
#include <vector>

#include "core/checkpoint/formats/safetensors.h"

namespace trireme::checkpoint {

inline std::string little(std::int64_t value, int bytes) {
  std::string out;
  for (int i = 0; i < bytes; ++i) out.push_back(static_cast<char>(value >> (8 * i)));
  return out;
}
inline std::string text_of(const std::string& value) {
  return "X" + little(static_cast<std::int64_t>(value.size()), 4) + value;
}
inline std::string integer_of(std::int64_t value) { return "\x8a\x08" + little(value, 8); }
inline std::string tuple_of(const std::vector<std::int64_t>& values) {
  std::string out = "(";
  for (const auto value : values) out += integer_of(value);
  return out + "t";
}
/// A tensor in the record data/KEY. `shape` and `strides`: tuples.
inline std::string tensor_of(const std::string& key, std::int64_t offset, const std::string& shape,
                             const std::string& strides, const std::string& type = "FloatStorage") {
  return "ctorch._utils\n_rebuild_tensor_v2\n((" + text_of("storage") + "ctorch\n" + type + "\n" + text_of(key) +
         text_of("cpu") + integer_of(4) + "tQ" + integer_of(offset) + shape + strides + "\x89}tR";
}

/// Writes a file like torch.save({"model": {...}}), with float32 and float64 tensors.
inline void write_state_dict(const std::string& path, const std::vector<NamedValue>& tensors) {
  caffe2::serialize::PyTorchStreamWriter writer(path);
  std::string pickle = "\x80\x02}" + text_of("model") + "}(";
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto value = tensors[i].value.contiguous();
    const auto key = std::to_string(i);
    pickle +=
        text_of(tensors[i].name) + tensor_of(key, 0, tuple_of(value.sizes().vec()), tuple_of(value.strides().vec()),
                                             value.scalar_type() == at::kDouble ? "DoubleStorage" : "FloatStorage");
    writer.writeRecord("data/" + key, value.const_data_ptr(), value.nbytes());
  }
  pickle += "us.";
  writer.writeRecord("data.pkl", pickle.data(), pickle.size());
  writer.writeEndOfFile();
}

}  // namespace trireme::checkpoint
