#include "models/gpt/peft/adapter_config.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "core/error.h"
#include "core/io/json.h"
#include "data/tokenizer/split_pattern.h"
#include "models/gpt/hf/fields.h"

namespace lockstep::models {
namespace {

constexpr std::string_view kAllLinear = "all-linear";

// Whether the name's last components are these.
bool EndsWith(const std::string& module, const std::string& end) {
  return module == end || module.ends_with("." + end);
}

// As Python's re.match(r"(.*\.)?(pattern)$"). Patterns are mostly names, and there may be one for
// each module.
bool MatchesEnd(const std::string& pattern, const std::string& module, const char* field) {
  if (pattern.find_first_of("\\^$*+?{}[]|()") != pattern.npos) {
    return FullMatch(StrCat("(?:.*\\.)?(?:", pattern, ")"), module, field);
  }
  if (pattern.size() > module.size()) return false;
  const std::string_view end = std::string_view(module).substr(module.size() - pattern.size());
  const bool whole = end.size() == module.size() || module[module.size() - end.size() - 1] == '.';
  return whole &&
         std::ranges::equal(pattern, end, [](char p, char c) { return p == '.' || p == c; });
}

template <class T>
using ByPattern = std::vector<std::pair<std::string, T>>;

// PEFT's check_target_module_exists: one expression for whole names, or the ends of names.
bool MatchesAny(const std::string& regex, const std::vector<std::string>& ends,
                const std::string& module, const char* field) {
  if (!regex.empty()) return FullMatch(regex, module, field);
  return std::ranges::any_of(ends, [&](const std::string& end) { return EndsWith(module, end); });
}

// The names of a module and of what it is in: "a.b.c", "a.b", "a".
std::vector<std::string> WithParents(std::string module) {
  std::vector<std::string> names = {module};
  for (size_t dot; (dot = module.rfind('.')) != module.npos;) {
    module.resize(dot);
    names.push_back(module);
  }
  return names;
}

// The value of the first pattern that matches, as PEFT's get_pattern_key finds it.
template <class T>
T ValueFor(const ByPattern<T>& patterns, const char* field, const std::string& module,
           T otherwise) {
  const auto it = std::ranges::find_if(
      patterns, [&](const auto& one) { return MatchesEnd(one.first, module, field); });
  return it == patterns.end() ? otherwise : it->second;
}

// In the order of the file, `text`, which f.j has lost.
template <class T>
ByPattern<T> Patterns(const Fields& f, const std::string& text, const char* key) {
  ByPattern<T> out;
  const Fields object = f.Object(key);
  if (object.j.empty()) return out;
  const auto ordered = OrderedJson::parse(text);
  for (const auto& [pattern, value] : ordered[key].items()) {
    if constexpr (std::is_integral_v<T>) {
      out.emplace_back(pattern, object.Integer(pattern.c_str()));
    } else {
      out.emplace_back(pattern, object.Number(pattern.c_str(), 0));
    }
    // A pattern that does not compile is an error now.
    FullMatch(pattern, "", StrCat(f.source, ": \"", key, "\""));
  }
  return out;
}

std::vector<std::string> Names(const Fields& f, const char* key) {
  std::vector<std::string> out;
  for (const Json& name : f.Array(key)) {
    if (!name.is_string()) f.Fail(key, "must be a list of strings");
    out.push_back(name);
  }
  std::sort(out.begin(), out.end());  // PEFT's order is that of a set
  return out;
}

// A text, which is a regular expression, or a list of names.
void ReadModules(const Fields& f, const char* key, std::string* regex,
                 std::vector<std::string>* names) {
  if (!f.Has(key) || !f.j[key].is_string()) {
    *names = Names(f, key);
    return;
  }
  *regex = f.j[key];
  FullMatch(*regex, "", StrCat(f.source, ": \"", key, "\""));
}

// One of its kind or a list of them.
Json ListOf(const Fields& f, const char* key) {
  if (!f.Has(key)) return Json::array();
  return f.j[key].is_array() ? f.j[key] : Json::array({f.j[key]});
}

void ReadLayers(const Fields& f, PeftConfig* c) {
  for (const Json& layer : ListOf(f, "layers_to_transform")) {
    if (!layer.is_number_integer()) f.Fail("layers_to_transform", "must be integers");
    c->layers_to_transform.push_back(layer);
  }
  for (const Json& pattern : ListOf(f, "layers_pattern")) {
    if (!pattern.is_string()) f.Fail("layers_pattern", "must be strings");
    c->layers_pattern.push_back(pattern);
    FullMatch(pattern, "", StrCat(f.source, ": \"layers_pattern\""));
  }
  if (!c->target_regex.empty() && f.Has("layers_to_transform")) {
    f.Fail("layers_to_transform", "needs a list of names in \"target_modules\", as in PEFT");
  }
  if (!c->layers_pattern.empty() && !f.Has("layers_to_transform")) {
    f.Fail("layers_pattern", "needs \"layers_to_transform\", as in PEFT");
  }
}

// Fields that change nothing in what the adapter of a file computes.
const std::set<std::string> kWithoutEffect = {
    "auto_mapping",   "peft_version",      "revision",           "inference_mode", "lora_dropout",
    "megatron_core",  "runtime_config",    "loftq_config",       "eva_config",     "corda_config",
    "lora_ga_config", "qalora_group_size", "ensure_weight_tying"};
const std::set<std::string> kUnderstood = {
    "peft_type",         "task_type",       "base_model_name_or_path", "r",
    "lora_alpha",        "use_rslora",      "fan_in_fan_out",          "rank_pattern",
    "alpha_pattern",     "target_modules",  "modules_to_save",         "bias",
    "init_lora_weights", "exclude_modules", "layers_to_transform",     "layers_pattern"};

bool IsOff(const Json& value) {
  return value.is_null() || value == false ||
         ((value.is_object() || value.is_array()) && value.empty());
}

void CheckKind(const Fields& f) {
  if (const std::string type = f.Text("peft_type", "LORA"); type != "LORA") {
    f.Fail("peft_type", StrCat("is ", Quoted(type), "; only \"LORA\" is supported"));
  }
  f.Expect("task_type", "CAUSAL_LM");
  f.Expect("bias", "none");
  // Others take something out of the base's weights, which the adapter then belongs to.
  if (f.Has("init_lora_weights") && !f.j["init_lora_weights"].is_boolean()) {
    const std::string init = f.Text("init_lora_weights", "");
    const bool keeps_base = init == "gaussian" || init == "orthogonal" || init == "eva";
    if (!keeps_base) {
      f.Fail("init_lora_weights",
             StrCat("is ", Quoted(init), ", which changes the base's weights: convert the adapter ",
                    "with PEFT (save_pretrained with path_initial_model_for_weight_conversion)"));
    }
  }
  for (const auto& [key, value] : f.j.items()) {
    if (IsOff(value) || kUnderstood.contains(key) || kWithoutEffect.contains(key)) continue;
    f.Fail(key.c_str(), StrCat("is ", value.dump(), "; Lockstep has no such adapters"));
  }
}

}  // namespace

bool FullMatch(const std::string& pattern, const std::string& text, const std::string& where) {
  bool found = false;
  data::SplitPattern::Compile(StrCat("\\A(?:", pattern, ")\\z"), where)
      ->Cut(text, [&](std::string_view, bool is_match) { found = found || is_match; });
  return found;
}

int64_t PeftConfig::RankOf(const std::string& module) const {
  return ValueFor(rank_pattern, "rank_pattern", module, rank);
}

double PeftConfig::ScaleOf(const std::string& module) const {
  const double a = ValueFor(alpha_pattern, "alpha_pattern", module, alpha);
  const auto r = static_cast<double>(RankOf(module));
  return a / (rank_stabilized ? std::sqrt(r) : r);
}

bool PeftConfig::TransformsLayerOf(const std::string& module) const {
  if (layers_to_transform.empty()) return true;
  std::vector<std::string> names = WithParents(module);
  std::ranges::reverse(names);
  for (size_t i = 1; i + 1 < names.size(); ++i) {
    const std::string layer = names[i].substr(names[i - 1].size() + 1);
    const bool number = std::ranges::all_of(layer, [](char c) { return c >= '0' && c <= '9'; });
    const bool follows = layers_pattern.empty()
                             ? i > 1
                             : std::ranges::any_of(layers_pattern, [&](const std::string& pattern) {
                                 return MatchesEnd(pattern, names[i - 1], "layers_pattern");
                               });
    if (!number || layer.empty() || !follows) continue;
    return std::ranges::find(layers_to_transform, std::stoll(layer)) != layers_to_transform.end();
  }
  return false;
}

bool PeftConfig::Targets(const std::string& module) const {
  if (MatchesAny(exclude_regex, exclude_modules, module, "exclude_modules")) return false;
  for (const std::string& name : WithParents(module)) {
    const auto saves = [&](const std::string& m) { return MatchesEnd(m, name, "modules_to_save"); };
    if (std::ranges::any_of(modules_to_save, saves)) return false;
  }
  if (!target_regex.empty() || std::ranges::find(target_modules, module) != target_modules.end()) {
    return target_regex == kAllLinear || target_regex.empty() ||
           FullMatch(target_regex, module, "target_modules");
  }
  return MatchesAny("", target_modules, module, "target_modules") && TransformsLayerOf(module);
}

// PEFT asks for the end of a name here, which need not be whole components ("head").
bool PeftConfig::Saves(const std::string& module) const {
  const std::vector<std::string> names = WithParents(module);
  return std::ranges::any_of(modules_to_save, [&](const std::string& end) {
    return std::ranges::any_of(names, [&](const auto& name) { return name.ends_with(end); });
  });
}

PeftConfig ParsePeftConfig(const std::string& text, const std::string& source) {
  const Json j = ParseJson(text, source);
  if (!j.is_object()) throw InputError(StrCat(source, ": not a JSON object"));
  const Fields f{j, source};
  CheckKind(f);
  PeftConfig c;
  c.base = f.Text("base_model_name_or_path", "");
  c.rank = f.Integer("r", c.rank);
  c.alpha = f.Number("lora_alpha", c.alpha);
  c.dropout = f.Number("lora_dropout", 0);
  c.rank_stabilized = f.Bool("use_rslora", false);
  c.fan_in_fan_out = f.Bool("fan_in_fan_out", false);
  c.rank_pattern = Patterns<int64_t>(f, text, "rank_pattern");
  c.alpha_pattern = Patterns<double>(f, text, "alpha_pattern");
  if (c.rank < 1) f.Fail("r", "must be at least 1");
  for (const auto& [pattern, rank] : c.rank_pattern) {
    if (rank < 1)
      f.Fail("rank_pattern",
             StrCat("has ", rank, " for ", Quoted(pattern), "; a rank is at least 1"));
  }
  if (!(c.dropout >= 0 && c.dropout < 1)) f.Fail("lora_dropout", "must be from 0 to below 1");
  ReadModules(f, "target_modules", &c.target_regex, &c.target_modules);
  if (std::ranges::equal(c.target_regex, kAllLinear, {}, [](char x) { return std::tolower(x); })) {
    c.target_regex = kAllLinear;
  }
  ReadModules(f, "exclude_modules", &c.exclude_regex, &c.exclude_modules);
  ReadLayers(f, &c);
  c.modules_to_save = Names(f, "modules_to_save");
  return c;
}

std::string ToJson(const PeftConfig& c) {
  // A whole number is one in the file, as PEFT writes it.
  const auto number = [](double x) {
    return x == std::floor(x) && std::abs(x) < 1e15 ? OrderedJson(static_cast<int64_t>(x))
                                                    : OrderedJson(x);
  };
  OrderedJson ranks = OrderedJson::object(), alphas = OrderedJson::object();
  for (const auto& [pattern, rank] : c.rank_pattern) ranks[pattern] = rank;
  for (const auto& [pattern, alpha] : c.alpha_pattern) alphas[pattern] = number(alpha);
  OrderedJson j = {{"peft_type", "LORA"},
                   {"task_type", "CAUSAL_LM"},
                   {"base_model_name_or_path", c.base},
                   {"r", c.rank},
                   {"lora_alpha", number(c.alpha)},
                   {"lora_dropout", c.dropout},
                   {"use_rslora", c.rank_stabilized},
                   {"fan_in_fan_out", c.fan_in_fan_out},
                   {"rank_pattern", ranks},
                   {"alpha_pattern", alphas},
                   {"modules_to_save", nullptr},
                   {"bias", "none"},
                   {"inference_mode", true}};
  j["target_modules"] = c.target_modules;
  if (!c.target_regex.empty()) j["target_modules"] = c.target_regex;
  if (!c.exclude_modules.empty()) j["exclude_modules"] = c.exclude_modules;
  if (!c.exclude_regex.empty()) j["exclude_modules"] = c.exclude_regex;
  if (!c.layers_to_transform.empty()) {
    j["layers_to_transform"] = c.layers_to_transform;
    if (!c.layers_pattern.empty()) j["layers_pattern"] = c.layers_pattern;
  }
  if (!c.modules_to_save.empty()) j["modules_to_save"] = c.modules_to_save;
  return j.dump(2) + "\n";
}

}  // namespace lockstep::models
