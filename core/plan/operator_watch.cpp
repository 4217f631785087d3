#include "core/plan/operator_watch.h"

#include <ATen/Context.h>
#include <ATen/SequenceNumber.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/nn/autograd/flops.h"

namespace trireme::plan {
namespace {

/// What the watch of this thread knows. LibTorch's callbacks are plain functions, which have no other way to it.
struct Running {
  c10::DeviceType on;
  OperatorWatch::Use use;
  std::int64_t used = 0;  ///< operators that have done work
  bool in_node = false;   ///< in the backward pass of one; those inside it are of a recomputation
  std::int64_t node = -1;
  bool inside = false;  ///< one that is counted as a whole
};
thread_local Running* running = nullptr;

/// The kind of an operator by a part of its name; the first that fits counts.
constexpr std::array<std::pair<std::string_view, Kind>, 25> kKindsByName{{{"_scaled_dot_product", Kind::attention},
                                                                          {"layer_norm", Kind::norm},
                                                                          {"batch_norm", Kind::norm},
                                                                          {"group_norm", Kind::norm},
                                                                          {"rms_norm", Kind::norm},
                                                                          {"softmax", Kind::softmax},
                                                                          {"dropout_mask", Kind::random},
                                                                          {"bernoulli", Kind::random},
                                                                          {"dropout_backward", Kind::dropout},
                                                                          {"_fused_", Kind::optimizer},
                                                                          {"convolution", Kind::convolution},
                                                                          {"addmm", Kind::product},
                                                                          {"bmm", Kind::product},
                                                                          {"::mm", Kind::product},
                                                                          {"gelu", Kind::activation},
                                                                          {"silu", Kind::activation},
                                                                          {"sigmoid", Kind::activation},
                                                                          {"tanh", Kind::tanh},
                                                                          {"::exp", Kind::activation},
                                                                          {"::log", Kind::activation},
                                                                          {"copy", Kind::copy},
                                                                          {"::fill", Kind::fill},
                                                                          {"zero", Kind::fill},
                                                                          {"::cat", Kind::copy},
                                                                          {"index", Kind::copy}}};

Kind kind_of(std::string_view name) {
  const auto found = std::find_if(kKindsByName.begin(), kKindsByName.end(),
                                  [&](const auto& row) { return name.find(row.first) != std::string_view::npos; });
  const auto kind = found == kKindsByName.end() ? Kind::pointwise : found->second;
  if (name.find("_backward") == std::string_view::npos) return kind;
  return kind == Kind::attention     ? Kind::attention_backward
         : kind == Kind::convolution ? Kind::convolution_backward
                                     : kind;
}

c10::ArrayRef<const c10::IValue> all_of(const std::vector<c10::IValue>& values) {
  return c10::ArrayRef<const c10::IValue>(values.data(), values.size());
}

/// Calls use(tensor) for each tensor of the values.
template <class Use>
void for_tensors(c10::ArrayRef<const c10::IValue> values, const Use& use) {
  for (const auto& value : values) {
    if (value.isTensor() && value.toTensor().defined()) use(value.toTensor());
    if (value.isTensorList())
      for (const at::Tensor& tensor : value.toTensorList()) use(tensor);
  }
}

/// Whether it computes by itself on the CPU, whatever it calls for details. Others are made of operators that do.
bool has_kernel(const at::RecordFunction& function) {
  static thread_local std::unordered_map<const char*, bool> known;  // by the names in the operators' schemas
  const auto [at, is_new] = known.try_emplace(function.name(), false);
  if (is_new) {
    const auto name = function.operator_name();
    const auto op = name ? c10::Dispatcher::singleton().findOp(*name) : std::nullopt;
    at->second = std::string_view(function.name()).starts_with("trireme::") ||
                 (op && op->hasKernelForDispatchKey(c10::DispatchKey::CPU));
  }
  return at->second;
}

/// Whether it writes into an argument that is its result.
bool writes_to_out(const at::RecordFunction& function) {
  const auto name = function.operator_name();
  return name && name->overload_name.ends_with("out");
}

/// An operator that has begun.
struct Begun final : at::ObserverContext {
  double flops = 0, bytes = 0;
  at::ScalarType dtype = at::kFloat;
  bool is_node = false;
  bool counts = false;
  bool by_tanh = false;   ///< a GELU that is approximated
  bool is_whole = false;  ///< with the operators that it calls: addmm copies the bias, and multiplies by itself
  std::int64_t used_before = 0;
  std::optional<std::int64_t> sequence{};
  std::vector<const void*> inputs{};
  std::chrono::steady_clock::time_point at{};
};

/// FLOPs of forward and backward operators. The backward pass of a convolution makes two products, that of a fused
/// attention five where the forward pass makes two.
double work_of(std::string_view name, c10::ArrayRef<const c10::IValue> in) {
  if (name == "aten::convolution_overrideable") return nn::flops_of("aten::convolution", in);
  if (name == "aten::mkldnn_convolution") {  // padding before stride
    const std::vector<c10::IValue> plain{in[0], in[1], in[2], in[4], in[3], in[5]};
    return nn::flops_of("aten::convolution", all_of(plain));
  }
  if (name.starts_with("aten::convolution_backward")) {
    const std::size_t bias = name.ends_with("overrideable") ? 0 : 1;  // its sizes come before stride and the others
    const std::vector<c10::IValue> forward{in[1], in[2], c10::IValue(), in[3 + bias], in[4 + bias], in[5 + bias]};
    const auto wanted = in[9 + bias].toBoolList();  // of input, weight and bias
    return (wanted[0] + wanted[1]) * nn::flops_of("aten::convolution", all_of(forward));
  }
  const bool attention = name.find("_scaled_dot_product") != std::string_view::npos;
  if (attention && name.ends_with("_backward")) return 2.5 * nn::flops_of(name.substr(0, name.size() - 9), in.slice(1));
  return nn::flops_of(name, in);
}

std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& function) {
  auto begun = std::make_unique<Begun>();
  if (running == nullptr || running->inside) return begun;
  if (function.scope() == at::RecordScope::BACKWARD_FUNCTION) {
    begun->is_node = !std::exchange(running->in_node, true);
    if (begun->is_node) running->node = function.seqNr();
    return begun;
  }
  begun->used_before = running->used;
  for_tensors(function.inputs(), [&](const at::Tensor& tensor) {
    if (tensor.device().type() != running->on) return;
    if (!begun->counts) begun->dtype = tensor.scalar_type();
    begun->counts = true;
    begun->bytes += static_cast<double>(tensor.nbytes());
    begun->inputs.push_back(tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl());
  });
  if (begun->counts) begun->flops = work_of(function.name(), function.inputs());
  for (const auto& value : function.inputs()) begun->by_tanh |= value.isString() && value.toStringRef() == "tanh";
  begun->is_whole = running->inside = begun->counts && (begun->flops > 0 || has_kernel(function));
  const auto sequence = running->in_node ? running->node : static_cast<std::int64_t>(at::sequence_number::peek());
  if (sequence >= 0) begun->sequence = sequence;
  begun->at = std::chrono::steady_clock::now();
  return begun;
}

void end(const at::RecordFunction& function, at::ObserverContext* context) {
  const auto now = std::chrono::steady_clock::now();
  const auto& begun = *static_cast<Begun*>(context);
  const std::string_view name = function.name();
  if (running != nullptr && begun.is_node) running->in_node = false;
  if (running == nullptr || !begun.counts) return;
  if (begun.is_whole) running->inside = false;
  if (!begun.is_whole && running->used != begun.used_before) return;
  double bytes = begun.bytes;
  bool computes = begun.flops > 0;
  const auto& outputs = function.outputs();
  for_tensors(all_of(outputs), [&](const at::Tensor& tensor) {
    bytes += static_cast<double>(tensor.nbytes());
    const void* storage = tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
    // A view computes nothing. An operator in place writes its argument, and its name ends so.
    if (std::find(begun.inputs.begin(), begun.inputs.end(), storage) == begun.inputs.end()) computes = true;
  });
  const bool writes = computes || name.ends_with('_') || writes_to_out(function) || outputs.empty();
  const bool is_new_memory = name.find("empty") != std::string_view::npos;
  // These are seen without their outputs; what `to` copies is seen by itself.
  const bool works = writes && !is_new_memory && !name.ends_with("detach") && !name.ends_with("::to");
  if (works) ++running->used;
  running->use({.name = name,
                .work = works ? Work{.kind = begun.by_tanh ? Kind::tanh : kind_of(name),
                                     .flops = begun.flops,
                                     .bytes = bytes,
                                     .dtype = begun.dtype,
                                     .tf32 = at::globalContext().allowTF32CuBLAS()}
                              : Work{.kind = Kind::view},
                .begin = begun.at,
                .end = now,
                .sequence = begun.sequence,
                .is_backward = running->in_node});
}

}  // namespace

OperatorWatch::OperatorWatch(c10::DeviceType on, Use use) {
  TRIREME_CHECK(running == nullptr, "a thread has one watch at a time");
  running = new Running{on, std::move(use)};
  handle_ = at::addThreadLocalCallback(at::RecordFunctionCallback(begin, end)
                                           .needsInputs(true)
                                           .needsOutputs(true)
                                           .scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION}));
}

OperatorWatch::~OperatorWatch() {
  at::removeCallback(handle_);
  delete std::exchange(running, nullptr);
}

}  // namespace trireme::plan
