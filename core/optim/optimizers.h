// All optimizers and learning-rate curves, and the base class for one of a program's own.
#pragma once

#include "core/optim/curves.h"
#include "core/optim/fused_adamw.h"
#include "core/optim/hybrid_adam.h"
#include "core/optim/lion.h"
#include "core/optim/sgd.h"
#include "core/optim/slotwise.h"
#include "core/optim/trust_ratio.h"
