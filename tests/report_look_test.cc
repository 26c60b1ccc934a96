// Looks at the pages of runs in headless Chromium: light and dark, wide and narrow. Skipped without
// Chromium.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdlib>

#include "core/io/file.h"
#include "models/report/report.h"
#include "models/sweep/compared_runs.h"
#include "tests/subprocess.h"

namespace lockstep {
namespace {

std::string Chromium() {
  if (const char* path = std::getenv("LOCKSTEP_CHROMIUM")) return path;
  for (const char* path :
       {"/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"}) {
    if (PathExists(path)) return path;
  }
  return "";
}

// A longer run whose validation loss starts to rise; `lower`: than others.
models::RunHistory History(double lower) {
  models::RunHistory h(/*clip=*/1);
  for (int64_t step = 0; step <= 2000; ++step) {
    const auto s = static_cast<double>(step);
    models::StepMetrics m;
    m.step = step;
    m.loss = 1.2 - lower + 3 * std::exp(-s / 300) + 0.1 * std::sin(12.9 * s);
    m.grad_norm = 0.6 + 2 * std::exp(-s / 50) + 0.2 * std::cos(7.7 * s);
    m.lr = 1e-3 * std::min(1.0, s / 100) * (1.05 + std::cos(s / 2000 * 3.14159)) / 2;
    m.times = {.data_ms = 0.2, .forward_ms = 3.1, .backward_ms = 6.3, .update_ms = 0.9};
    m.ms = m.times.total() * (1 + 0.05 * std::sin(s));
    m.tokens_per_second = 768e3 / m.ms;
    m.memory_bytes = 9 << 20;
    if (step % 100 == 0) {
      m.val_loss = 1.3 - lower + 3 * std::exp(-s / 300) + 1e-7 * s * s;
      m.pauses = {.eval_ms = 300, .sample_ms = 100, .checkpoint_ms = 20, .report_ms = 10};
    }
    h.Add(m);
  }
  return h;
}

std::string ReportPage() {
  models::ReportInput in;
  in.name = "shakespeare";
  in.unix_time = 1.8e9;
  in.plan = {.steps = 2000,
             .tokens_per_step = 768,
             .vocab_size = 65,
             .planned_memory = 9 << 20,
             .finished = true};
  in.facts = {{"model", "GPT, 4 layers, 4 heads, width 128: 803k parameters"}};
  in.samples = {{1000, "ROMEO:", "\nWhat is it that I should not say,\nAnd that it is not so?"},
                {2000, "ROMEO:", "\n" + std::string(300, 'x') + " & <b>"}};
  return models::RenderReport(History(0), in);
}

std::string RunsPage() {
  std::vector<models::ComparedRun> runs;
  for (int i = 0; i < 12; ++i) {
    models::RunConfig config;
    config.seed = i % 2;
    config.optim.lr = 1e-3 * (1 + i / 2);
    runs.push_back(
        {.name = "lr=" + std::to_string(config.optim.lr) + ",seed=" + std::to_string(i % 2),
         .config = config,
         .history = History(0.02 * i),
         .finished = i != 3});
  }
  return models::RenderRuns("sweep", runs, /*reloads=*/false);
}

// Makes the page list what a person would complain about; "none" if there is nothing.
constexpr char kInspector[] = R"html(<script>
addEventListener('load', () => {
  const bad = [];
  const name = e => `${e.tagName} "${e.textContent.trim().slice(0, 30)}"`;
  const charts = [...document.querySelectorAll('svg.plot')];
  if (document.documentElement.dataset.charts !== String(charts.length)) bad.push('the script did not run');
  if (charts.length !== Number(document.body.dataset.expected)) bad.push(`${charts.length} charts`);
  if (document.scrollingElement.scrollWidth > innerWidth) bad.push(`${document.scrollingElement.scrollWidth} pixels wide`);
  for (const svg of charts) {
    const box = svg.getBoundingClientRect();
    if (box.width < 250 || box.height < 100) bad.push(`a chart of ${box.width} x ${box.height}`);
    const texts = [...svg.querySelectorAll('text')].map(e => ({ e, r: e.getBoundingClientRect() }));
    if (texts.length < 8) bad.push('a chart without axes');
    for (const [i, { e, r }] of texts.entries()) {
      if (r.left < box.left - 1 || r.right > box.right + 1 || r.top < box.top - 1 || r.bottom > box.bottom + 1)
        bad.push(`${name(e)} is cut off`);
      for (const other of texts.slice(i + 1)) {
        const o = other.r;
        if (r.left < o.right - 1 && o.left < r.right - 1 && r.top < o.bottom - 3 && o.top < r.bottom - 3)
          bad.push(`${name(e)} covers ${name(other.e)}`);
      }
    }
  }
  // WCAG contrast of all visible text: 4.5, or 3 for large text.
  const rgb = text => (text.match(/[\d.]+/g) || []).map(Number);
  const luminance = ([r, g, b]) => [r, g, b].map(v => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = e => {
    for (; e; e = e.parentElement) {
      const c = rgb(getComputedStyle(e).backgroundColor);
      if (c.length === 3 || c[3] === 1) return c;
    }
    return [255, 255, 255];
  };
  for (const e of document.querySelectorAll('body *')) {
    const own = [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim());
    if (!own || ['SCRIPT', 'STYLE'].includes(e.tagName) || !e.getClientRects().length) continue;
    const style = getComputedStyle(e);
    const front = rgb(e.namespaceURI.endsWith('svg') ? style.fill : style.color);
    const [a, b] = [luminance(front), luminance(behind(e))].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    if (ratio < (parseFloat(style.fontSize) >= 24 ? 3 : 4.5)) bad.push(`${name(e)}: contrast ${ratio.toFixed(2)}`);
  }
  // Put the pointer in the middle of the first chart.
  const box = charts[0].getBoundingClientRect();
  charts[0].dispatchEvent(new PointerEvent('pointermove', { clientX: box.left + box.width / 2, clientY: box.top + 50, bubbles: true }));
  const tip = document.querySelector('.tip');
  if (!tip || tip.hidden || !/step \d+/.test(tip.textContent) || !/\d\.\d/.test(tip.textContent)) bad.push('no values under the pointer');
  if (charts.some(svg => !svg.querySelector('.hover line'))) bad.push('no line under the pointer');
  document.body.dataset.dark = matchMedia('(prefers-color-scheme: dark)').matches;
  document.body.dataset.ground = luminance(behind(document.body)).toFixed(3);
  document.body.dataset.bad = bad.length ? bad.slice(0, 12).join('; ') : 'none';
});
</script></body>)html";

struct Look {
  const char* name;
  bool dark;
  int width, height;
  std::string (*page)() = ReportPage;
  int charts = 6;
};

class ReportLook : public testing::TestWithParam<Look> {
 protected:
  void SetUp() override {
    if (Chromium().empty()) {
      GTEST_SKIP() << "there is no Chromium (Debian: apt install chromium) to look at the report";
    }
    folder_ = JoinPath(testing::TempDir(), GetParam().name);
    RemoveTree(folder_);
    MakeDirectories(folder_);
  }

