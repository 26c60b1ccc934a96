// How S3 writes names and answers.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lockstep::models {

// Each byte as %XX, but letters, digits and -._~, and "/" if `slash`: as signatures have it.
std::string PercentEncoded(std::string_view text, bool slash = false);
// The inverse, also of "+" for a space.
std::string PercentDecoded(std::string_view text);

// What stands between each <tag> and the next </tag>, as it is: it may have elements in it.
std::vector<std::string> ElementsOf(std::string_view xml, std::string_view tag);
// The text of the first such element; "" if there is none.
std::string ElementOf(std::string_view xml, std::string_view tag);

}  // namespace lockstep::models
