// The look and the behaviour of report.html: constants of its own, so that the file needs nothing
// else.
#pragma once

#include <string_view>

namespace lockstep::models {

std::string_view ReportStyle();   // CSS, light and dark by prefers-color-scheme
std::string_view ReportScript();  // where the pointer is, all charts tell their values

}  // namespace lockstep::models
