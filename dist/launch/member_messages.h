// What the launcher of an elastic run and its ranks say to each other: JSON, a line each.
#pragma once

#include <optional>
#include <string>

#include "core/io/json.h"
#include "dist/launch/members.h"

namespace lockstep::dist {

std::string ToLine(const MemberReady& ready);
std::string ToLine(const MemberPlace& place);
// "summoned", "broken", "over", or "refused" and why.
std::string ToLine(const std::string& kind, const std::string& text);
// Throws an exception for what no rank writes.
MemberReady ReadyOf(const Json& j);
MemberPlace PlaceOf(const Json& j);

// Takes the first whole line from what has arrived.
std::optional<std::string> TakeLine(std::string* begun);
// False if the other side has gone.
bool SendLine(int fd, const std::string& line);

}  // namespace lockstep::dist
