#include "core/comm/engine/combine.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "core/base/error.h"

namespace trireme::comm::engine {
namespace {

using Op = c10d::ReduceOp::RedOpType;
constexpr std::size_t kBlock = 1024;  // elements of the accumulator, which stays in the L1 cache

/// The type in which reductions are computed. Integers wrap as unsigned, since signed overflow is undefined. Those
/// narrower than int are computed in 32 bits, which wrap to the same result; their average needs the sign.
template <class T>
using Wide = std::conditional_t<
    std::is_same_v<T, c10::Half> || std::is_same_v<T, c10::BFloat16>, float,
    std::conditional_t<std::is_integral_v<T>, std::conditional_t<sizeof(T) < 4, std::int32_t, T>, T>>;

template <Op kOp, class A>
inline A join(A a, A b) {
  if constexpr (std::is_integral_v<A> && (kOp == Op::SUM || kOp == Op::AVG || kOp == Op::PRODUCT)) {
    using U = std::make_unsigned_t<A>;
    if constexpr (kOp == Op::PRODUCT)
      return static_cast<A>(static_cast<U>(a) * static_cast<U>(b));
    else
      return static_cast<A>(static_cast<U>(a) + static_cast<U>(b));
  } else if constexpr (kOp == Op::SUM || kOp == Op::AVG) {
    return a + b;
  } else if constexpr (kOp == Op::PRODUCT) {
    return a * b;
  } else if constexpr (kOp == Op::MIN) {
    return (a < b || a != a) ? a : b;
  } else {
    return (a > b || a != a) ? a : b;
  }
}

template <Op kOp, class A>
inline A finished(A sum, [[maybe_unused]] A ranks) {
  if constexpr (kOp == Op::AVG)
    return sum / ranks;
  else
    return sum;
}

template <class T, Op kOp>
void run(T* output, std::span<const void* const> sources, std::size_t count) {
  using A = Wide<T>;
  const auto ranks = static_cast<A>(sources.size());
  const auto* first = static_cast<const T*>(sources[0]);
  if (sources.size() == 2) {
    const auto* second = static_cast<const T*>(sources[1]);
    // The output is usually one of the inputs, at the same index, so there is no dependence between elements.
#pragma GCC ivdep
    for (std::size_t i = 0; i < count; ++i)
      output[i] = static_cast<T>(finished<kOp>(join<kOp>(static_cast<A>(first[i]), static_cast<A>(second[i])), ranks));
    return;
  }
  A sum[kBlock];
  for (std::size_t at = 0; at < count; at += kBlock) {
    const auto n = std::min(kBlock, count - at);
    for (std::size_t i = 0; i < n; ++i) sum[i] = static_cast<A>(first[at + i]);
    for (const auto* source : sources.subspan(1)) {
      const auto* next = static_cast<const T*>(source) + at;
      for (std::size_t i = 0; i < n; ++i) sum[i] = join<kOp>(sum[i], static_cast<A>(next[i]));
    }
    for (std::size_t i = 0; i < n; ++i) output[at + i] = static_cast<T>(finished<kOp>(sum[i], ranks));
  }
}

template <class T>
void choose(Op op, void* output, std::span<const void* const> sources, std::size_t count) {
  auto* to = static_cast<T*>(output);
  switch (op) {
    case Op::SUM:
      return run<T, Op::SUM>(to, sources, count);
    case Op::AVG:
      return run<T, Op::AVG>(to, sources, count);
    case Op::PRODUCT:
      return run<T, Op::PRODUCT>(to, sources, count);
    case Op::MIN:
      return run<T, Op::MIN>(to, sources, count);
    default:
      return run<T, Op::MAX>(to, sources, count);
  }
}

}  // namespace

void check_combine(c10::ScalarType type, Op op) {
  using c10::ScalarType;
  const bool known_op = op == Op::SUM || op == Op::AVG || op == Op::PRODUCT || op == Op::MIN || op == Op::MAX;
  if (!known_op) throw CommError("CPU tensors have only the reductions sum, avg, product, min and max");
  switch (type) {
    case ScalarType::Bool:
      if (op == Op::AVG) throw CommError("bool cannot be averaged; convert to a numeric dtype first");
      return;
    case ScalarType::Double:
    case ScalarType::Float:
    case ScalarType::Half:
    case ScalarType::BFloat16:
    case ScalarType::Long:
    case ScalarType::Int:
    case ScalarType::Short:
    case ScalarType::Char:
    case ScalarType::Byte:
      return;
    default:
      throw CommError(fmt::format("CPU tensors of {} cannot be reduced", c10::getDtypeNames(type).first));
  }
}

void combine(c10::ScalarType type, Op op, void* output, std::span<const void* const> sources, std::size_t count) {
  using c10::ScalarType;
  check_combine(type, op);
  switch (type) {
    case ScalarType::Double:
      return choose<double>(op, output, sources, count);
    case ScalarType::Float:
      return choose<float>(op, output, sources, count);
    case ScalarType::Half:
      return choose<c10::Half>(op, output, sources, count);
    case ScalarType::BFloat16:
      return choose<c10::BFloat16>(op, output, sources, count);
    case ScalarType::Long:
      return choose<std::int64_t>(op, output, sources, count);
    case ScalarType::Int:
      return choose<std::int32_t>(op, output, sources, count);
    case ScalarType::Short:
      return choose<std::int16_t>(op, output, sources, count);
    case ScalarType::Char:
      return choose<std::int8_t>(op, output, sources, count);
    case ScalarType::Byte:
      return choose<std::uint8_t>(op, output, sources, count);
    default:  // bool, stored as 0 or 1
      return choose<std::uint8_t>(op == Op::SUM ? Op::MAX : op == Op::PRODUCT ? Op::MIN : op, output, sources, count);
  }
}

}  // namespace trireme::comm::engine
