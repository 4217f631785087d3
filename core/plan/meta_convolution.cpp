// Convolution on the meta device: the shapes of the one kernel that LibTorch leaves to each device outside its own, and
// the copies that the CPU's convolutions make. oneDNN's memory comes from LibTorch's allocator of tensors.
#include <ATen/Parallel.h>
#include <ATen/native/ConvUtils.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <array>
#include <optional>
#include <tuple>

#include "core/plan/meta_rules.h"

namespace trireme::plan {
namespace {

using at::Tensor;

/// What the rules need to know of a call.
struct Convolution {
  at::IntArrayRef stride, padding, dilation;
  bool transposed;
  at::IntArrayRef output_padding;
  std::int64_t groups;
};

at::MemoryFormat convolution_format(const Tensor& input, const Tensor& weight) {
  const auto of_input = input.suggest_memory_format();
  return of_input == at::MemoryFormat::Contiguous ? weight.suggest_memory_format() : of_input;
}

/// Of the CPU, without memory: to ask LibTorch for a choice that it makes by shapes.
Tensor shape_on_cpu(const Tensor& x) {
  static char unread;
  return at::from_blob(&unread, x.sizes(), x.strides(), x.options().device(c10::kCPU));
}

/// The copies that the CPU's convolution makes, in bytes. oneDNN's kernels for float take blocks of 16 channels, those
/// for half precision and those of a strided gradient take channels last; a dense result is made from these. LibTorch's
/// own kernels unfold the input.
class Copies {
 public:
  Copies(const Tensor& input, const Tensor& weight, const Tensor& output, const Convolution& c)
      : input_(input), weight_(weight), output_(output) {
    if (stands_for(input) != c10::kCPU) return;
    const auto backend = at::native::select_conv_backend(
        shape_on_cpu(input), shape_on_cpu(weight), std::nullopt, c10::fromIntArrayRefSlow(c.stride),
        c10::fromIntArrayRefSlow(c.padding), c10::fromIntArrayRefSlow(c.dilation), c.transposed,
        c10::fromIntArrayRefSlow(c.output_padding), c.groups, std::nullopt);
    dense_ = convolution_format(input, weight) == at::MemoryFormat::Contiguous;
    by_onednn_ = backend == at::native::ConvBackend::Mkldnn || backend == at::native::ConvBackend::MkldnnTranspose;
    const auto is_one = [](at::IntArrayRef list, std::int64_t value) {
      return std::all_of(list.begin(), list.end(), [&](auto x) { return x == value; });
    };
    strided_ = !is_one(c.stride, 1);
    blocked_ = dense_ && input.scalar_type() == at::kFloat;
    if (!by_onednn_ && (strided_ || !is_one(c.padding, 0) || !is_one(weight.sizes().slice(2), 1)))
      unfolded_ = static_cast<std::int64_t>(input.element_size()) * output.size(0) * weight.numel() / weight.size(0) *
                  c10::multiply_integers(output.sizes().slice(2));
  }

  /// Beside nothing, and then beside the dense output.
  void hold_for_output() const {
    if (by_onednn_ && dense_) hold(laid_out(input_) + of_weight() + laid_out(output_, true));
  }
  void hold_beside_output() const {
    hold(!by_onednn_ ? unfolded_ : !dense_ ? of_weight() : blocked_ ? laid_out(output_, true) : 2 * bytes(output_));
  }
  void hold_for_input_gradient() const {
    if (by_onednn_ && dense_) hold(laid_out(output_) + of_weight() + laid_out(input_, true));
  }
  void hold_beside_input_gradient() const {
    if (by_onednn_) hold(!dense_ ? of_weight() : blocked_ && !strided_ ? laid_out(input_, true) : 2 * bytes(input_));
  }
  void hold_for_weight_gradient() const {
    if (by_onednn_ && dense_) hold(laid_out(input_) + laid_out(output_) + of_weight());
  }
  void hold_beside_weight_gradient() const {
    hold(by_onednn_ ? (dense_ ? 1 : std::max(2, at::get_num_threads())) * bytes(weight_) : unfolded_);
  }

 private:
  static std::int64_t bytes(const Tensor& x) { return static_cast<std::int64_t>(x.nbytes()); }
  /// `made`: a result; an input of an image's three channels is read as it is.
  std::int64_t laid_out(const Tensor& x, bool made = false) const {
    if (!dense_) return 0;
    const auto channels = x.size(1);
    if (!blocked_) return bytes(x);
    return !made && channels <= 3 ? 0 : bytes(x) / channels * ((channels + 15) / 16 * 16);
  }
  std::int64_t of_weight() const { return bytes(weight_); }
  void hold(std::int64_t size) const { work_buffer(input_, {size}, at::kByte); }

  const Tensor &input_, &weight_, &output_;
  bool dense_ = false, by_onednn_ = false, blocked_ = false, strided_ = false;
  std::int64_t unfolded_ = 0;
};

Tensor convolve(const Tensor& input, const Tensor& weight, const std::optional<Tensor>&, at::IntArrayRef stride,
                at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed, at::IntArrayRef output_padding,
                std::int64_t groups) {
  const auto shape = transposed
                         ? at::native::conv_input_size(input.sizes(), weight.sizes(), padding, output_padding, stride,
                                                       dilation, groups)
                         : at::native::conv_output_size(input.sizes(), weight.sizes(), padding, stride, dilation);
  const Tensor like = at::empty({1}, input.options()).expand(shape);  // for its shape alone
  const Copies copies(input, weight, like, {stride, padding, dilation, transposed, output_padding, groups});
  copies.hold_for_output();
  auto output = at::empty(shape, input.options().memory_format(convolution_format(input, weight)));
  copies.hold_beside_output();
  return output;
}

std::tuple<Tensor, Tensor, Tensor> convolve_backward(const Tensor& gradient, const Tensor& input, const Tensor& weight,
                                                     at::IntArrayRef stride, at::IntArrayRef padding,
                                                     at::IntArrayRef dilation, bool transposed,
                                                     at::IntArrayRef output_padding, std::int64_t groups,
                                                     std::array<bool, 3> wanted) {
  const auto format = convolution_format(input, weight);
  const auto of_output = gradient.contiguous(format);
  const Copies copies(input, weight, of_output, {stride, padding, dilation, transposed, output_padding, groups});
  std::tuple<Tensor, Tensor, Tensor> gradients;
  if (wanted[0]) {
    copies.hold_for_input_gradient();
    std::get<0>(gradients) = at::empty_like(input, {}, format);
    copies.hold_beside_input_gradient();
  }
  if (wanted[2]) std::get<2>(gradients) = at::empty({gradient.size(1)}, weight.options());
  if (wanted[1]) {
    copies.hold_for_weight_gradient();
    std::get<1>(gradients) = at::empty_like(weight, {}, format);
    copies.hold_beside_weight_gradient();
  }
  return gradients;
}

}  // namespace

void add_convolution_rules(torch::Library& library) {
  library.impl("convolution_overrideable", convolve);
  library.impl("convolution_backward_overrideable", convolve_backward);
}

}  // namespace trireme::plan
