#include "core/checkpoint/formats/state_dict.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/ScalarType.h>
#include <caffe2/serialize/inline_container.h>

#include <algorithm>
#include <cstddef>
#include <fstream>
#include <limits>
#include <mutex>
#include <optional>
#include <set>
#include <string_view>
#include <tuple>

#include "core/base/error.h"
#include "core/base/text.h"

namespace trireme::checkpoint {
namespace {

constexpr std::string_view kZip = "PK\x03\x04";
// The pickle of protocol 2 of the 10-byte number with which torch.save's files began before PyTorch 1.6.
constexpr std::string_view kOldFormat = "\x80\x02\x8a\x0a";
constexpr std::size_t kMaxPickle = std::size_t{16} << 20;  // bytes: a hundred thousand tensors
constexpr std::size_t kMaxViewDims = 64;
constexpr const char* kRebuildTensor = "torch._utils._rebuild_tensor_v2";
constexpr const char* kRebuildParameter = "torch._utils._rebuild_parameter";

const std::map<std::string, at::ScalarType>& storage_dtypes() {
  static const std::map<std::string, at::ScalarType> known{
      {"torch.DoubleStorage", at::kDouble},     {"torch.FloatStorage", at::kFloat}, {"torch.HalfStorage", at::kHalf},
      {"torch.BFloat16Storage", at::kBFloat16}, {"torch.LongStorage", at::kLong},   {"torch.IntStorage", at::kInt},
      {"torch.ShortStorage", at::kShort},       {"torch.CharStorage", at::kChar},   {"torch.ByteStorage", at::kByte},
      {"torch.BoolStorage", at::kBool}};
  return known;
}

const std::set<std::string, std::less<>>& allowed_globals() {
  static const auto all = [] {
    std::set<std::string, std::less<>> names{kOrderedDict, kRebuildTensor, kRebuildParameter};
    for (const auto& [name, dtype] : storage_dtypes()) names.insert(name);
    return names;
  }();
  return all;
}

std::string first_bytes(const std::string& path) {
  std::string bytes(kZip.size(), '\0');
  std::ifstream(path, std::ios::binary).read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  return bytes;
}

/// The arguments of the call that makes the tensor, without the one that makes it a parameter; null for no tensor.
const std::vector<const PickleValue*>* tensor_arguments(const PickleValue& value) {
  const auto* call = &value;
  if (call->kind == PickleKind::call && call->text == kRebuildParameter) {
    if (call->items[0]->items.empty()) return nullptr;
    call = call->items[0]->items[0];
  }
  return call->kind == PickleKind::call && call->text == kRebuildTensor ? &call->items[0]->items : nullptr;
}

bool holds_tensors(const PickleValue& dict) {
  if (dict.kind != PickleKind::dict) return false;
  for (std::size_t i = 1; i < dict.items.size(); i += 2)
    if (tensor_arguments(*dict.items[i]) != nullptr) return true;
  return false;
}

/// The dictionary's entry `key` if that holds tensors; else null.
const PickleValue* tensors_under(const PickleValue& dict, std::string_view key) {
  for (std::size_t i = 0; i < dict.items.size(); i += 2)
    if (dict.items[i]->kind == PickleKind::text && dict.items[i]->text == key)
      return holds_tensors(*dict.items[i + 1]) ? dict.items[i + 1] : nullptr;
  return nullptr;
}

std::optional<std::vector<std::int64_t>> integers(const PickleValue& sequence) {
  std::vector<std::int64_t> out;
  if (sequence.kind != PickleKind::sequence || sequence.items.size() > kMaxViewDims) return std::nullopt;
  for (const auto* item : sequence.items) {
    if (item->kind != PickleKind::integer || item->integer < 0) return std::nullopt;
    out.push_back(item->integer);
  }
  return out;
}

/// The bytes of a storage up to the view's last element; unset if they or the number of elements are beyond 63 bits.
std::optional<std::int64_t> extent(const std::vector<std::int64_t>& shape, const std::vector<std::int64_t>& strides,
                                   std::int64_t offset, std::int64_t element_size) {
  std::int64_t numel = 1, end = 0;
  bool empty = false;
  for (std::size_t i = 0; i < shape.size(); ++i) {
    std::int64_t span = 0;
    empty = empty || shape[i] == 0;
    if (shape[i] == 0) continue;
    if (__builtin_mul_overflow(numel, shape[i], &numel) || __builtin_mul_overflow(shape[i] - 1, strides[i], &span) ||
        __builtin_add_overflow(offset, span, &offset))
      return std::nullopt;
  }
  if (numel > std::numeric_limits<std::int64_t>::max() / 16) return std::nullopt;
  if (empty) return 0;
  if (__builtin_add_overflow(offset, 1, &offset) || __builtin_mul_overflow(offset, element_size, &end))
    return std::nullopt;
  return end;
}

/// Runs `body`, which calls LibTorch's reader of archives, and converts its exceptions to CheckpointErrors.
template <class Body>
auto guarded(const std::string& path, const Body& body) {
  try {
    return body();
  } catch (const std::exception& error) {
    std::string what = error.what();
    what.resize(std::min({what.size(), what.find('\n'), what.find(". ")}));  // without LibTorch's advice and stack
    throw CheckpointError(
        fmt::format("{}: cannot be read ({}); if it is truncated or damaged, fetch it again", path, what));
  }
}

}  // namespace

/// The open archive, and the storage that was read last.
class StateDict::Archive {
 public:
  explicit Archive(const std::string& path)
      : path_(path), reader_(guarded(path, [&] { return caffe2::serialize::PyTorchStreamReader(path); })) {}

