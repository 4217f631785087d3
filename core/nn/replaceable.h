// Replaceable: a computation of a layer that is called like a function, and that parallelism can replace or wrap.
// Layers have theirs as public members: `linear.forward`, `dropout.mask_slice`, `attention.attend`, `embedding.scores`.
#pragma once

#include <functional>
#include <type_traits>
#include <utility>

namespace trireme::nn {

template <class Signature>
class Replaceable;

template <class R, class... Args>
class Replaceable<R(Args...)> {
 public:
  using Function = std::function<R(Args...)>;
  explicit Replaceable(Function own) : function_(std::move(own)) {}
  // The layer's own computation holds the layer's address.
  Replaceable(const Replaceable&) = delete;
  Replaceable& operator=(const Replaceable&) = delete;

  R operator()(Args... args) const {
    if (!runner_) return compute(std::forward<Args>(args)...);
    return runner_([this](Args... again) { return compute(std::forward<Args>(again)...); },
                   std::forward<Args>(args)...);
  }

  void replace(Function by) {
    function_ = std::move(by);
    replaced_ = true;
  }
  [[nodiscard]] bool replaced() const { return replaced_; }
  /// What is called now, for a replacement that adds to it.
  [[nodiscard]] const Function& function() const { return function_; }

  /// `wrapper` is called with the computation and must call it exactly once; it may replace parameters meanwhile.
  using Wrapper = std::function<void(const std::function<void()>& compute)>;
  void wrap(Wrapper wrapper) { wrapper_ = std::move(wrapper); }
  /// Runs another computation of the same layer inside the wrapper.
  void run_wrapped(const std::function<void()>& compute) const { wrapper_ ? wrapper_(compute) : compute(); }

  /// `runner` gets every call and the computation, wrapper included, which it may run again later, as recomputation
  /// does. Null: calls compute at once.
  using Runner = std::function<R(const Function& compute, Args... args)>;
  void run_through(Runner runner) { runner_ = std::move(runner); }

 private:
  R compute(Args... args) const {
    if (!wrapper_) return function_(std::forward<Args>(args)...);
    if constexpr (std::is_void_v<R>) {
      wrapper_([&] { function_(std::forward<Args>(args)...); });
    } else {
      R result;
      wrapper_([&] { result = function_(std::forward<Args>(args)...); });
      return result;
    }
  }

  Function function_;
  Wrapper wrapper_;
  Runner runner_;
  bool replaced_ = false;
};

}  // namespace trireme::nn
