#include "models/report/svg_plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/io/json.h"
#include "data/utf8.h"
#include "models/report/format.h"

namespace lockstep::models {
namespace {

constexpr double kLeft = 58, kTop = 12, kBottom = 30;

struct Axis {
  double low = 0, high = 1;   // values
  double begin = 0, end = 1;  // pixels of low and high
  bool log = false;
  std::vector<double> ticks;

  double operator()(double value) const {
    const double share =
        log ? std::log(value / low) / std::log(high / low) : (value - low) / (high - low);
    return begin + std::clamp(share, -0.05, 1.05) * (end - begin);
  }
};

// The smallest of 1, 2, 5 times a power of ten (or a power of two) that gives at most `count`
// ticks.
double NiceStep(double range, int count, bool binary) {
  const double rough = range / count;
  if (binary) return std::exp2(std::ceil(std::log2(rough)));
  const double power = std::pow(10, std::floor(std::log10(rough)));
  for (const double m : {1.0, 2.0, 5.0}) {
    if (m * power >= rough) return m * power;
  }
  return 10 * power;
}

std::vector<double> LinearTicks(double low, double high, int count, bool binary) {
  std::vector<double> ticks;
  const double step = NiceStep(high - low, count, binary);
  for (double i = std::ceil(low / step - 1e-9); i * step <= high + 1e-9 * step; ++i) {
    ticks.push_back(i * step + 0.0);  // no -0
  }
  return ticks;
}

std::vector<double> LogTicks(double low, double high) {
  std::vector<double> ticks;
  const double decades = std::log10(high / low);
  if (decades < 0.7) return LinearTicks(low, high, 8, false);
  const std::vector<double> digits =
      decades < 2.5 ? std::vector<double>{1, 2, 5} : std::vector<double>{1};
  for (double e = std::floor(std::log10(low)); e <= std::ceil(std::log10(high)); ++e) {
    for (const double d : digits) {
      const double tick = d * std::pow(10, e);
      if (tick >= low * (1 - 1e-9) && tick <= high * (1 + 1e-9)) ticks.push_back(tick);
    }
  }
  return ticks;
}

bool Drawable(double y, const PlotOptions& o) { return std::isfinite(y) && (!o.log_y || y > 0); }

Axis XAxis(const PlotOptions& o, double right) {
  Axis x{.low = 0, .high = std::max(o.last_x, 1.0), .begin = kLeft, .end = o.width - right};
  x.ticks = LinearTicks(0, x.high, static_cast<int>(o.width / 90), false);
  std::erase_if(x.ticks, [](double t) { return t != std::floor(t); });
  return x;
}

Axis YAxis(const std::vector<PlotLine>& lines, const PlotOptions& o) {
  double low = std::numeric_limits<double>::infinity(), high = -low;
  const auto see = [&](double y) {
    if (!Drawable(y, o)) return;
    low = std::min(low, y);
    high = std::max(high, y);
  };
  for (const PlotLine& line : lines) {
    std::vector<double> ys;
    for (const PlotPoint& p : line.points) {
      if (Drawable(p.y, o)) ys.push_back(p.y);
    }
    std::sort(ys.begin(), ys.end());
    const size_t outliers = line.faint ? ys.size() / 100 : 0;
    for (size_t i = outliers; i + outliers < ys.size(); ++i) see(ys[i]);
  }
  if (!(low <= high)) {
    low = o.log_y ? 1 : 0;
    high = low + 1;
  }
  // A rule nearby is drawn; one far away would only squeeze the curves.
  for (const PlotRule& rule : o.rules) {
    const double y = rule.y;
    if (!Drawable(y, o)) continue;
    if (o.log_y ? y > low / 4 && y < high * 4
                : std::abs(y - high) < 0.5 * (high - low) + 0.2 * high)
      see(y);
  }
  if (o.from_zero) low = 0;
  const double spread = high - low;
  if (o.log_y) {
    const double margin = std::max(std::pow(high / low, 0.06), 1.02);
    low /= margin;
    high *= margin;
  } else {
    const double margin = spread > 0 ? 0.06 * spread : std::max(0.1 * std::abs(high), 1e-9);
    if (!o.from_zero) low -= margin;
    high += margin;
  }
  Axis y{.low = low, .high = high, .begin = o.height - kBottom, .end = kTop, .log = o.log_y};
  const int count = std::max(3, static_cast<int>(o.height / 48));
  y.ticks = o.log_y ? LogTicks(low, high)
                    : LinearTicks(low, high, count, o.format == ValueFormat::kBytes);
  return y;
}

// With enough digits to tell neighbouring ticks apart.
std::string TickLabel(double value, const std::vector<double>& ticks, ValueFormat format) {
  if (format != ValueFormat::kPlain || ticks.size() < 2) return FormatValue(value, format);
  const double step = ticks[1] - ticks[0];
  const int digits = std::clamp(static_cast<int>(std::ceil(-std::log10(step) - 1e-9)), 0, 6);
  return value >= 1e5 ? FormatCount(value) : fmt::format("{:.{}f}", value, digits);
}

std::string Grid(const Axis& x, const Axis& y, const PlotOptions& o) {
  std::string s = "<g class=\"grid\">";
  for (const double t : y.ticks) {
    s += fmt::format("<line x1=\"{0:.1f}\" x2=\"{1:.1f}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\"/>", x.begin,
                     x.end, y(t));
  }
  s += fmt::format(
      "</g><line class=\"axis\" x1=\"{:.1f}\" x2=\"{:.1f}\" y1=\"{:.1f}\" y2=\"{:.1f}\"/>", x.begin,
      x.end, y.begin, y.begin);
  s += "<g class=\"tick\" text-anchor=\"end\">";
  for (const double t : y.ticks) {
    s += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\">{}</text>", x.begin - 8, y(t) + 4,
                     EscapeHtml(TickLabel(t, y.ticks, o.format)));
  }
  s += "</g><g class=\"tick\" text-anchor=\"middle\">";
  for (const double t : x.ticks) {
    s += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\">{}</text>", x(t), o.height - 10,
                     FormatValue(t, ValueFormat::kCount));
  }
  return s + "</g>";
}

