// TensorBoard's event files: TFRecords of Event messages (tensorflow/core/util/event.proto). Only
// scalars and texts are supported.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::models {

// CRC-32C (Castagnoli), RFC 3720 appendix B.4, as in TFRecord files.
uint32_t Crc32c(std::string_view bytes);
// The form in which it is stored with the bytes: rotated right by 15 bits, plus a constant, since a
// CRC is weak for data that contains CRCs.
uint32_t MaskedCrc32c(std::string_view bytes);

// One value of an event: a scalar, or a text that TensorBoard shows as Markdown.
struct SummaryValue {
  std::string tag;
  float scalar = 0;
  std::string text;
  bool is_text = false;
};

// Serialised Event messages. Bytes that are not UTF-8, which protobuf requires, become U+FFFD.
std::string VersionEvent(double unix_time);  // the first of every file
std::string SummaryEvent(double unix_time, int64_t step, const std::vector<SummaryValue>& values);

// A TFRecord: length, its masked CRC-32C, the data, its masked CRC-32C; little-endian.
std::string Record(std::string_view data);

// An event in a file, with the fields that we write.
struct Event {
  double unix_time = 0;
  int64_t step = 0;
  std::string file_version;  // of the first event
  std::vector<SummaryValue> values;
  int64_t end = 0;  // of its record: byte offset in the file
};
// The events before the first record that is truncated or damaged; `good_bytes` is where that
// starts, or the size.
std::vector<Event> ParseEventFile(std::string_view file, int64_t* good_bytes);

}  // namespace lockstep::models
