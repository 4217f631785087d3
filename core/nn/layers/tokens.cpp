#include "core/nn/layers/tokens.h"

namespace trireme::nn {

at::Tensor HeadTokens::compute(const at::Tensor& x, const Context&) { return only_first_ ? x.narrow(1, 0, 1) : x; }

}  // namespace trireme::nn
