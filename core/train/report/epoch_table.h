// EpochTable: what a program's Trainer shows: the size of the training, then a table with a row for each evaluation, or
// for each epoch without one.
//
//    epoch   step   training loss   validation loss   accuracy
//        1    938          0.2261            0.0512     98.5 %
#pragma once

#include "core/train/callback.h"

namespace trireme::train {

/// `logging_steps`: optimizer steps between lines with the loss; 0: none.
std::shared_ptr<RunCallback> epoch_table(std::int64_t logging_steps);

}  // namespace trireme::train