  Result Browse(const std::string& page, const std::vector<std::string>& more) const {
    std::vector<std::string> arguments = {
        Chromium(),
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--hide-scrollbars",
        "--user-data-dir=" + JoinPath(folder_, "profile"),
        "--blink-settings=preferredColorScheme=" + std::string(GetParam().dark ? "0" : "1"),
        "--window-size=" + std::to_string(GetParam().width) + "," +
            std::to_string(GetParam().height)};
    arguments.insert(arguments.end(), more.begin(), more.end());
    arguments.push_back("file://" + page);
    return RunProgram(arguments, {{"HOME", folder_}, {"XDG_RUNTIME_DIR", folder_}});
  }

  // The page after its self-inspection.
  Result Inspect(std::string html) const {
    html.replace(html.find("</body>"), 7, kInspector);
    html.replace(html.find("<body>"), 6,
                 "<body data-expected=\"" + std::to_string(GetParam().charts) + "\">");
    const std::string page = JoinPath(folder_, "inspected.html");
    WriteFileAtomically(page, html);
    return Browse(page, {"--dump-dom"});
  }

  static std::string Attribute(const std::string& html, const std::string& name) {
    const size_t at = html.find("data-" + name + "=\"");
    if (at == std::string::npos) return "(no data-" + name + ")";
    const size_t begin = at + name.size() + 7;
    return html.substr(begin, html.find('"', begin) - begin);
  }

