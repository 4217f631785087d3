// PlannedDevice: a device that is not there. A thread that plans a run computes on LibTorch's meta device: tensors have
// shapes and no memory. The planned device says for which device they stand, and counts the memory that they would
// take there.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace trireme {

/// While it exists, tensors that its thread makes on the meta device count here, until they are freed, by whichever
/// thread. One at a time in a thread.
class PlannedDevice {
 public:
  /// `as`: the type of device that is planned.
  explicit PlannedDevice(c10::DeviceType as);
  ~PlannedDevice();
  PlannedDevice(const PlannedDevice&) = delete;
  PlannedDevice& operator=(const PlannedDevice&) = delete;

  [[nodiscard]] c10::DeviceType type() const;
  /// The bytes in use, and their peak since the object was made or reset_peak() was called.
  [[nodiscard]] std::int64_t held() const;
  [[nodiscard]] std::int64_t peak() const;
  void reset_peak();

  /// That of the calling thread; null: it plans nothing.
  static PlannedDevice* current();

  struct Bytes;  // private to planned_device.cpp

 private:
  friend void set_value(const at::Tensor& tensor, const at::Tensor& value);
  c10::DeviceType type_;
  std::shared_ptr<Bytes> bytes_;
  using Tensor = c10::intrusive_ptr<c10::TensorImpl>;
  std::vector<std::pair<Tensor, Tensor>> restored_;  ///< tensors, and what they were
};

/// The type of device whose kernels and memory a tensor on `device` stands for: on the meta device, of a thread that
/// plans, the planned one's; else its own.
c10::DeviceType type_of(c10::Device device);

/// Gives a tensor another one's memory in place, so that a module that holds it sees the change. LibTorch's set_data()
/// refuses to take a tensor's memory away; here a thread that plans may do so, until its PlannedDevice ends.
void set_value(const at::Tensor& tensor, const at::Tensor& value);

/// Where a copy in host memory of a tensor on `device` is: on the CPU; without memory for one that has none.
inline c10::Device host_of(c10::Device device) { return device.is_meta() ? device : c10::Device(c10::kCPU); }

}  // namespace trireme
