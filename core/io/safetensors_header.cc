#include "core/io/safetensors_header.h"

#include <limits>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/io/json.h"

namespace lockstep {
namespace {

using Library = nlohmann::json;

// Receives nlohmann's parse events; stops at the first thing that the format does not allow.
class HeaderHandler : public nlohmann::json_sax<Library> {
 public:
  HeaderHandler(const std::string& source, SafetensorsRawHeader* header)
      : source_(source), header_(header) {}

  bool null() override { return Unexpected("null"); }
  bool boolean(bool) override { return Unexpected("a boolean"); }
  bool binary(binary_t&) override { return Unexpected("binary data"); }

  bool number_integer(number_integer_t value) override {  // only negative numbers come here
    if (place_ != Place::kShape && place_ != Place::kOffsets) return Unexpected("a number");
    Fail(Field(), "is negative: ", value);
  }

  bool number_unsigned(number_unsigned_t value) override {
    if (place_ == Place::kShape) {
      if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
        Fail(Field(), "is too large: ", value);
      }
      entry().shape.push_back(static_cast<int64_t>(value));
    } else if (place_ == Place::kOffsets) {
      if (offsets_ == 2) Fail(Field(), "has more than two numbers");
      (offsets_++ == 0 ? entry().begin : entry().end) = value;
    } else {
      return Unexpected("a number");
    }
    return true;
  }

  bool number_float(number_float_t, const string_t& text) override {
    if (place_ != Place::kShape && place_ != Place::kOffsets) return Unexpected("a number");
    Fail(Field(), "is not an integer below 2^64: ", Quoted(text));
  }

  bool string(string_t& value) override {
    if (place_ == Place::kMetadata) {
      if (!header_->metadata.emplace(key_, value).second) {
        Fail("__metadata__: ", "the key ", Quoted(key_), " appears twice");
      }
    } else if (place_ == Place::kEntry && key_ == "dtype") {
      entry().dtype = value;
    } else {
      return Unexpected("a string");
    }
    return true;
  }

  bool key(string_t& value) override {
    key_ = value;
    if (place_ == Place::kTop) {
      name_ = value;
    } else if (place_ == Place::kEntry) {
      unsigned bit = 0;
      if (value == "dtype") bit = kDTypeSeen;
      if (value == "shape") bit = kShapeSeen;
      if (value == "data_offsets") bit = kOffsetsSeen;
      if (bit == 0) Fail(Tensor(), "has the unknown field ", Quoted(value));
      if ((seen_ & bit) != 0) Fail(Tensor(), "has the field ", Quoted(value), " twice");
      seen_ |= bit;
    }
    return true;
  }

  bool start_object(size_t) override {
    if (place_ == Place::kStart) {
      place_ = Place::kTop;
    } else if (place_ == Place::kTop && name_ == "__metadata__") {
      if (metadata_seen_) Fail("", "__metadata__ appears twice");
      metadata_seen_ = true;
      place_ = Place::kMetadata;
    } else if (place_ == Place::kTop) {
      header_->entries.emplace_back().name = name_;
      seen_ = 0;
      offsets_ = 0;
      place_ = Place::kEntry;
    } else {
      return Unexpected("an object");
    }
    return true;
  }

  bool end_object() override {
    if (place_ == Place::kEntry) {
      if ((seen_ & kDTypeSeen) == 0) Fail(Tensor(), "has no dtype");
      if ((seen_ & kShapeSeen) == 0) Fail(Tensor(), "has no shape");
      if ((seen_ & kOffsetsSeen) == 0) Fail(Tensor(), "has no data_offsets");
    }
    place_ = place_ == Place::kTop ? Place::kDone : Place::kTop;
    return true;
  }

  bool start_array(size_t) override {
    if (place_ == Place::kEntry && key_ == "shape") {
      place_ = Place::kShape;
    } else if (place_ == Place::kEntry && key_ == "data_offsets") {
      place_ = Place::kOffsets;
    } else {
      return Unexpected("an array");
    }
    return true;
  }

  bool end_array() override {
    if (place_ == Place::kOffsets && offsets_ != 2) Fail(Field(), "has fewer than two numbers");
    place_ = Place::kEntry;
    return true;
  }

  bool parse_error(size_t position, const std::string&,
                   const nlohmann::detail::exception& error) override {
    Fail("", "not valid JSON at byte ", 8 + position, " of the file: ", error.what());
  }

 private:
  enum class Place { kStart, kTop, kMetadata, kEntry, kShape, kOffsets, kDone };
  static constexpr unsigned kDTypeSeen = 1, kShapeSeen = 2, kOffsetsSeen = 4;

  template <class... What>
  [[noreturn]] void Fail(const std::string& where, const What&... what) {
    throw InputError(StrCat(source_, ": header: ", where, what...));
  }

  std::string Tensor() const { return StrCat("tensor ", Quoted(name_), " "); }
  std::string Field() const { return StrCat("tensor ", Quoted(name_), ", ", key_, ": "); }

  // A value of the wrong kind, in any place.
  bool Unexpected(std::string_view kind) {
    switch (place_) {
      case Place::kTop:
        Fail(name_ == "__metadata__" ? "__metadata__ " : Tensor(), "must be an object, not ", kind);
      case Place::kMetadata:
        Fail("__metadata__: ", "the value of ", Quoted(key_), " must be a string, not ", kind);
      case Place::kEntry:
        Fail(Field(), "must be ", key_ == "dtype" ? "a string" : "an array of integers", ", not ",
             kind);
      case Place::kShape:
      case Place::kOffsets:
        Fail(Field(), "must hold integers only, not ", kind);
      case Place::kStart:
      case Place::kDone:
        break;
    }
    Fail("", "must be one JSON object, not ", kind);
  }

  SafetensorsRawEntry& entry() { return header_->entries.back(); }

  const std::string& source_;
  SafetensorsRawHeader* header_;
  Place place_ = Place::kStart;
  std::string name_;  // of the last key at the top
  std::string key_;   // the last key at any depth
  unsigned seen_ = 0;
  int offsets_ = 0;
  bool metadata_seen_ = false;
};

}  // namespace

SafetensorsRawHeader ParseSafetensorsHeader(std::string_view text, const std::string& source) {
  SafetensorsRawHeader header;
  HeaderHandler handler(source, &header);
  Library::sax_parse(text.begin(), text.end(), &handler);
  return header;
}

}  // namespace lockstep
