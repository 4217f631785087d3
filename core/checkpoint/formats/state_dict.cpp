#include "core/checkpoint/formats/state_dict.h"

#include <ATen/Context.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/ScalarType.h>
#include <caffe2/serialize/inline_container.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <fstream>
#include <limits>
#include <mutex>
#include <optional>
#include <string_view>
#include <tuple>

#include "core/base/error.h"
#include "core/base/text.h"

namespace trireme::checkpoint {
namespace {

constexpr std::string_view kZip = "PK\x03\x04";
// The pickle of protocol 2 of the 10-byte number with which torch.save's files began before PyTorch 1.6.
constexpr std::string_view kOldFormat = "\x80\x02\x8a\x0a";
constexpr std::int64_t kOldVersion = 1001;
constexpr std::size_t kMaxPickle = std::size_t{16} << 20;  // bytes: a hundred thousand tensors
constexpr std::size_t kMaxViewDims = 64;
constexpr std::size_t kLongestKey = 100;  // of a storage
constexpr std::string_view kRebuild = "torch._utils._rebuild";
constexpr std::array kRebuildTensor{"torch._utils._rebuild_tensor", "torch._utils._rebuild_tensor_v2"};
constexpr std::array kRebuildParameter{"torch._utils._rebuild_parameter", "torch._utils._rebuild_parameter_with_state"};
constexpr const char* kBigEndian = "was written on a big-endian machine, whose numbers are not read";

const std::map<std::string, at::ScalarType>& storage_dtypes() {
  static const std::map<std::string, at::ScalarType> known{
      {"torch.DoubleStorage", at::kDouble},
      {"torch.FloatStorage", at::kFloat},
      {"torch.HalfStorage", at::kHalf},
      {"torch.BFloat16Storage", at::kBFloat16},
      {"torch.LongStorage", at::kLong},
      {"torch.IntStorage", at::kInt},
      {"torch.ShortStorage", at::kShort},
      {"torch.CharStorage", at::kChar},
      {"torch.ByteStorage", at::kByte},
      {"torch.BoolStorage", at::kBool},
      // Not read, but in old files their sizes say where the next storage begins.
      {"torch.ComplexFloatStorage", at::kComplexFloat},
      {"torch.ComplexDoubleStorage", at::kComplexDouble},
      {"torch.QInt8Storage", at::kQInt8},
      {"torch.QUInt8Storage", at::kQUInt8},
      {"torch.QInt32Storage", at::kQInt32}};
  return known;
}

std::string first_bytes(const std::string& path) {
  std::string bytes(kZip.size(), '\0');
  std::ifstream(path, std::ios::binary).read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  return bytes;
}

/// Whether it is what one of these functions makes.
bool is_made_by(const std::array<const char*, 2>& functions, const PickleValue& value) {
  return value.kind == PickleKind::object &&
         std::find(functions.begin(), functions.end(), value.text) != functions.end();
}

/// The arguments of the call that makes the tensor, without the one that makes it a parameter; null for no tensor.
const std::vector<const PickleValue*>* tensor_arguments(const PickleValue& value) {
  const auto* call = &value;
  if (is_made_by(kRebuildParameter, *call)) {
    if (call->items[0]->items.empty()) return nullptr;
    call = call->items[0]->items[0];
  }
  return is_made_by(kRebuildTensor, *call) ? &call->items[0]->items : nullptr;
}

/// Whether it is a tensor of a kind that is not read: quantised, sparse, of a class of its own, or float8.
bool is_other_tensor(const PickleValue& value) {
  return value.kind == PickleKind::object && tensor_arguments(value) == nullptr &&
         (value.text.starts_with(kRebuild) || value.text.starts_with("torch._tensor._rebuild"));
}

bool holds_tensors(const PickleValue& dict) {
  if (dict.kind != PickleKind::dict) return false;
  for (std::size_t i = 1; i < dict.items.size(); i += 2)
    if (tensor_arguments(*dict.items[i]) != nullptr) return true;
  return false;
}

/// The dictionary's entry; null: it has none of this name.
const PickleValue* entry_of(const PickleValue& dict, std::string_view key) {
  if (dict.kind != PickleKind::dict) return nullptr;
  for (std::size_t i = 0; i < dict.items.size(); i += 2)
    if (dict.items[i]->kind == PickleKind::text && dict.items[i]->text == key) return dict.items[i + 1];
  return nullptr;
}

struct StorageId {
  at::ScalarType dtype;
  std::string key;
};
/// "storage", type, key, device, number of elements; in old files a storage of which this one is a part, or None.
std::optional<StorageId> storage_id(const PickleValue& id) {
  if (id.kind != PickleKind::sequence || id.items.size() < 5 || id.items.size() > 6 ||
      id.items[1]->kind != PickleKind::global || id.items[2]->kind != PickleKind::text ||
      id.items[2]->text.size() > kLongestKey || (id.items.size() == 6 && id.items[5]->kind != PickleKind::other))
    return std::nullopt;
  const auto known = storage_dtypes().find(id.items[1]->text);
  if (known == storage_dtypes().end()) return std::nullopt;
  return StorageId{known->second, id.items[2]->text};
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

/// What an open file stores besides the pickle of what was saved.
class StateDict::Storages {
 public:
  virtual ~Storages() = default;
  /// Of what was saved. To be read first.
  virtual Pickle pickle() = 0;
  /// The size in bytes; unset when there is no such storage.
  [[nodiscard]] virtual std::optional<std::uint64_t> size_of(const std::string& key) = 0;
  /// The bytes of a storage; valid until the next call. @pre the caller holds `mutex`
  std::byte* bytes_of(const std::string& key) {
    if (key != held_key_ || !held_) {
      held_.clear();  // before the next one is allocated
      held_ = read(key);
      held_key_ = key;
    }
    return static_cast<std::byte*>(held_.get());
  }

  std::mutex mutex;

 protected:
  virtual at::DataPtr read(const std::string& key) = 0;

 private:
  std::string held_key_;
  at::DataPtr held_;  ///< of the storage that was read last
};

/// The zip archive of PyTorch since 1.6.
class StateDict::Archive : public Storages {
 public:
  explicit Archive(const std::string& path)
      : path_(path), reader_(guarded(path, [&] { return caffe2::serialize::PyTorchStreamReader(path); })) {}

  Pickle pickle() override {
    if (has("constants.pkl"))
      fail(
          fmt::format("is a TorchScript program; save its tensors in Python: "
                      "torch.save(torch.jit.load(\"{}\").state_dict(), \"NEW.pth\")",
                      path_));
    if (!has("data.pkl")) fail("is a zip archive without data.pkl, so torch.save did not write it");
    if (const auto size = bytes_in("data.pkl"); size > kMaxPickle)
      fail(fmt::format("its pickle has {}, far more than a dictionary of tensors needs; save the tensors alone",
                       text::bytes(static_cast<double>(size))));
    if (has("byteorder") && bytes_in("byteorder") < 16 && content("byteorder") != "little") fail(kBigEndian);
    return read_pickle(path_, content("data.pkl"));
  }
  std::optional<std::uint64_t> size_of(const std::string& key) override {
    return has("data/" + key) ? std::optional(bytes_in("data/" + key)) : std::nullopt;
  }

 protected:
  at::DataPtr read(const std::string& key) override {
    return guarded(path_, [&] { return std::get<0>(reader_.getRecord("data/" + key)); });
  }

 private:
  [[noreturn]] void fail(const std::string& what) const { throw CheckpointError(fmt::format("{}: {}", path_, what)); }
  bool has(const std::string& record) {
    return guarded(path_, [&] { return reader_.hasRecord(record); });
  }
  std::uint64_t bytes_in(const std::string& record) {
    return guarded(path_, [&] { return reader_.getRecordSize(record); });
  }
  std::string content(const std::string& record) {
    return guarded(path_, [&] {
      const auto [data, size] = reader_.getRecord(record);
      return std::string(static_cast<const char*>(data.get()), size);
    });
  }

  std::string path_;
  caffe2::serialize::PyTorchStreamReader reader_;
};

/// The format of PyTorch before 1.6.
class StateDict::OldFile : public Storages {
 public:
  explicit OldFile(const std::string& path) : path_(path), file_(path, std::ios::binary) {
    file_.seekg(0, std::ios::end);
    size_ = file_ ? static_cast<std::uint64_t>(file_.tellg()) : 0;
  }

  Pickle pickle() override {
    std::string bytes(std::min<std::uint64_t>(size_, kMaxPickle), '\0');
    copy(0, bytes.size(), bytes.data());
    std::string_view rest = bytes;
    const auto next = [&] {
      auto pickle = read_pickle(path_, rest);
      rest.remove_prefix(pickle.size);
      return pickle;
    };
    static_cast<void>(next());  // the number that marks the format
    if (const auto version = next().root->integer; version != kOldVersion)
      damaged(fmt::format("its version is {}", version));
    const auto machine = next();
    if (const auto* little = entry_of(*machine.root, "little_endian"); little != nullptr && little->integer == 0)
      throw CheckpointError(fmt::format("{}: {}", path_, kBigEndian));
    auto saved = next();
    const auto keys = next();
    find_storages(saved, *keys.root, bytes.size() - rest.size());
    return saved;
  }
  std::optional<std::uint64_t> size_of(const std::string& key) override {
    const auto found = where_.find(key);
    return found == where_.end() ? std::nullopt : std::optional(found->second.size);
  }

 protected:
  at::DataPtr read(const std::string& key) override {
    const auto& [begin, size] = where_.at(key);
    auto out = at::getCPUAllocator()->allocate(size);
    copy(begin, size, out.mutable_get());
    return out;
  }

 private:
  struct Range {
    std::uint64_t begin, size;
  };

  [[noreturn]] void damaged(const std::string& what) const {
    throw CheckpointError(fmt::format("{}: {}; the file is damaged, fetch it again", path_, what));
  }
  void copy(std::uint64_t begin, std::uint64_t size, void* to) {
    file_.clear();
    file_.seekg(static_cast<std::streamoff>(begin));
    file_.read(static_cast<char*>(to), static_cast<std::streamsize>(size));
    if (!file_) damaged(fmt::format("{} of its bytes cannot be read", size));
  }
  /// Finds the storages, which begin at byte `at`, one after the other in the order of `keys`.
  void find_storages(const Pickle& saved, const PickleValue& keys, std::uint64_t at) {
    std::map<std::string, std::uint64_t> element_sizes;
    for (const auto& value : saved.values)
      if (const auto id = value.kind == PickleKind::persistent ? storage_id(*value.items[0]) : std::nullopt)
        element_sizes[id->key] = c10::elementSize(id->dtype);
    for (const auto* key : keys.items) {
      const auto known = element_sizes.find(key->text);
      std::uint64_t count = 0;
      if (known == element_sizes.end() || size_ - at < sizeof count) damaged("a storage is missing");
      copy(at, sizeof count, &count);
      at += sizeof count;
      if (count > (size_ - at) / known->second)
        damaged(fmt::format("storage {} ends too early", text::printable(key->text.substr(0, 100))));
      where_[key->text] = {at, count * known->second};
      at += count * known->second;
    }
  }

  std::string path_;
  std::ifstream file_;
  std::uint64_t size_ = 0;
  std::map<std::string, Range> where_;  ///< of the storages, in the file
};

bool is_torch_file(const std::string& path) {
  const auto bytes = first_bytes(path);
  return bytes == kZip || bytes == kOldFormat;
}

StateDict::~StateDict() = default;

void StateDict::fail(const std::string& what) const { throw CheckpointError(fmt::format("{}: {}", path_, what)); }

StateDict::StateDict(const std::string& path) : path_(path) {
  if (first_bytes(path) == kOldFormat)
    storages_ = std::make_unique<OldFile>(path);
  else
    storages_ = std::make_unique<Archive>(path);
  const auto pickle = storages_->pickle();
  const auto& items = find_tensors(*pickle.root).items;
  for (std::size_t i = 0; i < items.size(); i += 2) {
    const auto& name = *items[i];
    if (name.kind == PickleKind::text && is_other_tensor(*items[i + 1]))
      fail(fmt::format("tensor \"{}\" is no plain tensor (it is made by {}); save a plain one in its place",
                       text::printable(name.text.substr(0, 200)), text::printable(items[i + 1]->text)));
    if (name.kind != PickleKind::text || tensor_arguments(*items[i + 1]) == nullptr) continue;
    if (!views_.emplace(name.text, make_view(name.text, *items[i + 1])).second)
      fail(fmt::format("holds tensor \"{}\" twice", text::printable(name.text.substr(0, 200))));
  }
}

/// The dictionary of tensors: one of kStateDictKeys, whatever tensors are beside it (PyTorch's ImageNet example saves
/// its best accuracy as one); else what was saved.
const PickleValue& StateDict::find_tensors(const PickleValue& root) {
  if (root.kind == PickleKind::object && !root.text.empty())
    fail(fmt::format("holds an object of {}, whose code is not run; load the file in Python and save its state_dict()",
                     text::printable(root.text.substr(0, 200))));
  if (root.kind != PickleKind::dict) fail("holds no dictionary of tensors; save model.state_dict()");
  const PickleValue* found = nullptr;
  for (const char* key : kStateDictKeys) {
    const auto* entry = entry_of(root, key);
    if (entry == nullptr || !holds_tensors(*entry)) continue;
    if (found != nullptr)
      fail(fmt::format("holds tensors under \"{}\" and under \"{}\"; save one of them alone", entry_, key));
    found = entry;
    entry_ = key;
  }
  if (found != nullptr) return *found;
  if (holds_tensors(root)) return root;
  std::vector<std::string> keys;
  for (std::size_t i = 0; i < root.items.size(); i += 2)
    if (root.items[i]->kind == PickleKind::text)
      keys.push_back("\"" + text::printable(root.items[i]->text.substr(0, 100)) + "\"");
  fail(fmt::format("holds no tensors, neither by name nor under \"{}\"{}; save model.state_dict()",
                   fmt::join(kStateDictKeys, "\", \""), keys.empty() ? "" : "; it has " + text::first_few(keys)));
}

StateDict::View StateDict::make_view(const std::string& name, const PickleValue& tensor) const {
  const auto bad = [&](const std::string& what) {
    fail(fmt::format("tensor \"{}\" {}", text::printable(name.substr(0, 200)), what));
  };
  // storage, offset, sizes, strides; since PyTorch 0.4 also requires_grad and hooks; a seventh says that a lazy
  // conjugate or negative is pending
  const auto& arguments = *tensor_arguments(tensor);
  if (arguments.size() != 6 && arguments.size() != 4) bad("is no plain tensor; save a copy of it: tensor.clone()");
  if (arguments[0]->kind != PickleKind::persistent || arguments[1]->kind != PickleKind::integer ||
      arguments[1]->integer < 0)
    bad("has no valid storage or offset: the file is damaged");
  const auto id = storage_id(*arguments[0]->items[0]);
  if (!id) bad("has no valid storage: the file is damaged");
  if (c10::isComplexType(id->dtype) || c10::isQIntType(id->dtype))
    bad("is complex or quantised, which is not read; save a plain one in its place");
  const auto shape = integers(*arguments[2]), strides = integers(*arguments[3]);
  if (!shape || !strides || shape->size() != strides->size())
    bad("has no valid sizes and strides: the file is damaged");
  View out{{id->dtype, *shape}, *strides, arguments[1]->integer, id->key};
  const auto stored = storages_->size_of(out.key);
  if (!stored) bad(fmt::format("has no bytes: the file lacks storage {}", text::printable(out.key)));
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
  const auto& [info, strides, offset, key] = view(name);
  if (placement.local_numel() == 0) return at::empty(placement.local_shape(), info.dtype);
  const std::lock_guard lock(storages_->mutex);
  auto* first = storages_->bytes_of(key) + offset * static_cast<std::int64_t>(c10::elementSize(info.dtype));
  const auto full = at::from_blob(first, info.shape, strides, at::TensorOptions(info.dtype));
  return placement.is_whole() ? full.clone(at::MemoryFormat::Contiguous) : placement.slice(full);
}

}  // namespace trireme::checkpoint
