// Charts as inline SVG: no library, no network, colours from the page's CSS variables.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lockstep::models {

// Text as HTML shows it: & < > " ' are escaped, and what is not UTF-8 or a control character other
// than tab and newline becomes U+FFFD. For contents and for quoted attributes.
std::string EscapeHtml(std::string_view text);

// How a value is written, on axes and at the pointer.
enum class ValueFormat { kPlain, kCount, kBytes, kMs, kScientific };

struct PlotPoint {
  double x = 0, y = 0;
  double low = 0, high = 0;  // of the band, if the line has one
};

struct PlotLine {
  std::string name;
  std::string color;  // a CSS variable: "--train"
  std::vector<PlotPoint> points;
  bool band = false;   // shade [low, high]
  bool faint = false;  // a thin line that another one smooths; its outliers do not stretch the axis
  bool dots = false;
  bool end_label = true;  // the last value, to the right of the plot
};

// A horizontal line that a curve is compared with.
struct PlotRule {
  double y = 0;
  std::string label;
};

struct PlotOptions {
  std::string title;  // for screen readers
  double width = 600, height = 240;
  double last_x = 1;  // the x axis, in steps, runs from 0 to here
  ValueFormat format = ValueFormat::kPlain;
  bool log_y = false;           // needs positive values; others are left out
  bool from_zero = false;       // the y axis starts at 0
  bool stacked = false;         // stacked areas, in the order of the lines
  std::vector<PlotRule> rules;  // drawn if they are in the range of the lines, or near it
};

// An <svg> and, for the page's script, its numbers as JSON. Lines without points are left out.
std::string SvgPlot(const std::vector<PlotLine>& lines, const PlotOptions& options);

// "1.5k", "12.5 MiB", ... as on the axes.
std::string FormatValue(double value, ValueFormat format);

}  // namespace lockstep::models
