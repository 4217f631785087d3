// What the CUDA driver says about a device, without a CUDA library of LibTorch.
#pragma once

#include <string>

namespace trireme::comm {

/// The device's name, such as "NVIDIA H100 80GB HBM3"; "" if there is no such device. `index`: among the devices that
/// this process can use.
std::string cuda_device_name(int index);

}  // namespace trireme::comm
