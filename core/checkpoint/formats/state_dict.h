// StateDict: reads the tensors of a file that torch.save wrote (.pth, .pt, pytorch_model.bin), without running its
// code.
//
// Format since PyTorch 1.6: a zip archive with data.pkl, a pickle of what was saved, and one record data/KEY per
// storage, which LibTorch's PyTorchStreamReader reads. Before, and with _use_new_zipfile_serialization=False: five
// pickles (a number that marks the format, its version, the sizes of the machine's integers, what was saved, the keys
// of the storages), then for each key the number of elements in 8 bytes and the elements. A tensor is a view of a
// storage: offset, sizes and strides in elements; tied weights share a storage.
//
// The dictionary of tensors is what was saved, or one of its entries, by the names that training programs use
// (kStateDictKeys); a checkpoint's other entries are skipped, whatever they are. The file is not trusted: every view is
// checked against its storage when the file is opened. The records' checksums are not verified, because LibTorch's
// reader does not offer it.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/checkpoint/formats/pickle.h"
#include "core/checkpoint/formats/weights_file.h"

namespace trireme::checkpoint {

/// The entries under which training programs save their model: PyTorch's ImageNet example, Lightning and timm;
/// PyTorch's tutorial; torchvision and DeiT; DeepSpeed; and many of people's own.
inline constexpr std::array kStateDictKeys{"state_dict", "model_state_dict", "model", "module", "net", "network"};

/// Whether the file begins like one of torch.save, in the format of any version.
bool is_torch_file(const std::string& path);

/// Opening reads the pickles alone; read() reads the tensor's storage and holds it until another one is read.
class StateDict : public WeightsFile {
 public:
  /// @throws CheckpointError that names the file, the problem and the remedy.
  explicit StateDict(const std::string& path);
  ~StateDict() override;

  [[nodiscard]] const std::string& path() const override { return path_; }
  [[nodiscard]] std::string entry() const override { return entry_; }
  [[nodiscard]] std::vector<std::string> names() const override;
  [[nodiscard]] TensorInfo info(const std::string& name) const override { return view(name).info; }

 protected:
  [[nodiscard]] at::Tensor read_slice(const std::string& name, const shard::Placement& placement) const override;

 private:
  class Storages;
  class Archive;
  class OldFile;
  /// A tensor in its storage; offset and strides in elements.
  struct View {
    TensorInfo info;
    std::vector<std::int64_t> strides;
    std::int64_t offset;
    std::string key;  ///< of the storage
  };

  [[noreturn]] void fail(const std::string& what) const;
  [[nodiscard]] const PickleValue& find_tensors(const PickleValue& root);
  [[nodiscard]] View make_view(const std::string& name, const PickleValue& tensor) const;
  [[nodiscard]] const View& view(const std::string& name) const;

  std::string path_;
  std::string entry_;  ///< under which the tensors are; "": they are what was saved
  std::unique_ptr<Storages> storages_;
  std::map<std::string, View> views_;
};

}  // namespace trireme::checkpoint
