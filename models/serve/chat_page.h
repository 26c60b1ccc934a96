// The page on which one tries the model.
#pragma once

#include <string_view>

namespace lockstep::models {

// One HTML file that needs nothing else than the server that it comes from.
std::string_view ChatPage();

}  // namespace lockstep::models
