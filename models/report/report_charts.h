// The curves of a run, as the figures of its report.
#pragma once

#include <string>
#include <vector>

#include "models/report/report.h"
#include "models/report/svg_plot.h"

namespace lockstep::models {

// In HTML: losses, norms, rates, memory, and where the time went. What was not measured is left
// out.
std::string ReportCharts(const RunHistory& history, const ReportInput& input);

// What these are made of.
std::vector<PlotPoint> PointsOf(const Curve& curve);
std::vector<PlotPoint> PointsOf(const std::vector<RunHistory::Point>& values);
// Averages over a thirtieth of the points around each.
std::vector<PlotPoint> Smoothed(const std::vector<PlotPoint>& points);
// A chart with a title and a note, and with a legend if it has more than two lines. A wide one
// takes the whole width of the page.
std::string Figure(const std::string& title, const std::string& note,
                   const std::vector<PlotLine>& lines, PlotOptions options, bool wide = false);

}  // namespace lockstep::models
