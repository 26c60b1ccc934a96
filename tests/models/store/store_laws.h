// What every ObjectStore does.
#pragma once

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "models/store/object_store.h"

namespace lockstep::test {

inline void PutText(models::ObjectStore& store, const std::string& name, std::string_view text) {
  store.Put(name, std::as_bytes(std::span(text)));
}

inline std::optional<std::string> TextOf(models::ObjectStore& store, const std::string& name) {
  std::string text;
  const bool there = store.Get(name, [&](std::span<const std::byte> bytes) {
    text.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  });
  return there ? std::optional(text) : std::nullopt;
}

inline std::vector<std::string> NamesOf(models::ObjectStore& store, const std::string& prefix) {
  std::vector<std::string> names;
  for (const auto& object : store.List(prefix)) names.push_back(object.name);
  return names;
}

// A text of n bytes, no two parts of which are alike.
inline std::string TextOfSize(size_t n) {
  std::string text;
  for (uint32_t x = 1; text.size() < n; x = x * 1664525 + 1013904223) {
    text.push_back(static_cast<char>(x >> 24));
  }
  return text;
}

// On an empty store whose parts have `part` bytes.
inline void CheckLaws(models::ObjectStore& store, size_t part = 1000) {
  using ::testing::ElementsAre;
  EXPECT_EQ(TextOf(store, "none"), std::nullopt);
  EXPECT_THAT(store.List(""), ::testing::SizeIs(0));
  store.Remove("none");
  models::CheckWritable(store);
  EXPECT_THAT(store.List(""), ::testing::SizeIs(0));
  // Of every size: in one part, in two, in more than go together.
  for (const size_t bytes : {size_t{0}, size_t{1}, part - 1, part, part + 1, 9 * part + 7}) {
    const std::string text = TextOfSize(bytes);
    PutText(store, "a/file", text);
    EXPECT_EQ(TextOf(store, "a/file"), text) << bytes;
    const auto listed = store.List("a/");
    ASSERT_EQ(listed.size(), 1u);
    EXPECT_EQ(listed[0].bytes, static_cast<int64_t>(bytes));
  }
  const std::vector<std::string> odd = {"a/ b", "a/+=&?#%20", "a/Zürich'\"", "a/x<y>&amp;"};
  for (const std::string& name : odd) PutText(store, name, name);
  PutText(store, "ab", "");
  EXPECT_THAT(NamesOf(store, "a/"),
              ElementsAre("a/ b", "a/+=&?#%20", "a/Zürich'\"", "a/file", "a/x<y>&amp;"));
  for (const std::string& name : odd) {
    EXPECT_EQ(TextOf(store, name), name);
    store.Remove(name);
  }
  EXPECT_THAT(NamesOf(store, ""), ElementsAre("a/file", "ab"));
  store.RemoveUnfinished();
  store.Remove("a/file");
  store.Remove("ab");
  EXPECT_THAT(store.List(""), ::testing::SizeIs(0));
}

}  // namespace lockstep::test