std::string PathOf(const std::vector<std::pair<double, double>>& points) {
  std::string d;
  for (const auto& [px, py] : points) {
    d += fmt::format("{}{:.1f} {:.1f}", d.empty() ? "M" : "L", px, py);
  }
  return d;
}

std::string AreaOf(const std::vector<std::pair<double, double>>& top,
                   std::vector<std::pair<double, double>> bottom) {
  std::reverse(bottom.begin(), bottom.end());
  std::vector<std::pair<double, double>> all = top;
  all.insert(all.end(), bottom.begin(), bottom.end());
  return PathOf(all) + "Z";
}

std::string DrawLine(const PlotLine& line, const Axis& x, const Axis& y, const PlotOptions& o) {
  std::vector<std::pair<double, double>> path, low, high;
  for (const PlotPoint& p : line.points) {
    if (!Drawable(p.y, o)) continue;
    path.emplace_back(x(p.x), y(p.y));
    if (!line.band) continue;
    low.emplace_back(x(p.x), y(std::max(p.low, y.low)));
    high.emplace_back(x(p.x), y(p.high));
  }
  std::string s;
  if (path.empty()) return s;
  if (line.band) {
    s += fmt::format("<path class=\"band\" style=\"fill:var({})\" d=\"{}\"/>", line.color,
                     AreaOf(high, low));
  }
  if (path.size() > 1) {
    s += fmt::format("<path class=\"{}\" style=\"stroke:var({})\" d=\"{}\"/>",
                     line.faint ? "line faint" : "line", line.color, PathOf(path));
  }
  if (line.dots || path.size() == 1) {
    for (const auto& [px, py] : path) {
      s += fmt::format(
          "<circle class=\"dot\" style=\"fill:var({})\" cx=\"{:.1f}\" cy=\"{:.1f}\" "
          "r=\"{}\"/>",
          line.color, px, py, path.size() > 60 ? "2" : "3.5");
    }
  }
  return s;
}

