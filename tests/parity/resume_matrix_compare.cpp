#include <ATen/TensorOperators.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>

#include "core/base/error.h"
#include "tests/parity/resume_matrix.h"

namespace trireme::tests::resume_matrix {
namespace {

/// The worst of many differences.
class Worst {
 public:
  /// `off`: how far it is off, by any measure.
  void add(bool differs, double off, const std::function<std::string()>& text) {
    ++all_;
    if (!differs) return;
    ++differing_;
    if (differing_ > 1 && off <= most_) return;
    most_ = off;
    text_ = text();
  }
  [[nodiscard]] std::string text(const char* what) const {
    if (differing_ == 0) return "";
    return fmt::format("{} of {} {} differ, most of all {}", differing_, all_, what, text_);
  }

 private:
  int all_ = 0, differing_ = 0;
  double most_ = 0;
  std::string text_;
};

double norm_of(const at::Tensor& tensor) { return at::linalg_vector_norm(tensor.to(at::kDouble)).item<double>(); }

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  if (a.sizes() != b.sizes() || a.scalar_type() != b.scalar_type()) return false;
  return a.numel() == 0 || std::memcmp(a.contiguous().data_ptr(), b.contiguous().data_ptr(), a.nbytes()) == 0;
}

std::string off_by(const shard::Slice& got, double off) {
  return fmt::format("\"{}\" by {:.3g} in 2-norm", got.placement.name, off);
}

void add_bits(Worst& worst, const shard::Slice& got, const at::Tensor& want) {
  if (same_bits(got.value, want)) return worst.add(false, 0, {});
  if (got.value.sizes() != want.sizes() || got.value.scalar_type() != want.scalar_type())
    return worst.add(true, INFINITY, [&] { return fmt::format("\"{}\" in shape or type", got.placement.name); });
  const double off = norm_of(got.value.to(at::kDouble) - want.to(at::kDouble));
  worst.add(true, off, [&] { return off_by(got, off); });
}

/// What all tensors of a kind have in common: "weight", "average", or "state" with the moment's name.
std::string kind_of(const std::string& name) {
  const auto what = name.substr(0, name.find(' '));
  return what == "state" ? what + name.substr(name.rfind('.')) : what;
}

const at::Tensor& full_of(const shard::Slice& slice, const Named& all) {
  const auto found = all.find(slice.placement.name);
  if (found == all.end()) throw LogicError("the run compared with has no tensor " + slice.placement.name);
  return found->second;
}

}  // namespace

std::string differing_bits(const State& got, const State& want) {
  if (got.tensors.size() != want.tensors.size()) return "another number of tensors";
  Worst worst;
  for (std::size_t i = 0; i < got.tensors.size(); ++i) {
    if (got.tensors[i].placement.name != want.tensors[i].placement.name) return "other names of tensors";
    add_bits(worst, got.tensors[i], want.tensors[i].value);
  }
  auto numbers = differing_bits(got.numbers, want.numbers);
  auto tensors = worst.text("tensors");
  return tensors.empty() || numbers.empty() ? tensors + numbers : tensors + "; " + numbers;
}

std::string differing_bits(const State& got, const Named& want) {
  Worst worst;
  for (const auto& slice : got.tensors) add_bits(worst, slice, slice.placement.slice(full_of(slice, want)));
  return worst.text("tensors");
}

std::string differing_bits(const Numbers& got, const Numbers& want) {
  if (got.size() != want.size()) return fmt::format("{} numbers instead of {}", got.size(), want.size());
  Worst worst;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const auto& [name, value] = got[i];
    if (name != want[i].first) return fmt::format("\"{}\" was reported in place of \"{}\"", name, want[i].first);
    worst.add(std::bit_cast<std::uint64_t>(value) != std::bit_cast<std::uint64_t>(want[i].second),
              std::abs(value - want[i].second),
              [&] { return fmt::format("{}: {:.17g} instead of {:.17g}", name, value, want[i].second); });
  }
  return worst.text("numbers");
}

std::string beyond(double bound, const State& got, const Named& want) {
  std::map<std::string, double> norms, squares;
  for (const auto& [name, tensor] : want) {
    norms[name] = norm_of(tensor);
    squares[kind_of(name)] += norms[name] * norms[name];
  }
  Worst worst;
  for (const auto& slice : got.tensors) {
    const auto& name = slice.placement.name;
    const auto expected = slice.placement.slice(full_of(slice, want));
    const double least = (name.starts_with("state") ? 1e-6 : 1e-3) * std::sqrt(squares[kind_of(name)]);
    const double off = norm_of(slice.value.to(at::kDouble) - expected.to(at::kDouble));
    const double relative = off == 0 ? 0 : off / std::max(norms[name], least);
    worst.add(!(relative <= bound), relative,
              [&] { return fmt::format("{}, {:.3g} relative to it", off_by(slice, off), relative); });
  }
  return worst.text("tensors");
}

std::string beyond(double bound, const Numbers& got, const Numbers& want) {
  if (got.size() != want.size()) return fmt::format("{} numbers instead of {}", got.size(), want.size());
  Worst worst;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const auto& [name, value] = got[i];
    if (name != want[i].first) return fmt::format("\"{}\" was reported in place of \"{}\"", name, want[i].first);
    const double off = std::abs(value - want[i].second);
    worst.add(!(off <= bound * std::max(std::abs(want[i].second), 1e-3)), off,
              [&] { return fmt::format("{}: {:.17g} instead of {:.17g}", name, value, want[i].second); });
  }
  return worst.text("numbers");
}

}  // namespace trireme::tests::resume_matrix
