#include "core/pipeline/picture.h"

#include <algorithm>
#include <cmath>

#include "core/base/error.h"

namespace trireme::pipeline {
namespace {

char letter(Op op) { return op == Op::forward ? 'F' : makes_input_gradient(op) ? 'B' : 'W'; }

class Drawing {
 public:
  Drawing(const Schedule& schedule, const Timeline& timeline, const PictureOptions& options)
      : schedule_(schedule), timeline_(timeline), utf8_(options.utf8) {
    for (int rank = 0; rank < schedule.ranks; ++rank) {
      const auto number = options.ranks.empty() ? rank : options.ranks.at(static_cast<std::size_t>(rank));
      names_.push_back(fmt::format("rank {}", number));
      margin_ = std::max(margin_, names_.back().size() + 2);
    }
    // Wide enough for every label, unless that exceeds the maximum width.
    double shortest = timeline.step;
    std::size_t widest = 0;
    for (std::size_t rank = 0; rank < timeline.spans.size(); ++rank)
      for (std::size_t i = 0; i < timeline.spans[rank].size(); ++i) {
        const auto [start, end] = timeline.spans[rank][i];
        if (end > start) shortest = std::min(shortest, end - start);
        widest = std::max(widest, label(schedule.actions[rank][i]).size());
      }
    const double room = std::max(1.0, static_cast<double>(options.columns) - static_cast<double>(margin_));
    scale_ = std::min(static_cast<double>(widest + 1) / shortest, room / timeline.step);
    if (scale_ * shortest >= 1)
      scale_ = std::floor(scale_ * shortest) / shortest;  // actions of equal length get equal
                                                          // widths
  }

  [[nodiscard]] std::string row(std::size_t rank) const {
    std::vector<std::string> cells(column(timeline_.step), utf8_ ? "·" : ".");
    for (std::size_t i = 0; i < timeline_.spans[rank].size(); ++i) {
      const auto first = column(timeline_.spans[rank][i].start), end = column(timeline_.spans[rank][i].end);
      auto text = label(schedule_.actions[rank][i]);
      if (text.size() > end - first)
        text.resize(std::min<std::size_t>(1, end - first));  // a truncated number would be
                                                             // misleading
      for (auto at = first; at < end; ++at) cells[at] = at - first < text.size() ? text[at - first] : utf8_ ? "─" : "-";
    }
    std::string out = fmt::format("{:{}}", names_[rank], margin_);
    for (const auto& cell : cells) out += cell;
    return out + "\n";
  }

 private:
  [[nodiscard]] std::size_t column(double time) const { return static_cast<std::size_t>(std::lround(time * scale_)); }

  /// The label, one string per column: "F", "1", "2", "₁" for the forward of microbatch 12 in chunk 1.
  [[nodiscard]] std::vector<std::string> label(const Action& action) const {
    std::vector<std::string> out{std::string(1, letter(action.op))};
    for (const char digit : fmt::format("{}", action.microbatch)) out.emplace_back(1, digit);
    if (schedule_.chunks == 1) return out;
    if (!utf8_) out.emplace_back(".");
    for (const char digit : fmt::format("{}", action.chunk))
      out.push_back(utf8_ ? std::string("\xE2\x82") + static_cast<char>('\x80' + (digit - '0'))
                          : std::string(1, digit));
    return out;
  }

  const Schedule& schedule_;
  const Timeline& timeline_;
  const bool utf8_;
  std::vector<std::string> names_;
  std::size_t margin_ = 0;
  double scale_;  ///< columns per second
};

}  // namespace

std::string draw(const Schedule& schedule, const Timeline& timeline, const PictureOptions& options) {
  TRIREME_CHECK(timeline.spans.size() == schedule.actions.size(), "the timeline belongs to another schedule");
  const Drawing drawing(schedule, timeline, options);
  std::string out = fmt::format("{}: {} ranks{}, {} microbatches; step {:.4g} s, idle {:.1f} %\n", schedule.name,
                                schedule.ranks, schedule.chunks > 1 ? fmt::format(" x {} chunks", schedule.chunks) : "",
                                schedule.microbatches, timeline.step, 100 * timeline.idle_of_step());
  for (std::size_t rank = 0; rank < timeline.spans.size(); ++rank) out += drawing.row(rank);
  return out;
}

}  // namespace trireme::pipeline
