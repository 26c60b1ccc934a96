// What all pages have: their style and their script, inline so that a file needs nothing else.
#pragma once

#include <string>
#include <string_view>

namespace lockstep::models {

// All up to the page's contents. `seconds`: the page reads itself again as often; 0: never.
std::string PageHead(std::string_view title, int seconds);
// All after them, with a line of text. The page has a chart: all charts show their values at the
// pointer.
std::string PageEnd(std::string_view footer);

}  // namespace lockstep::models
