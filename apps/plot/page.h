// The HTML page of a plot: one file without references to others. Its script draws with Chart.js.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "apps/plot/plot.h"

namespace trireme::apps {

/// What the page's script reads, without anything of HTML. Numbers have 6 digits, but steps and samples all of theirs.
nlohmann::json page_data(const Plot& plot);

/// The page. Run folders hold text that anybody may have written: as data it cannot end the script that holds it.
/// `parts`: the folder with page.html, page.css, page.js and chart.min.js.
/// @throws ConfigError when one of them is missing
std::string page_text(const Plot& plot, const std::string& parts);

/// The charts that the page has: those of series, and of memory and time where a run knows them.
std::size_t charts_in_page(const Plot& plot);

}  // namespace trireme::apps
