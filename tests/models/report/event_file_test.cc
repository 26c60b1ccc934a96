#include "models/report/event_file.h"

#include <gtest/gtest.h>

namespace lockstep::models {
namespace {

std::string Unhex(std::string_view hex) {
  std::string bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes += static_cast<char>(std::stoi(std::string(hex.substr(i, 2)), nullptr, 16));
  }
  return bytes;
}

// RFC 3720, appendix B.4, and the catalogue's check value.
TEST(Crc32c, KnownAnswers) {
  EXPECT_EQ(Crc32c(""), 0u);
  EXPECT_EQ(Crc32c("123456789"), 0xe3069283u);
  EXPECT_EQ(Crc32c(std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(Crc32c(std::string(32, '\xff')), 0x62a8ab43u);
  std::string up, down;
  for (int i = 0; i < 32; ++i) {
    up += static_cast<char>(i);
    down += static_cast<char>(31 - i);
  }
  EXPECT_EQ(Crc32c(up), 0x46dd794eu);
  EXPECT_EQ(Crc32c(down), 0x113fdb5cu);
}

// The bytes that TensorBoard's own protobuf classes and TFRecord writer make from the same events
// (tests/peers/tensorboard_events.py --golden).
TEST(EventFile, BytesAreTensorBoards) {
  EXPECT_EQ(
      Record(VersionEvent(1.5)),
      Unhex("1800000000000000a37f4b2209000000000000f83f1a0d627261696e2e4576656e743a322a28646c"));
  EXPECT_EQ(Record(SummaryEvent(2.25, 300, {{"train/loss", 3.5F, {}}, {"lr", 1e-3F, {}}})),
            Unhex("2c00000000000000f4aecc4509000000000000024010ac022a1e0a110a0a747261696e2f6c6f7373"
                  "15000060400a090a026c72156f12833ad592df9a"));
  EXPECT_EQ(Record(SummaryEvent(4, 7, {{"sample", 0, "a \xc3\xa9\n    b", true}})),
            Unhex("39000000000000008b0737f109000000000000104010072a2c0a2a0a0673616d706c654214080712"
                  "0412020801420a6120c3a90a20202020624a0a0a060a04746578742002ebca57c0"));
}

std::string File() {
  return Record(VersionEvent(1)) + Record(SummaryEvent(2, 10, {{"loss", 0.5F, {}}})) +
         Record(SummaryEvent(3, 11, {{"loss", -0.25F, {}}, {"text", 0, "hello", true}}));
}

TEST(EventFile, ReadsBackWhatItWrote) {
  const std::string file = File();
  int64_t good = 0;
  const std::vector<Event> events = ParseEventFile(file, &good);
  EXPECT_EQ(good, static_cast<int64_t>(file.size()));
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[0].file_version, "brain.Event:2");
  EXPECT_EQ(events[1].step, 10);
  EXPECT_EQ(events[1].unix_time, 2);
  ASSERT_EQ(events[2].values.size(), 2u);
  EXPECT_EQ(events[2].values[0].scalar, -0.25F);
  EXPECT_FALSE(events[2].values[0].is_text);
  EXPECT_EQ(events[2].values[1].text, "hello");
  EXPECT_TRUE(events[2].values[1].is_text);
  EXPECT_EQ(events[2].end, good);
}

// With any bit flipped, or truncated anywhere, reading stops before the record without a crash.
TEST(EventFile, StopsAtDamage) {
  const std::string file = File();
  int64_t good = 0;
  const int64_t first = ParseEventFile(file, &good)[0].end,
                second = ParseEventFile(file, &good)[1].end;
  for (size_t byte = static_cast<size_t>(first); byte < static_cast<size_t>(second); ++byte) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string damaged = file;
      damaged[byte] = static_cast<char>(damaged[byte] ^ (1 << bit));
      EXPECT_EQ(ParseEventFile(damaged, &good).size(), 1u);
      EXPECT_EQ(good, first);
    }
  }
  for (size_t size = 0; size < file.size(); ++size) {
    const size_t whole = ParseEventFile(file.substr(0, size), &good).size();
    EXPECT_EQ(whole, size < static_cast<size_t>(first)    ? 0u
                     : size < static_cast<size_t>(second) ? 1u
                                                          : 2u);
  }
}

TEST(EventFile, StringsAreUtf8WhateverTheModelWrote) {
  int64_t good = 0;
  const std::string file = Record(SummaryEvent(1, 1, {{"sample", 0, "a\xff\xe2\x82z", true}}));
  EXPECT_EQ(ParseEventFile(file, &good)[0].values[0].text,
            "a\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBDz");
}

}  // namespace
}  // namespace lockstep::models
