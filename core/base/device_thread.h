// Threads that may touch a device. CUDA's current device is a thread's own and begins as device 0, so a query or a copy
// in a thread that does not set it makes a second context, of about 500 MB, on the first rank's GPU.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/DeviceGuard.h>

#include <optional>
#include <thread>
#include <utility>

namespace trireme {

/// Starts a thread that runs body() with `device` as its current device. Where threads that touch tensors start in
/// core, they start by this. @throws std::system_error when the system has no thread for it
template <class Body>
std::thread device_thread(c10::Device device, Body body) {
  return std::thread([device, body = std::move(body)]() mutable {
    std::optional<c10::DeviceGuard> current;
    if (!device.is_cpu()) current.emplace(device);
    body();
  });
}

}  // namespace trireme