  std::string folder_;
};

TEST_P(ReportLook, HasNothingToComplainAbout) {
  const Result seen = Inspect(GetParam().page());
  ASSERT_EQ(seen.exit_code, 0) << seen.err;
  EXPECT_EQ(Attribute(seen.out, "bad"), "none") << seen.err;
  EXPECT_EQ(Attribute(seen.out, "dark"), GetParam().dark ? "true" : "false");
  const double ground = std::atof(Attribute(seen.out, "ground").c_str());
  EXPECT_TRUE(GetParam().dark ? ground < 0.05 : ground > 0.85) << ground;
}

// The inspection must complain about spoilt pages; one that never does would prove nothing.
TEST_P(ReportLook, SpoiltPagesAreComplainedAbout) {
  if (GetParam().dark) return;  // once is enough
  const std::vector<std::array<std::string, 3>> spoilt = {
      {"--soft: #56616f", "--soft: #b0b6bd", "contrast"},
      {"JSON.parse(", "JSON.purse(", "the script did not run"},
      {"main { max-width", "main { min-width: 1700px; max-width", "pixels wide"},
      {".plot text { font-size: 12px", ".plot text { font-size: 40px", "covers"}};
  for (const auto& [from, to, complaint] : spoilt) {
    std::string page = GetParam().page();
    page.replace(page.find(from), from.size(), to);
    EXPECT_NE(Attribute(Inspect(page).out, "bad").find(complaint), std::string::npos) << complaint;
  }
}

// Keeps the picture among Bazel's test outputs.
TEST_P(ReportLook, CanBeSeen) {
  const std::string page = JoinPath(folder_, "report.html");
  WriteFileAtomically(page, GetParam().page());
  const char* outputs = std::getenv("TEST_UNDECLARED_OUTPUTS_DIR");
  const std::string picture =
      JoinPath(outputs != nullptr ? outputs : folder_, std::string(GetParam().name) + ".png");
  const Result seen = Browse(page, {"--screenshot=" + picture});
  ASSERT_EQ(seen.exit_code, 0) << seen.err;
  const std::string png = ReadFile(picture);
  ASSERT_GT(png.size(), 60'000u) << "an empty picture";
  EXPECT_EQ(png.substr(1, 3), "PNG");
  const auto number = [&](size_t at) {
    int value = 0;
    for (size_t i = at; i < at + 4; ++i) value = value << 8 | static_cast<unsigned char>(png[i]);
    return value;
  };
  EXPECT_EQ(number(16), GetParam().width);
  EXPECT_EQ(number(20), GetParam().height);
}

INSTANTIATE_TEST_SUITE_P(Looks, ReportLook,
                         testing::Values(Look{"light", false, 1280, 2200},
                                         Look{"dark", true, 1280, 2200},
                                         Look{"narrow", true, 500, 3000},
                                         Look{"runs_light", false, 1280, 1400, RunsPage, 2},
                                         Look{"runs_dark", true, 1280, 1400, RunsPage, 2},
                                         Look{"runs_narrow", false, 500, 1800, RunsPage, 2}),
                         [](const testing::TestParamInfo<Look>& info) { return info.param.name; });

}  // namespace
}  // namespace lockstep
