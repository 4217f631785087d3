// Checks a policy against a model, before any rank communicates.
#pragma once

#include <string>

#include "core/nn/policy.h"
#include "shardformer/groups.h"

namespace trireme::nn {
class Model;
}

namespace trireme::shardformer {

/// @returns the problem of the policy with this model and these sizes, and its remedy, or "" when there is none
std::string validate(nn::Model& model, const nn::Policy& policy, const ParallelSizes& sizes);

}  // namespace trireme::shardformer
