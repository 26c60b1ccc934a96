#include "data/mixture.h"

#include <algorithm>
#include <numeric>

#include "core/error.h"

namespace lockstep::data {
namespace {

constexpr int64_t kMaxPeriod = int64_t{1} << 20;
constexpr size_t kMaxDigits = 9;

// A weight as a whole number of 10^-kMaxDigits.
int64_t ParseWeight(std::string_view text, std::string_view item) {
  const size_t point = std::min(text.find('.'), text.size());
  std::string whole(text.substr(0, point));
  std::string fraction(text.substr(std::min(point + 1, text.size())));
  const std::string digits = whole + fraction;
  if (digits.empty() || digits.find_first_not_of("0123456789") != std::string::npos ||
      whole.size() > kMaxDigits || fraction.size() > kMaxDigits) {
    throw InputError(StrCat("data.mix: \"", item, "\": the weight must be a decimal number of at ",
                            "most ", kMaxDigits, " digits before and after the point, such as ",
                            "web.bin:0.7"));
  }
  fraction.resize(kMaxDigits, '0');
  const int64_t weight = std::stoll(whole + fraction);
  if (weight == 0) {
    throw InputError(StrCat("data.mix: \"", item, "\": the weight is 0; leave this source out"));
  }
  return weight;
}

std::string_view Trim(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(" \t\n"), text.size()));
  return text.substr(0, text.find_last_not_of(" \t\n") + 1);
}

}  // namespace

std::vector<MixtureItem> ParseMixture(std::string_view text) {
  std::vector<MixtureItem> items;
  while (true) {
    const size_t comma = std::min(text.find(','), text.size());
    const std::string_view item = Trim(text.substr(0, comma));
    const size_t colon = item.rfind(':');
    if (colon == std::string_view::npos || colon == 0) {
      throw InputError(StrCat("data.mix: \"", item, "\": expected path:weight, several of them ",
                              "separated by commas: \"web.bin:0.7,code.bin:0.3\""));
    }
    std::string path(item.substr(0, colon));
    if (std::ranges::find(items, path, &MixtureItem::path) != items.end()) {
      throw InputError(StrCat("data.mix: ", path, " is there twice; add up its weights"));
    }
    items.push_back({std::move(path), ParseWeight(item.substr(colon + 1), item)});
    if (comma == text.size()) break;
    text.remove_prefix(comma + 1);
  }
  int64_t divisor = 0, sum = 0;
  for (const MixtureItem& item : items) divisor = std::gcd(divisor, item.weight);
  for (MixtureItem& item : items) {
    item.weight /= divisor;
    if (item.weight > kMaxPeriod || (sum += item.weight) > kMaxPeriod) {
      throw InputError(StrCat("data.mix: these weights are too precise: their smallest ratio in ",
                              "whole numbers adds up to more than ", kMaxPeriod,
                              "; round them, to three digits for example"));
    }
  }
  return items;
}

MixtureSchedule::MixtureSchedule(std::vector<int64_t> weights) : weights_(std::move(weights)) {
  int64_t period = 0;
  for (const int64_t weight : weights_) {
    LS_CHECK(weight >= 1 && weight <= kMaxPeriod, "a weight is ", weight, ": expected 1 to ",
             kMaxPeriod);
    period += weight;
  }
  LS_CHECK(period >= 1 && period <= kMaxPeriod, "the weights' sum is ", period, ": expected 1 to ",
           kMaxPeriod);
  std::vector<int32_t> taken(weights_.size());
  slots_.reserve(period);
  for (int64_t slot = 0; slot < period; ++slot) {
    int64_t best = -1, best_end = 0;
    for (size_t i = 0; i < weights_.size(); ++i) {
      const int64_t w = weights_[i], j = taken[i];
      if (j >= w || j * period / w > slot) continue;
      const int64_t end = ((j + 1) * period + w - 1) / w;
      if (best < 0 || end < best_end) {
        best = static_cast<int64_t>(i);
        best_end = end;
      }
    }
    LS_INVARIANT(best >= 0 && best_end > slot, "slot ", slot, " of ", period);
    slots_.push_back({static_cast<int32_t>(best), taken[best]++});
  }
}

MixtureSchedule::Place MixtureSchedule::operator()(int64_t sample) const {
  const auto period = static_cast<int64_t>(slots_.size());
  const Slot slot = slots_[sample % period];
  return {slot.source, sample / period * weights_[slot.source] + slot.index};
}

std::vector<int64_t> MixtureSchedule::CountsOf(int64_t count) const {
  const auto period = static_cast<int64_t>(slots_.size());
  std::vector<int64_t> counts = weights_;
  for (int64_t& n : counts) n *= count / period;
  for (int64_t i = 0; i < count % period; ++i) ++counts[slots_[i].source];
  return counts;
}

}  // namespace lockstep::data
