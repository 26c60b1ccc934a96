#include "tests/dist/launch/manifest.h"

#include <charconv>
#include <sstream>
#include <stdexcept>

namespace lockstep {
namespace {

Json Scalar(const std::string& text) {
  if (text.size() >= 2 && text.front() == '"' && text.back() == '"') {
    return text.substr(1, text.size() - 2);
  }
  if (text.front() == '[' && text.back() == ']') {
    Json all = Json::array();
    std::istringstream items(text.substr(1, text.size() - 2));
    for (std::string item; std::getline(items >> std::ws, item, ',');) all.push_back(Scalar(item));
    return all;
  }
  if (std::string("\"'[{&*!|>%@`").find(text.front()) != std::string::npos ||
      text.find(" #") != std::string::npos || text.find(": ") != std::string::npos) {
    throw std::runtime_error("not in the part of YAML that is read: " + text);
  }
  int64_t number = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (code == std::errc() && end == text.data() + text.size()) return number;
  return text;
}

struct Reader {
  std::vector<std::string> lines;  // without comments and blank lines
  size_t at = 0;

  size_t Indent() const { return at < lines.size() ? lines[at].find_first_not_of(' ') : 0; }

  Json Block() {
    const size_t indent = Indent();
    Json all;
    for (; at < lines.size() && Indent() == indent;) {
      std::string& line = lines[at];
      if (line.compare(indent, 2, "- ") == 0) {
        line[indent] = ' ';  // the item is a block of its own, two columns further on
        const bool is_scalar = line.find(": ") == std::string::npos && line.back() != ':';
        all.push_back(is_scalar ? Scalar(lines[at++].substr(indent + 2)) : Block());
        continue;
      }
      const size_t colon = line.find(": ");
      const size_t end = colon == std::string::npos ? line.size() - 1 : colon;
      if (line[end] != ':') throw std::runtime_error("not a key and a value: " + line);
      const std::string key = line.substr(indent, end - indent);
      if (all.contains(key)) throw std::runtime_error("twice: " + key);
      if (colon != std::string::npos) {
        all[key] = Scalar(lines[at++].substr(colon + 2));
        continue;
      }
      ++at;
      if (Indent() <= indent) throw std::runtime_error("without a value: " + key);
      all[key] = Block();
    }
    if (at < lines.size() && Indent() > indent) throw std::runtime_error("indent: " + lines[at]);
    return all;
  }
};

}  // namespace

std::vector<Json> ReadManifests(const std::string& text) {
  std::vector<Reader> documents(1);
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    const size_t first = line.find_first_not_of(' ');
    if (line == "---") {
      documents.emplace_back();
    } else if (first != std::string::npos && line[first] != '#') {
      documents.back().lines.push_back(line);
    }
  }
  std::vector<Json> all;
  for (Reader& reader : documents) {
    all.push_back(reader.Block());
    if (reader.at != reader.lines.size()) throw std::runtime_error("more than one block");
  }
  return all;
}

}  // namespace lockstep
