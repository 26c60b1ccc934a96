// Values of options as text, and text as values. Part of the registry (options.h).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "models/options/options.h"
#include "models/options/toml_reader.h"

namespace lockstep::models {

// The section of a configuration file below which stands what nobody asked for.
inline constexpr std::string_view kDefaults = "default";

// The whole file; InputError if it can't be read or is too large to be a list of options.
std::string ReadConfigurationFile(const std::string& path);

// "an integer", "a number", "true or false", "a string"
std::string TypeWithArticle(const OptionValue& value);
// "train.steps = 1000"
std::string AsToml(std::string_view key, const OptionValue& value);
// As on a command line: strings without quotes.
std::string Bare(const OptionValue& value);

// The value in the type of `like`; an integer also serves as a number. InputError otherwise.
OptionValue FitToml(const TomlEntry& entry, const OptionValue& like);
// The same from the text of an argument or variable; `where` starts the error.
OptionValue ParseValue(const std::string& text, const OptionValue& like, const std::string& where);

// The seconds of "90s", "10m", "1.5h", "2d" or "1h30m"; "" gives 0. Throws InputError; the message
// does not say where the text came from.
double ParseDuration(std::string_view text);

// The words between commas, without spaces: "a" and "b" of "a, b", one empty word of "".
std::vector<std::string> WordsOf(std::string_view list);

// Well-formed UTF-8 without NUL: what a TOML file can hold and what a path can be.
bool IsText(std::string_view text);
// "at least 0 and below 1"
std::string RangeInWords(const OptionSpec& spec);
// "did you mean cosine? It must be one of cosine, linear"
std::string NotAChoice(const std::string& text, const std::vector<std::string>& choices);

}  // namespace lockstep::models
