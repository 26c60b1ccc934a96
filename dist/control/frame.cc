#include "dist/control/frame.h"

#include <cstring>

#include "core/error.h"

namespace lockstep::dist {
namespace {

struct Header {
  uint32_t body_bytes = 0;
  uint32_t kind = 0;
  int32_t from = 0, to = 0;
  uint64_t topic = 0, number = 0;
};
static_assert(sizeof(Header) == kFrameHeader);

}  // namespace

void Encode(const Frame& frame, std::string* out) {
  LS_INVARIANT(frame.body.size() <= Frame::kMaxBody, "a control message of ", frame.body.size(),
               " bytes is too long");
  const Header header{static_cast<uint32_t>(frame.body.size()),
                      static_cast<uint32_t>(frame.kind),
                      frame.from,
                      frame.to,
                      frame.topic,
                      frame.number};
  out->append(reinterpret_cast<const char*>(&header), sizeof(header));
  out->append(frame.body);
}

std::optional<size_t> Decode(std::string_view bytes, Frame* frame) {
  if (bytes.size() < sizeof(Header)) return 0;
  Header header;
  std::memcpy(&header, bytes.data(), sizeof(header));
  if (header.kind > static_cast<uint32_t>(Frame::kLastKind) ||
      header.body_bytes > Frame::kMaxBody || header.from < 0 || header.to < 0) {
    return std::nullopt;
  }
  const size_t size = sizeof(header) + header.body_bytes;
  if (bytes.size() < size) return 0;
  frame->kind = static_cast<Frame::Kind>(header.kind);
  frame->from = header.from;
  frame->to = header.to;
  frame->topic = header.topic;
  frame->number = header.number;
  frame->body = bytes.substr(sizeof(header), header.body_bytes);
  return size;
}

}  // namespace lockstep::dist
