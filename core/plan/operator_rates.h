// The rates of a GPU, from operators that are repeated alone: its operators run on other threads than their launches.
#pragma once

#include <c10/core/Device.h>

#include "core/plan/machine.h"

namespace trireme::plan {

/// `seconds`: of one measurement.
ComputeRates rates_of_operators(c10::Device device, double seconds);

}  // namespace trireme::plan