  /// The size in bytes; unset when there is no such record.
  std::optional<std::uint64_t> size_of(const std::string& record) {
    return guarded(path_, [&] {
      return reader_.hasRecord(record) ? std::optional<std::uint64_t>(reader_.getRecordSize(record)) : std::nullopt;
    });
  }
  std::string text(const std::string& record) {
    return guarded(path_, [&] {
      const auto [data, size] = reader_.getRecord(record);
      return std::string(static_cast<const char*>(data.get()), size);
    });
  }
  /// Valid until the next call. @pre the caller holds `mutex`
  std::byte* storage(const std::string& record) {
    if (record != held_record_) {
      held_record_.clear();
      held_.clear();  // before the next one is allocated
      held_ = guarded(path_, [&] { return std::get<0>(reader_.getRecord(record)); });
      held_record_ = record;
    }
    return static_cast<std::byte*>(held_.get());
  }

  std::mutex mutex;

 private:
  std::string path_;
  caffe2::serialize::PyTorchStreamReader reader_;
  std::string held_record_;
  at::DataPtr held_;
};

bool is_torch_file(const std::string& path) {
  const auto bytes = first_bytes(path);
  return bytes == kZip || bytes == kOldFormat;
}

StateDict::~StateDict() = default;

void StateDict::fail(const std::string& what) const { throw CheckpointError(fmt::format("{}: {}", path_, what)); }

StateDict::StateDict(const std::string& path) : path_(path) {
  if (first_bytes(path) == kOldFormat)
    fail(
        fmt::format("is in the format of torch.save before PyTorch 1.6, which is not read; convert it in Python: "
                    "torch.save(torch.load(\"{}\", map_location=\"cpu\", weights_only=True), \"NEW.pth\")",
                    path));
  archive_ = std::make_unique<Archive>(path);
  if (archive_->size_of("constants.pkl"))
    fail(
        fmt::format("is a TorchScript program; save its tensors in Python: "
                    "torch.save(torch.jit.load(\"{}\").state_dict(), \"NEW.pth\")",
                    path));
  const auto pickle_size = archive_->size_of("data.pkl");
  if (!pickle_size) fail("is a zip archive without data.pkl, so torch.save did not write it");
  if (*pickle_size > kMaxPickle)
    fail(fmt::format("its pickle has {}, far more than a dictionary of tensors needs; save the tensors alone",
                     text::bytes(static_cast<double>(*pickle_size))));
  if (const auto size = archive_->size_of("byteorder"); size && *size < 16 && archive_->text("byteorder") != "little")
    fail("was written on a big-endian machine, whose numbers are not read");

  const auto pickle = read_pickle(path, archive_->text("data.pkl"), allowed_globals());
  const auto& items = find_tensors(*pickle.root).items;
  for (std::size_t i = 0; i < items.size(); i += 2) {
    const auto& name = *items[i];
    if (name.kind != PickleKind::text || tensor_arguments(*items[i + 1]) == nullptr) continue;
    if (!views_.emplace(name.text, make_view(name.text, *items[i + 1])).second)
      fail(fmt::format("holds tensor \"{}\" twice", text::printable(name.text.substr(0, 200))));
  }
}

/// The dictionary of tensors: what was saved, or its entry "model" or "state_dict".
const PickleValue& StateDict::find_tensors(const PickleValue& root) const {
  if (root.kind != PickleKind::dict) fail("holds no dictionary of tensors; save model.state_dict()");
  if (holds_tensors(root)) return root;
  const auto* model = tensors_under(root, "model");
  const auto* state_dict = tensors_under(root, "state_dict");
  if (model != nullptr && state_dict != nullptr)
    fail("holds tensors under \"model\" and under \"state_dict\"; save one of them alone");
  if (model != nullptr || state_dict != nullptr) return model != nullptr ? *model : *state_dict;
  std::vector<std::string> keys;
  for (std::size_t i = 0; i < root.items.size(); i += 2)
    if (root.items[i]->kind == PickleKind::text)
      keys.push_back("\"" + text::printable(root.items[i]->text.substr(0, 100)) + "\"");
  fail(fmt::format("holds no tensors, neither by name nor under \"model\" or \"state_dict\"{}; save model.state_dict()",
                   keys.empty() ? "" : "; it has " + text::first_few(keys)));
}

StateDict::View StateDict::make_view(const std::string& name, const PickleValue& tensor) const {
  const auto bad = [&](const std::string& what) {
    fail(fmt::format("tensor \"{}\" {}", text::printable(name.substr(0, 200)), what));
  };
  // storage, offset, sizes, strides, requires_grad, hooks; a seventh says that a lazy conjugate or negative is pending
  const auto& arguments = *tensor_arguments(tensor);
  if (arguments.size() != 6) bad("is no plain tensor; save a copy of it: tensor.clone()");
  if (arguments[0]->kind != PickleKind::persistent || arguments[1]->kind != PickleKind::integer ||
      arguments[1]->integer < 0)
    bad("has no valid storage or offset: the file is damaged");
  // "storage", type, key, device, number of elements
  const auto& id = *arguments[0]->items[0];
  if (id.kind != PickleKind::sequence || id.items.size() != 5 || id.items[1]->kind != PickleKind::global ||
      id.items[2]->kind != PickleKind::text || !storage_dtypes().contains(id.items[1]->text))
    bad("has no valid storage: the file is damaged");
  const auto shape = integers(*arguments[2]), strides = integers(*arguments[3]);
  if (!shape || !strides || shape->size() != strides->size())
    bad("has no valid sizes and strides: the file is damaged");
  View out{{storage_dtypes().at(id.items[1]->text), *shape},
           *strides,
           arguments[1]->integer,
           "data/" + id.items[2]->text.substr(0, 100)};
  const auto stored = archive_->size_of(out.record);
  if (!stored) bad(fmt::format("has no bytes: the archive lacks {}", text::printable(out.record)));
  const auto needed = extent(*shape, *strides, out.offset, static_cast<std::int64_t>(c10::elementSize(out.info.dtype)));
  if (!needed || static_cast<std::uint64_t>(*needed) > *stored)
    bad(fmt::format("reaches beyond the {} bytes of its storage: the file is damaged", *stored));
  return out;
}

const StateDict::View& StateDict::view(const std::string& name) const {
  if (const auto found = views_.find(name); found != views_.end()) return found->second;
  fail(fmt::format("holds no tensor \"{}\"{}", name, text::did_you_mean(name, names())));
}

std::vector<std::string> StateDict::names() const { return text::keys_of(views_); }

at::Tensor StateDict::read_slice(const std::string& name, const shard::Placement& placement) const {
  const auto& [info, strides, offset, record] = view(name);
  if (placement.local_numel() == 0) return at::empty(placement.local_shape(), info.dtype);
  const std::lock_guard lock(archive_->mutex);
  auto* first = archive_->storage(record) + offset * static_cast<std::int64_t>(c10::elementSize(info.dtype));
  const auto full = at::from_blob(first, info.shape, strides, at::TensorOptions(info.dtype));
  return placement.is_whole() ? full.clone(at::MemoryFormat::Contiguous) : placement.slice(full);
}

}  // namespace trireme::checkpoint
