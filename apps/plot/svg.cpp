#include "apps/plot/svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

#include "core/base/text.h"

namespace trireme::apps {
namespace {

constexpr double kWidth = 840, kHeight = 420, kLeft = 84, kRight = 24, kTop = 44, kBottom = 56;
constexpr double kLegendRow = 22, kLetter = 7.2;
constexpr std::size_t kMostDots = 40;     ///< a series with more points has none
constexpr std::size_t kMostLetters = 60;  ///< of a name in the legend

/// Okabe and Ito's colours without yellow, which is faint on white: they differ for colour-blind readers, too. page.js
/// has the same.
constexpr std::array<const char*, 7> kColours{"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                              "#e69f00", "#56b4e9", "#767676"};
constexpr std::array<const char*, 3> kDashes{"", "7 3", "2 3"};  ///< from the eighth line on

std::string xml_escaped(std::string_view text) {
  std::string out;
  for (const char c : text::printable(text)) {
    switch (c) {
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '&':
        out += "&amp;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += static_cast<unsigned char>(c) < 0x20 ? "\xEF\xBF\xBD" : std::string(1, c);
    }
  }
  for (const char* not_xml : {"\xEF\xBF\xBE", "\xEF\xBF\xBF"})
    for (auto at = out.find(not_xml); at != out.npos; at = out.find(not_xml)) out.replace(at, 3, "\xEF\xBF\xBD");
  return out;
}

std::string tick_text(double value, double step) {
  if (std::abs(value) < step / 2) return "0";
  const bool is_long = std::abs(value) >= 10'000 && std::abs(value) < 1e15 && value == std::round(value);
  return is_long ? text::thousands(std::llround(value)) : fmt::format("{:.6g}", value);
}

std::string legend_text(const std::string& name) {
  if (name.size() <= kMostLetters) return name;
  const auto part = std::string_view(name).substr(0, kMostLetters);
  return std::string(part.substr(0, text::utf8_prefix(part))) + "…";
}

/// Places values in the area of the chart.
struct Frame {
  ChartAxis x, y;
  [[nodiscard]] double at_x(double value) const {
    return kLeft + (value - x.begin) / (x.end - x.begin) * (kWidth - kLeft - kRight);
  }
  [[nodiscard]] double at_y(double value) const {
    return kHeight - kBottom - (value - y.begin) / (y.end - y.begin) * (kHeight - kTop - kBottom);
  }
  [[nodiscard]] std::string at(double step, double value) const {
    return fmt::format("{:.1f},{:.1f}", at_x(step), at_y(value));
  }
};

Frame frame_of(const std::vector<const Series*>& all) {
  const auto& first = all.front()->front();
  double from = first.at.step, to = from, least = first.least, most = first.most;
  for (const auto* series : all) {
    from = std::min(from, series->front().at.step);
    to = std::max(to, series->back().at.step);
    for (const auto& point : *series) {
      least = std::min(least, point.least);
      most = std::max(most, point.most);
    }
  }
  if (from > 0 && from < to / 2) from = 0;
  if (least > 0 && least < most / 4) least = 0;
  return {axis_of(from, to, false), axis_of(least, most, true)};
}

std::string grid_and_axes(const Frame& frame, const Chart& chart) {
  const double left = kLeft, right = kWidth - kRight, top = kTop, bottom = kHeight - kBottom;
  const auto step_of = [](const ChartAxis& axis) {
    return axis.ticks.size() > 1 ? axis.ticks[1] - axis.ticks[0] : axis.end - axis.begin;
  };
  std::string out = "<g stroke=\"#dddddd\">\n";
  for (const double tick : frame.y.ticks)
    out += fmt::format("<line x1=\"{0}\" x2=\"{1}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\"/>\n", left, right, frame.at_y(tick));
  for (const double tick : frame.x.ticks)
    out += fmt::format("<line x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1}\" y2=\"{2}\"/>\n", frame.at_x(tick), top, bottom);
  out += fmt::format("</g>\n<path d=\"M{0} {1}V{2}H{3}\" fill=\"none\" stroke=\"#444444\"/>\n<g fill=\"#444444\">\n",
                     left, top, bottom, right);
  for (const double tick : frame.y.ticks)
    out += fmt::format("<text x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\">{}</text>\n", left - 8, frame.at_y(tick) + 4,
                       tick_text(tick, step_of(frame.y)));
  for (const double tick : frame.x.ticks)
    out += fmt::format("<text x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n", frame.at_x(tick), bottom + 18,
                       tick_text(tick, step_of(frame.x)));
  out += fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">step</text>\n", (left + right) / 2, bottom + 40);
  std::size_t longest = 0;
  for (const double tick : frame.y.ticks) longest = std::max(longest, tick_text(tick, step_of(frame.y)).size());
  out += fmt::format("<text transform=\"translate({} {}) rotate(-90)\" text-anchor=\"middle\">{}</text>\n</g>\n",
                     std::max(16.0, left - 24 - kLetter * static_cast<double>(longest)), (top + bottom) / 2,
                     xml_escaped(chart.unit));
  return out;
}

std::string stroke_of(std::size_t group) {
  const auto* dash = kDashes[group / kColours.size() % kDashes.size()];
  return fmt::format("stroke=\"{}\" stroke-width=\"1.6\"{}", kColours[group % kColours.size()],
                     *dash == '\0' ? "" : fmt::format(" stroke-dasharray=\"{}\"", dash));
}

/// The band, the line and, of a short series, its points.
std::string drawn(const Frame& frame, const Series& series, std::size_t group, bool is_band) {
  const auto* colour = kColours[group % kColours.size()];
  std::string out, line, edge;
  for (const auto& point : series) line += frame.at(point.at.step, point.value) + " ";
  if (is_band) {
    for (const auto& point : series) edge += frame.at(point.at.step, point.most) + " ";
    for (auto point = series.rbegin(); point != series.rend(); ++point)
      edge += frame.at(point->at.step, point->least) + " ";
    out += fmt::format("<polygon points=\"{}\" fill=\"{}\" fill-opacity=\"0.18\"/>\n", edge, colour);
  }
  out += fmt::format("<polyline points=\"{}\" fill=\"none\" {} stroke-linejoin=\"round\"/>\n", line, stroke_of(group));
  if (series.size() > kMostDots) return out;
  for (const auto& point : series)
    out += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"2.6\" fill=\"{}\"/>\n", frame.at_x(point.at.step),
                       frame.at_y(point.value), colour);
  return out;
}

/// Its entries in as many rows as they need, and the height of these.
std::pair<std::string, double> legend(const Plot& plot, const std::vector<std::size_t>& groups) {
  std::string out;
  double x = kLeft, y = kHeight + 4;
  for (const auto group : groups) {
    const auto name = legend_text(plot.groups[group].name);
    const double width = 34 + kLetter * static_cast<double>(text::width(name)) + 16;
    if (x > kLeft && x + width > kWidth - kRight) {
      x = kLeft;
      y += kLegendRow;
    }
    out += fmt::format("<line x1=\"{}\" x2=\"{}\" y1=\"{}\" y2=\"{}\" {}/>\n<text x=\"{}\" y=\"{}\">{}</text>\n", x,
                       x + 24, y - 4, y - 4, stroke_of(group), x + 32, y, xml_escaped(name));
    x += width;
  }
  return {out, y - kHeight + 14};
}

}  // namespace

