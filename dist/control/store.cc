#include "dist/control/store.h"

namespace lockstep::dist {

void Store::CheckKey(const std::string& key) {
  LS_CHECK(!key.empty() && key.size() <= kMaxKey, "store: a key must have 1 to ", kMaxKey,
           " bytes, got ", key.size());
}

void Store::CheckValue(const std::string& key, const std::string& value) {
  CheckKey(key);
  LS_CHECK(value.size() <= kMaxValue, "store: the value of '", key, "' has ", value.size(),
           " bytes; at most ", kMaxValue, " are allowed");
}

}  // namespace lockstep::dist
