// models/examples/pytorch.md shows what is tested beside this file. Its other half is run by
// tests/peers/run_side_by_side.py.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

#include "core/io/file.h"

namespace lockstep {
namespace {

const char kPage[] = "models/examples/pytorch.md";

using Sections = std::vector<std::pair<std::string, std::string>>;

// By title, in the order in which the titles come first.
void Append(Sections& sections, const std::string& title, const std::string& text) {
  for (auto& [name, all] : sections) {
    if (name == title) {
      all += text;
      return;
    }
  }
  sections.emplace_back(title, text);
}

// Without the indentation that all lines have.
std::string Dedented(const std::vector<std::string>& lines) {
  size_t indent = std::string::npos;
  for (const std::string& line : lines) {
    if (!line.empty()) indent = std::min(indent, line.find_first_not_of(' '));
  }
  std::string text;
  for (const std::string& line : lines) text += (line.empty() ? "" : line.substr(indent)) + "\n";
  return text;
}

Sections OfTheTests() {
  std::istringstream in(ReadFile("tests/examples/side_by_side_tensors_test.cc") +
                        ReadFile("tests/examples/side_by_side_training_test.cc"));
  Sections sections;
  std::string title;
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) {
    const size_t begin = line.find_first_not_of(' ');
    const std::string text = begin == std::string::npos ? "" : line.substr(begin);
    if (text == "// [end]") {
      EXPECT_NE(title, "") << "an end without a beginning";
      Append(sections, title, Dedented(lines));
      title.clear();
      lines.clear();
    } else if (text.starts_with("// [") && text.ends_with("]")) {
      EXPECT_EQ(title, "") << "no end";
      title = text.substr(4, text.size() - 5);
    } else if (!title.empty()) {
      lines.push_back(line);
    }
  }
  return sections;
}

// The blocks of one language, by the headings above them.
Sections OfThePage(const std::string& language) {
  std::istringstream in(ReadFile(kPage));
  Sections sections;
  std::string title, text;
  bool inside = false;
  for (std::string line; std::getline(in, line);) {
    if (inside && line == "```") {
      Append(sections, title, text);
      inside = false;
    } else if (inside) {
      text += line + "\n";
    } else if (line == "```" + language) {
      inside = true;
      text.clear();
    } else if (line.starts_with("## ")) {
      title = line.substr(3);
    }
  }
  return sections;
}

TEST(SideBySidePage, ShowsWhatIsTested) {
  const Sections tested = OfTheTests(), shown = OfThePage("cpp");
  for (size_t i = 0; i < std::min(tested.size(), shown.size()); ++i) {
    EXPECT_EQ(shown[i].first, tested[i].first);
    EXPECT_EQ(shown[i].second, tested[i].second) << tested[i].first;
  }
  EXPECT_EQ(shown.size(), tested.size());
}

TEST(SideBySidePage, HasThirtyPairs) {
  const Sections ours = OfThePage("cpp"), theirs = OfThePage("python");
  EXPECT_EQ(ours.size(), 30u);
  ASSERT_EQ(theirs.size(), ours.size());
  for (size_t i = 0; i < ours.size(); ++i) EXPECT_EQ(theirs[i].first, ours[i].first);
}

}  // namespace
}  // namespace lockstep