std::string DrawStack(const std::vector<PlotLine>& lines, const Axis& x, const Axis& y) {
  std::string s;
  std::vector<std::pair<double, double>> below;
  for (const PlotLine& line : lines) {
    std::vector<std::pair<double, double>> top, bottom;
    for (const PlotPoint& p : line.points) {
      top.emplace_back(x(p.x), y(p.high));
      bottom.emplace_back(x(p.x), y(p.low));
    }
    s += fmt::format("<path class=\"area\" style=\"fill:var({})\" d=\"{}\"/>", line.color,
                     AreaOf(top, bottom));
  }
  return s;
}

std::string DrawRules(const Axis& x, const Axis& y, const PlotOptions& o) {
  std::string s;
  for (const PlotRule& rule : o.rules) {
    if (!Drawable(rule.y, o) || rule.y < y.low || rule.y > y.high) continue;
    s += fmt::format(
        "<line class=\"rule\" x1=\"{0:.1f}\" x2=\"{1:.1f}\" y1=\"{2:.1f}\" "
        "y2=\"{2:.1f}\"/><text class=\"rule-label\" x=\"{1:.1f}\" y=\"{3:.1f}\" "
        "text-anchor=\"end\">{4}</text>",
        x.begin, x.end, y(rule.y), y(rule.y) - 5, EscapeHtml(rule.label));
  }
  return s;
}

// The last values, to the right of the plot, pushed apart where they would overlap.
std::string DrawEndLabels(const std::vector<PlotLine>& lines, const Axis& x, const Axis& y,
                          const PlotOptions& o) {
  struct Label {
    double at;
    std::string text, color;
  };
  std::vector<Label> labels;
  for (const PlotLine& line : lines) {
    if (line.faint || !line.end_label || !Drawable(line.points.back().y, o)) continue;
    const double value = line.points.back().y;
    labels.push_back({y(value) + 4, FormatValue(value, o.format), line.color});
  }
  std::sort(labels.begin(), labels.end(), [](auto& a, auto& b) { return a.at < b.at; });
  std::string s;
  constexpr double kApart = 15;
  for (size_t i = 1; i < labels.size(); ++i) {
    labels[i].at = std::max(labels[i].at, labels[i - 1].at + kApart);
  }
  double floor = o.height - kBottom + 4;
  for (size_t i = labels.size(); i-- > 0; floor = labels[i].at - kApart) {
    labels[i].at = std::min(labels[i].at, floor);
  }
  for (const Label& label : labels) {
    s += fmt::format(
        "<text class=\"end\" style=\"fill:var({}-ink)\" x=\"{:.1f}\" y=\"{:.1f}\">{}"
        "</text>",
        label.color, x.end + 8, label.at, EscapeHtml(label.text));
  }
  return s;
}

double Short(double value) { return std::stod(fmt::format("{:.5g}", value)); }

// Turns "1.50k" into "1.5k", "8.00 MiB" into "8 MiB".
std::string WithoutZeros(const std::string& text) {
  const size_t digits = text.find_first_not_of("-0123456789.");
  std::string number = text.substr(0, digits);
  const std::string unit = digits == std::string::npos ? "" : text.substr(digits);
  if (number.find('.') != std::string::npos) {
    number.erase(number.find_last_not_of('0') + 1);
    if (number.back() == '.') number.pop_back();
  }
  return number + unit;
}

std::string_view Name(ValueFormat format) {
  switch (format) {
    case ValueFormat::kCount:
      return "count";
    case ValueFormat::kBytes:
      return "bytes";
    case ValueFormat::kMs:
      return "ms";
    case ValueFormat::kScientific:
      return "scientific";
    case ValueFormat::kPlain:
      break;
  }
  return "plain";
}

