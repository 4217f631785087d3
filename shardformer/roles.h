// Trireme's own roles; each is beside its computation.
#pragma once

#include "core/shardformer/role.h"

namespace trireme::shardformer {

void add_attention_role(Roles& roles);    // tensor/attention.cpp
void add_linear_roles(Roles& roles);      // tensor/linear.cpp
void add_dropout_role(Roles& roles);      // tensor/features.cpp
void add_vocabulary_roles(Roles& roles);  // tensor/vocabulary.cpp
void add_sequence_roles(Roles& roles);    // sequence/sequence.cpp

}  // namespace trireme::shardformer
