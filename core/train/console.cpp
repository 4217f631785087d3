#include "core/train/console.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <utility>

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

std::string numbers(const Progress& p, double seconds_a_step) {
  auto text = fmt::format("{}/{}  loss {:.4f}  lr {:.1e}  norm {:.2f}  {:.1f} img/s  data {:.0f} %  {} left", p.step,
                          p.steps, p.loss, p.lr, p.grad_norm, p.samples_per_s, p.data_wait * 100,
                          clock_text(seconds_a_step * static_cast<double>(p.total_left)));
  if (p.skipped > 0) text += fmt::format("  {} skipped", p.skipped);
  return text;
}

}  // namespace

std::string clock_text(double seconds) {
  const auto s = static_cast<std::int64_t>(std::max(0.0, seconds) + 0.5);
  return fmt::format("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60);
}

Console::~Console() { clear_bar(); }

void Console::clear_bar() {
  if (std::exchange(bar_shown_, false)) put("\r\x1b[2K");
}

void Console::header(const std::string& first, const std::vector<std::pair<std::string, std::string>>& rows) {
  if (!active_) return;
  std::string text = first + "\n";
  for (const auto& [label, row] : rows) text += fmt::format("{:<9}{}\n", label, row);
  put(text);
}

void Console::progress(const Progress& p, double seconds_a_step) {
  if (!active_) return;
  const auto now = std::chrono::steady_clock::now();
  const bool terminal = terminal_.columns > 0;
  if (now - last_ < (terminal ? std::chrono::steady_clock::duration(kRedraw) : kPlainLine)) return;
  const bool first = last_ == std::chrono::steady_clock::time_point{};
  last_ = now;
  const auto text = numbers(p, seconds_a_step);
  if (!terminal) {
    if (!first) put(fmt::format("epoch {}/{}  step {}\n", p.epoch, p.epochs, text));
    return;
  }
  const auto lead = fmt::format("epoch {}/{} ", p.epoch, p.epochs);
  // What does not fit in the line would wrap, and a wrapped line cannot be redrawn.
  const int room = terminal_.columns - 1 - static_cast<int>(lead.size()) - static_cast<int>(text.size()) - 1;
  auto shown = lead;
  if (room >= 5)
    shown +=
        bar(static_cast<double>(p.step) / static_cast<double>(std::max<std::int64_t>(1, p.steps)), std::min(room, 30)) +
        " ";
  shown += text.substr(0, static_cast<std::size_t>(std::max(0, terminal_.columns - 1 - static_cast<int>(lead.size()))));
  put("\r\x1b[2K" + shown);
  bar_shown_ = true;
}

void Console::line(const std::string& text) {
  if (!active_) return;
  clear_bar();
  put(text + "\n");
}

}  // namespace trireme::train