ChartAxis axis_of(double least, double most, bool whole) {
  constexpr double kLargest = 1e300;  // so that the differences are finite
  least = std::clamp(least, -kLargest, kLargest);
  most = std::clamp(most, -kLargest, kLargest);
  if (const double size = std::max(std::abs(least), std::abs(most)); most - least <= 1e-9 * size || size == 0) {
    const double around = size == 0 ? 1 : size / 10;
    least -= around;
    most += around;
  }
  const double rough = (most - least) / 6, power = std::pow(10, std::floor(std::log10(rough)));
  const double step = power * (rough <= power ? 1 : rough <= 2 * power ? 2 : rough <= 5 * power ? 5 : 10);
  const double first = whole ? std::floor(least / step) : std::ceil(least / step - 1e-6);
  const double last = whole ? std::ceil(most / step) : std::floor(most / step + 1e-6);
  ChartAxis axis{.begin = whole ? first * step : least, .end = whole ? last * step : most, .ticks = {}};
  for (int i = 0; i <= static_cast<int>(last - first); ++i)
    axis.ticks.push_back(std::clamp((first + i) * step, axis.begin, axis.end));
  return axis;
}

std::string svg_text(const Plot& plot, const Chart& chart) {
  std::vector<std::size_t> groups;
  std::vector<const Series*> all;
  for (std::size_t group = 0; group < plot.groups.size(); ++group) {
    const auto found = plot.groups[group].series.find(chart.id);
    if (found == plot.groups[group].series.end()) continue;
    groups.push_back(group);
    all.push_back(&found->second);
  }
  const auto frame = frame_of(all);
  const auto [entries, legend_height] = legend(plot, groups);
  const auto title = xml_escaped(chart.title);
  const double height = kHeight + legend_height;
  auto out = fmt::format(
      "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" height=\"{1}\" role=\"img\" "
      "font-family=\"system-ui, Helvetica, Arial, sans-serif\" font-size=\"13\">\n<title>{2}</title>\n"
      "<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n"
      "<text x=\"{3}\" y=\"26\" font-size=\"16\" font-weight=\"600\">{2}</text>\n",
      kWidth, height, title, kLeft);
  out += grid_and_axes(frame, chart);
  for (std::size_t i = 0; i < groups.size(); ++i)
    out += drawn(frame, *all[i], groups[i], plot.groups[groups[i]].runs.size() > 1);
  return out + "<g fill=\"#222222\">\n" + entries + "</g>\n</svg>\n";
}

}  // namespace trireme::apps