std::string Numbers(const std::vector<PlotLine>& lines, const Axis& x, const Axis& y,
                    const PlotOptions& o) {
  OrderedJson j = {{"left", x.begin},   {"right", x.end}, {"top", y.end},
                   {"bottom", y.begin}, {"last", x.high}, {"format", Name(o.format)}};
  j["lines"] = OrderedJson::array();
  for (const PlotLine& line : lines) {
    std::vector<double> xs, ys, pixels;
    for (const PlotPoint& p : line.points) {
      if (!Drawable(p.y, o)) continue;
      xs.push_back(std::round(p.x));
      ys.push_back(Short(p.y));
      pixels.push_back(std::round(10 * y(o.stacked ? p.high : p.y)) / 10);
    }
    j["lines"].push_back({{"name", line.name},
                          {"color", line.color},
                          {"x", std::move(xs)},
                          {"y", std::move(ys)},
                          {"py", std::move(pixels)}});
  }
  std::string text = j.dump();
  // Nothing in it may look like the end of the script.
  for (size_t at; (at = text.find('<')) != std::string::npos;) text.replace(at, 1, "\\u003c");
  return text;
}

// Turns the values of the lines into sums with those below; p.y stays the value.
void Stack(std::vector<PlotLine>& lines) {
  std::vector<double> sums(lines.empty() ? 0 : lines[0].points.size(), 0.0);
  for (PlotLine& line : lines) {
    for (size_t i = 0; i < std::min(sums.size(), line.points.size()); ++i) {
      PlotPoint& p = line.points[i];
      p.low = sums[i];
      p.high = sums[i] += p.y;
    }
  }
}

}  // namespace

std::string EscapeHtml(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size();) {
    const char c = text[i];
    const auto n = static_cast<size_t>(data::DecodeUtf8(text, i).length);
    const auto code = static_cast<unsigned char>(c);
    if (n == 0 || (n == 1 && ((code < 0x20 && c != '\t' && c != '\n') || code == 0x7f))) {
      out += "\xEF\xBF\xBD";
      ++i;
      continue;
    }
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += text.substr(i, n);
    }
    i += n;
  }
  return out;
}

std::string FormatValue(double value, ValueFormat format) {
  switch (format) {
    case ValueFormat::kCount:
      return std::abs(value) >= 1000 ? WithoutZeros(FormatCount(value))
                                     : fmt::format("{:.4g}", value);
    case ValueFormat::kBytes:
      return value == 0 ? "0" : WithoutZeros(FormatBytes(value));
    case ValueFormat::kMs:
      return value >= 1000 ? fmt::format("{:.3g} s", value / 1000)
                           : fmt::format("{:.3g} ms", value);
    case ValueFormat::kScientific:
      return value == 0 ? "0" : fmt::format("{:.2g}", value);
    case ValueFormat::kPlain:
      break;
  }
  return std::abs(value) >= 0.01 && std::abs(value) < 10 ? fmt::format("{:.3f}", value)
                                                         : fmt::format("{:.4g}", value);
}

std::string SvgPlot(const std::vector<PlotLine>& all, const PlotOptions& options) {
  std::vector<PlotLine> lines;
  for (const PlotLine& line : all) {
    if (!line.points.empty()) lines.push_back(line);
  }
  std::vector<PlotLine> scaled = lines;
  if (options.stacked) {
    Stack(lines);
    scaled = lines;
    for (PlotLine& line : scaled) {
      for (PlotPoint& p : line.points) p.y = p.high;
    }
  }
  const Axis x = XAxis(options, options.stacked ? 60 : 72), y = YAxis(scaled, options);
  std::string s =
      fmt::format("<svg class=\"plot\" viewBox=\"0 0 {:g} {:g}\" role=\"img\" aria-label=\"{}\">",
                  options.width, options.height, EscapeHtml(options.title));
  s += Grid(x, y, options);
  if (options.stacked) {
    s += DrawStack(lines, x, y);
  } else {
    s += DrawRules(x, y, options);
    for (const PlotLine& line : lines) s += DrawLine(line, x, y, options);
    s += DrawEndLabels(lines, x, y, options);
  }
  s += fmt::format("<text class=\"tick\" text-anchor=\"end\" x=\"{:.1f}\" y=\"{:.1f}\">step</text>",
                   options.width - 6, options.height - 10);
  s += "<g class=\"hover\"></g></svg>";
  return s + "<script type=\"application/json\">" + Numbers(lines, x, y, options) + "</script>";
}

}  // namespace lockstep::models
