// Which ranks read samples for each other, by the options of [data].
#pragma once

#include <memory>

#include "core/comm/mesh.h"
#include "core/data/exchange.h"
#include "core/data/loader_options.h"

namespace trireme {

/// Null when each rank reads the samples that it needs. `reads_inputs`: this rank needs the model's inputs. Collective.
std::shared_ptr<const data::SampleExchange> make_sample_exchange(const data::LoadingOptions& loading, comm::Mesh& mesh,
                                                                 bool reads_inputs);

}  // namespace trireme
