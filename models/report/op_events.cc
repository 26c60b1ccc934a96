#include "models/report/op_events.h"

#include "core/error.h"
#include "core/io/file.h"
#include "core/io/json.h"
#include "models/report/json_lines.h"

namespace lockstep::models {

std::string OpEventsFile(int64_t step, int64_t rank) {
  return StrCat("ops-", step, ".rank-", rank, ".jsonl");
}

std::string OpTensorsFile(int64_t step, int64_t rank) {
  return StrCat("ops-", step, ".rank-", rank, ".safetensors");
}

std::string ToJson(const OpEvent& e) {
  return OrderedJson{{"key", e.key}, {"kind", e.kind}, {"name", e.name}, {"module", e.module},
                     {"at", e.at},   {"of", e.of},     {"in", e.in},     {"out", e.out}}
      .dump();
}

std::vector<OpEvent> ReadOpEvents(const std::string& path) {
  std::vector<OpEvent> events;
  if (!PathExists(path)) throw InputError(StrCat(path, ": there is no such file"));
  ForEachLine(path, [&](const std::string& text) {
    try {
      const Json line = ParseJson(text, path);
      events.push_back({.kind = line.at("kind"),
                        .key = line.at("key"),
                        .name = line.at("name"),
                        .module = line.at("module"),
                        .of = line.at("of"),
                        .at = IntegerOf(line.at("at")),
                        .in = line.at("in"),
                        .out = line.at("out")});
    } catch (const JsonError& error) {
      throw InputError(StrCat(path, ": line ", events.size() + 1, ": ", error.what()));
    }
  });
  return events;
}

}  // namespace lockstep::models
