// All layers, for the authors of models.
#pragma once

#include "core/nn/layers/attention.h"
#include "core/nn/layers/batch_norm.h"
#include "core/nn/layers/convolution.h"
#include "core/nn/layers/criterion.h"
#include "core/nn/layers/dropout.h"
#include "core/nn/layers/embedding.h"
#include "core/nn/layers/gated_linear.h"
#include "core/nn/layers/linear.h"
#include "core/nn/layers/lora.h"
#include "core/nn/layers/rms_norm.h"
#include "core/nn/layers/tokens.h"
