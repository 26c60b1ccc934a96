// Reading the answer to a sum in words out of a text, by lm-evaluation-harness' rules for GSM8K.
#pragma once

#include <string>
#include <string_view>

namespace lockstep::models {

// The number after the first "#### "; "[invalid]" without one.
std::string StrictAnswer(std::string_view text);
// The last number, whatever stands before it; "[invalid]" without one.
std::string FlexibleAnswer(std::string_view text);
// Whether an answer is that of the reference, which gives it after its last "#### ": without
// commas, dollar signs and a final point, in either case.
bool IsExactMatch(std::string_view answer, std::string_view reference);

}  // namespace lockstep::models
