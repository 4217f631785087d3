// Mixture: a training set whose epochs are drawn from groups of samples (whole data sets, or the classes of one) in
// given proportions, without replacement.
//
// An epoch has as many samples as all groups together. Each group gives the same whole number of them in every epoch,
// its weight's part of the epoch (largest remainders), and goes on where the epoch before has ended: all its samples
// have their turn before one of them has its next. In its n-th turn a sample is augmented as in epoch n of its own data
// set. The draws of a group are spread over the epoch, each at a random place of its own part of it, so that every
// stretch of an epoch has the groups' proportions, to within one sample of each group at either end.
// All of this depends only on the seed, the epoch and the sizes, and is the same in every layout.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/data/dataset.h"
#include "core/data/datasets.h"

namespace trireme::data {

/// Several sources as one: its training split is a mixture of theirs by `weights`, each of them in its own order
/// (Dataset::order()); validation and test are all samples of theirs. The classes are those of the first source, among
/// which the others' are found by name. `shuffle`: of the training's loader, at epoch 0.
/// @throws ConfigError for sources that do not fit together, or a weight that gives no sample in an epoch
Datasets mixed(std::vector<Datasets> sources, const std::vector<double>& weights, const Shuffle& shuffle);

/// The class of each sample of epoch 0, or -100; inputs are not read. Empty unless samples have one class each, and one
/// has it.
std::vector<std::int64_t> classes_of_samples(Dataset& data);

/// A mixture of the classes of a data set: the part of one with n samples is in proportion to n^(1 - balance), so that
/// 1 makes all alike. `classes`: of each sample; those of -100 are never drawn.
std::shared_ptr<Dataset> balanced(std::shared_ptr<Dataset> data, const std::vector<std::int64_t>& classes,
                                  double balance, std::uint64_t seed);

}  // namespace trireme::data
