#include "apps/plot/plot_command.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <vector>

#include "apps/launcher/installation.h"
#include "apps/plot/page.h"
#include "apps/plot/svg.h"
#include "apps/report.h"
#include "core/base/error.h"
#include "core/base/text.h"

namespace trireme::apps {
namespace {

void write_plot(const std::string& path, const std::string& content) {
  errno = 0;
  std::ofstream file(path, std::ios::binary);
  file << content;
  file.close();
  if (!file) throw CheckpointError(fmt::format("{} cannot be written: {}", path, std::strerror(errno)));
}

/// A run does not start, or go on, in a folder with files of others.
void refuse_run_folder(const std::string& out) {
  const auto folder = std::filesystem::absolute(out).parent_path().string();
  if (is_run(folder))
    throw ConfigError(fmt::format(
        "--out {}: {} is the folder of a run, which may hold no other files; name a file elsewhere", out, folder));
}

const Chart& chart_named(const Plot& plot, const std::string& name) {
  const auto found =
      std::find_if(plot.charts.begin(), plot.charts.end(), [&](const Chart& chart) { return chart.id == name; });
  if (found != plot.charts.end()) return *found;
  std::vector<std::string> known;
  for (const auto& chart : plot.charts) known.push_back(text::printable(chart.id));
  throw ConfigError(fmt::format("--chart {}: these runs have no such chart (known: {}){}", name,
                                known.empty() ? "none" : text::join(known), text::did_you_mean(name, known)));
}

}  // namespace

int plot_runs(const PlotCommand& command) {
  refuse_run_folder(command.out);
  const auto plot = read_plot(command.runs);
  const auto content = command.chart ? svg_text(plot, chart_named(plot, *command.chart))
                                     : page_text(plot, prefix() + "/share/trireme/plot");
  write_plot(command.out, content);
  const auto charts = static_cast<std::int64_t>(command.chart ? 1 : charts_in_page(plot));
  put(fmt::format("wrote {}: {}, {}, {}\n", text::printable(command.out),
                  text::quantity(static_cast<std::int64_t>(plot.runs.size()), "run"), text::quantity(charts, "chart"),
                  text::bytes(static_cast<double>(content.size()))));
  return 0;
}

}  // namespace trireme::apps
