#include "core/train/report/console.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <numeric>

#include "core/base/text.h"
#include "core/train/report/flop_rate.h"

namespace trireme::train {
namespace {

constexpr auto kRedraw = std::chrono::milliseconds(100);
constexpr auto kPlainLine = std::chrono::seconds(10);

void put(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

std::string bar(double share, int width) {
  const int full = static_cast<int>(share * width + 0.5);
  std::string out;
  for (int i = 0; i < width; ++i) out += i < full ? "━" : (i == full ? "╸" : "─");
  return out;
}

/// A part of a progress line, in display order. On a narrow terminal the parts with the highest rank are dropped first.
struct Part {
  int rank;
  std::string text;
};

/// " (2 workers x 410/s)": the workers and their mean rate.
std::string workers_text(const std::vector<double>& rates) {
  if (rates.empty()) return "";
  const auto mean = std::accumulate(rates.begin(), rates.end(), 0.0) / static_cast<double>(rates.size());
  return fmt::format(" ({} x {:.0f}/s)", text::quantity(static_cast<std::int64_t>(rates.size()), "worker"), mean);
}

std::vector<Part> parts_of(const Progress& p, double seconds_a_step) {
  std::vector<Part> parts{{0, fmt::format("epoch {}/{}", p.epoch, p.epochs)},
                          {0, fmt::format("{}/{}", p.step, p.steps)},
                          {1, fmt::format("loss {:.4f}", p.loss)},
                          {4, fmt::format("lr {:.1e}", p.lr)},
                          {5, fmt::format("norm {:.2f}", p.grad_norm)},
                          {2, fmt::format("{:.1f} samples/s", p.samples_per_s)},
                          {6, fmt::format("data {:.0f} %{}", p.data_wait * 100, workers_text(p.worker_rates))},
                          {0, text::clock(seconds_a_step * static_cast<double>(p.total_left)) + " left"}};
  if (p.flops_per_s) parts.insert(parts.end() - 2, {7, rate_text(*p.flops_per_s, p.mfu)});
  if (p.skipped > 0) parts.insert(parts.end() - 1, {3, fmt::format("{} skipped", p.skipped)});
  return parts;
}

std::string joined(const std::vector<Part>& parts, std::size_t begin) {
  std::string out;
  for (std::size_t i = begin; i < parts.size(); ++i) out += (out.empty() ? "" : "  ") + parts[i].text;
  return out;
}

/// One line of at most `columns`, with a bar if there is room. A longer line would wrap, and a wrapped line cannot be
/// redrawn. The remaining time is dropped last.
std::string progress_line(std::vector<Part> parts, double share, int columns) {
  const auto room = static_cast<std::size_t>(std::max(1, columns));
  while (text::width(joined(parts, 0)) > room) {
    const auto least =
        std::max_element(parts.begin(), parts.end(), [](const Part& a, const Part& b) { return a.rank < b.rank; });
    if (least->rank == 0) return joined({parts.back()}, 0).substr(0, room);
    parts.erase(least);
  }
  const auto rest = joined(parts, 1);
  const auto left = static_cast<int>(room) - static_cast<int>(parts.front().text.size() + rest.size()) - 2;
  const auto between = left >= 6 ? " " + bar(share, std::min(left - 1, 30)) + " " : std::string("  ");
  return parts.front().text + between + rest;
}

}  // namespace

Console::~Console() { clear_bar(); }

void Console::clear_bar() {
  if (std::exchange(bar_shown_, false)) put("\r\x1b[2K");
}

void Console::header(const std::string& first, const std::vector<std::pair<std::string, std::string>>& rows) {
  if (!active_) return;
  constexpr std::size_t kLabel = 9;
  const auto columns = static_cast<std::size_t>(terminal_.columns);
  auto text = text::wrap(first, columns, kLabel) + "\n";
  for (const auto& [label, row] : rows)
    text += text::wrap(fmt::format("{:<{}}{}\n", label, kLabel, row), columns, kLabel);
  put(text);
}

void Console::progress(const Progress& p, double seconds_a_step) {
  if (!active_) return;
  const auto now = std::chrono::steady_clock::now();
  const bool terminal = terminal_.columns > 0;
  if (now - last_ < (terminal ? std::chrono::steady_clock::duration(kRedraw) : kPlainLine)) return;
  const bool first = last_ == std::chrono::steady_clock::time_point{};
  last_ = now;
  auto parts = parts_of(p, seconds_a_step);
  if (!terminal) {
    parts[1].text = "step " + parts[1].text;
    if (!first) put(joined(parts, 0) + "\n");
    return;
  }
  const double share = static_cast<double>(p.step) / static_cast<double>(std::max<std::int64_t>(1, p.steps));
  put("\r\x1b[2K" + progress_line(std::move(parts), share, terminal_.columns - 1));
  bar_shown_ = true;
}

void Console::line(const std::string& text) {
  if (!active_) return;
  clear_bar();
  put(text::wrap(text, static_cast<std::size_t>(terminal_.columns)) + "\n");
}

}  // namespace trireme::train
