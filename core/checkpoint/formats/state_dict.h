// StateDict: reads the tensors of a file that torch.save wrote (.pth, .pt, pytorch_model.bin), without running its
// code.
//
// Format since PyTorch 1.6: a zip archive with data.pkl, a pickle of the dictionary, and one record data/KEY per
// storage. A tensor is a view of a storage: offset, sizes and strides in elements; tied weights share a storage. The
// dictionary is {name: tensor}, or has it under "model" or "state_dict"; entries that are no tensors are skipped.
// LibTorch's PyTorchStreamReader reads the archive. Its Unpickler cannot make Python's OrderedDict, which every
// state_dict() is, so pickle.h reads data.pkl. The file is not trusted: every view is checked against its storage when
// the file is opened. The records' checksums are not verified, because LibTorch's reader does not offer it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/checkpoint/formats/pickle.h"
#include "core/checkpoint/formats/weights_file.h"

namespace trireme::checkpoint {

/// Whether the file begins like one of torch.save, in the format of any version.
bool is_torch_file(const std::string& path);

/// Opening reads data.pkl alone; read() reads the tensor's storage and holds it until another one is read.
class StateDict : public WeightsFile {
 public:
  /// @throws CheckpointError that names the file, the problem and the remedy.
  explicit StateDict(const std::string& path);
  ~StateDict() override;

  [[nodiscard]] const std::string& path() const override { return path_; }
  [[nodiscard]] std::vector<std::string> names() const override;
  [[nodiscard]] TensorInfo info(const std::string& name) const override { return view(name).info; }

 protected:
  [[nodiscard]] at::Tensor read_slice(const std::string& name, const shard::Placement& placement) const override;

 private:
  class Archive;
  /// A tensor in its storage; offset and strides in elements.
  struct View {
    TensorInfo info;
    std::vector<std::int64_t> strides;
    std::int64_t offset;
    std::string record;  ///< "data/KEY"
  };

  [[noreturn]] void fail(const std::string& what) const;
  [[nodiscard]] const PickleValue& find_tensors(const PickleValue& root) const;
  [[nodiscard]] View make_view(const std::string& name, const PickleValue& tensor) const;
  [[nodiscard]] const View& view(const std::string& name) const;

  std::string path_;
  std::unique_ptr<Archive> archive_;
  std::map<std::string, View> views_;
};

}  // namespace trireme::checkpoint
