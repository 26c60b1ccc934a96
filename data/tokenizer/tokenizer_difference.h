// Whether two tokenizers give the same ids.
#pragma once

#include <string>

#include "data/tokenizer/tokenizer.h"

namespace lockstep::data {

// Empty if tokens of `a` can be used as tokens of `b`: their files are equal, or, where the same
// vocabulary is written differently, each id has the same text in both, which encodes to the same
// ids, as does a text of what tokenizers tend to split differently. Otherwise what differs, as the
// end of a message that names `a` and then `b`: "token 7 is \"ab\" in the former and \"ba\" in the
// latter".
std::string DifferenceOf(const Tokenizer& a, const Tokenizer& b);

}  // namespace lockstep::data
