// What nlohmann's parsers let pass, and ours refuse.
#pragma once

#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/io/json.h"

namespace lockstep {

// A callback for Json::parse, where Json is nlohmann::json or ordered_json. Calls fail(what), which
// throws, for a key that occurs twice in an object, of which nlohmann would silently drop one, and
// for nesting deeper than max_depth.
template <class Json, class Fail>
typename Json::parser_callback_t StrictJson(int max_depth, const Fail& fail) {
  std::vector<std::set<std::string>> keys;  // of the objects that are open
  return [=](int depth, nlohmann::json::parse_event_t event, Json& parsed) mutable {
    using Event = nlohmann::json::parse_event_t;
    if ((event == Event::object_start || event == Event::array_start) && depth >= max_depth) {
      fail(StrCat("nested deeper than ", max_depth, " levels"));
    }
    if (event == Event::object_start) keys.emplace_back();
    if (event == Event::object_end) keys.pop_back();
    if (event == Event::key &&
        !keys.back().insert(parsed.template get_ref<std::string&>()).second) {
      fail(StrCat("the key ", Quoted(parsed.template get_ref<std::string&>()),
                  " appears twice in one object"));
    }
    return true;
  };
}

}  // namespace lockstep
