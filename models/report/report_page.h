// The style and the script of report.html, inline so that the file needs nothing else.
#pragma once

#include <string_view>

namespace lockstep::models {

std::string_view ReportStyle();   // CSS, light and dark by prefers-color-scheme
std::string_view ReportScript();  // all charts show their values at the pointer

}  // namespace lockstep::models
