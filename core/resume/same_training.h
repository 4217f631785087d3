// Whether a checkpoint is of the same training as this run, so that steps counted before and after it are comparable
// (contract C8): the order of the samples and the meaning of a step may not change. Ranks, layout, microbatch, threads
// and paths may change freely; the rest (length, learning rate, precision, ...) may change and is reported. What the
// configuration does not have, such as the number of samples, is compared too.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "core/checkpoint/train_state.h"
#include "core/setup/run_setup.h"

namespace trireme::train {

/// Facts about the data that are not in the configuration, for a checkpoint's record ("data").
nlohmann::json data_facts(const RunSetup& setup);

/// Compares the run with the one that wrote the checkpoint. `config_toml`: the run's resolved configuration. Returns
/// the changes that a user should see: "train.epochs = 4 (it was 3)". @throws CheckpointError for changes of the sample
/// order, of the meaning of a step or of the precision of the weights; it names the keys, both values and the remedy
std::vector<std::string> check_same_training(const RunSetup& setup, const std::string& config_toml,
                                             const checkpoint::Checkpoint& stored);

}  // namespace trireme::train
