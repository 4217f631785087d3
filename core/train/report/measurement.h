// Measures the steps of a training that writes nothing: the work of `trireme bench`.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "core/comm/world.h"
#include "core/setup/run_setup.h"

namespace trireme::train {

/// What is measured.
struct MeasurementOptions {
  double seconds = 20;   ///< about, after the first steps
  bool profile = false;  ///< also of single operators, of CPU ranks, in a few more steps
};

/// Trains the same number of steps on every rank, without evaluations and checkpoints. On rank 0 the result; null on
/// the others:
///
///   set_up_s           until the model is boosted
///   tuned              what [optimize] has chosen; absent: nothing
///   first_step_s
///   step_s             [seconds of each step], on rank 0; on a GPU from the end of one to the end of the next
///   samples            of the global batch, mean over the steps
///   flops, peak_flops  of a step, and of all ranks' devices in a second; null where they are not known
///   split              what a step takes its time for, on rank 0 (time_split.h)
///   sent_bytes         of a step, by all ranks together (CommStats' wire bytes)
///   memory             bytes of the rank that holds most: {weights, gradients, optimizer, average, gathered,
///                      activations, peak, process}. activations: what remains of the peak of its tensors,
///                      communication buffers included
///   operators, spans   of a profile (operator_profile.h)
///
/// Collective. @throws Error of any kind
nlohmann::json measure_steps(RunSetup setup, comm::World& world, const MeasurementOptions& options);

}  // namespace trireme::train
