#include "core/base/planned_device.h"

#include <c10/core/Allocator.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "core/base/error.h"
#include "core/base/memory.h"

namespace trireme {

/// Tensors may outlive the planned device, and another thread may free them.
struct PlannedDevice::Bytes {
  std::atomic<std::int64_t> held{0}, peak{0};
};

namespace {

thread_local PlannedDevice* current_device = nullptr;  // LibTorch calls the allocator without context
thread_local std::shared_ptr<PlannedDevice::Bytes> current_bytes{};

/// LibTorch's allocator of tensors without values, with a count of their bytes. LibTorch has one for the process.
class MetaAllocator final : public c10::Allocator {
 public:
  static void install() {
    static auto* allocator = new MetaAllocator;  // never destroyed: tensors outlive any scope
    static const bool once = (c10::SetAllocator(c10::kMeta, allocator, /*priority=*/1), true);
    (void)once;
  }

  c10::DataPtr allocate(std::size_t bytes) override {
    if (bytes == 0 || !current_bytes || memory::OfHost::applies()) return {nullptr, c10::Device(c10::kMeta)};
    auto block = std::make_unique<Block>(Block{current_bytes, static_cast<std::int64_t>(bytes)});
    auto& count = *block->of;
    const auto now = count.held.fetch_add(block->bytes) + block->bytes;
    if (now > count.peak) count.peak = now;  // only the planning thread allocates
    return {nullptr, block.release(), &free_block, c10::Device(c10::kMeta)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* /*to*/, const void* /*from*/, std::size_t /*bytes*/) const override {}

 private:
  struct Block {
    std::shared_ptr<PlannedDevice::Bytes> of;
    std::int64_t bytes;
  };
  static void free_block(void* given) {
    const std::unique_ptr<Block> block(static_cast<Block*>(given));
    if (block) block->of->held -= block->bytes;
  }
};

}  // namespace

PlannedDevice::PlannedDevice(c10::DeviceType as) : type_(as), bytes_(std::make_shared<Bytes>()) {
  TRIREME_CHECK(current_device == nullptr, "a thread plans one device at a time");
  MetaAllocator::install();
  current_device = this;
  current_bytes = bytes_;
}

PlannedDevice::~PlannedDevice() {
  for (const auto& [tensor, before] : restored_) tensor->shallow_copy_from(before);
  current_device = nullptr;
  current_bytes.reset();
}

c10::DeviceType PlannedDevice::type() const { return type_; }
std::int64_t PlannedDevice::held() const { return bytes_->held; }
std::int64_t PlannedDevice::peak() const { return bytes_->peak; }
void PlannedDevice::reset_peak() { bytes_->peak = bytes_->held.load(); }
PlannedDevice* PlannedDevice::current() { return current_device; }

c10::DeviceType type_of(c10::Device device) {
  return device.is_meta() && current_device != nullptr ? current_device->type() : device.type();
}

void set_value(const at::Tensor& tensor, const at::Tensor& value) {
  if (value.is_meta() == tensor.is_meta()) return at::Tensor(tensor).set_data(value);
  auto* impl = tensor.unsafeGetTensorImpl();
  // A user's own modules may share the tensor with others.
  if (value.is_meta() && current_device != nullptr)
    current_device->restored_.emplace_back(tensor.getIntrusivePtr(),
                                           impl->shallow_copy_and_detach(c10::VariableVersion(0), true));
  impl->shallow_copy_from(value.getIntrusivePtr());
}

}  // namespace trireme
