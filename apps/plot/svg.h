// One chart of a plot as an SVG file, for papers and notes: over steps, on white.
#pragma once

#include <string>
#include <vector>

#include "apps/plot/plot.h"

namespace trireme::apps {

/// An axis with ticks at multiples of 1, 2 or 5 times a power of ten.
struct ChartAxis {
  double begin = 0, end = 1;  ///< begin < end; both finite
  std::vector<double> ticks;  ///< in [begin, end], ascending; at most 12
};
/// An axis that shows all values from `least` to `most`. `whole`: it begins and ends at a tick.
ChartAxis axis_of(double least, double most, bool whole);

/// The document. All text in it is escaped; what XML cannot hold is U+FFFD. @pre a group has a series of the chart
std::string svg_text(const Plot& plot, const Chart& chart);

}  // namespace trireme::apps
