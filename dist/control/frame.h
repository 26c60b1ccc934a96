// The messages of the control plane, and their form on the wire. All ranks run on x86-64.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace lockstep::dist {

struct Frame {
  enum class Kind : uint32_t {
    // How ranks meet (dist/control/control_plane.cc).
    kJoin,     // to rank 0: `from` is here; the body says who it is
    kWelcome,  // from rank 0: all ranks have joined; the body says where the parent is
    kRefusal,  // from rank 0: the ranks cannot meet; the body says why
    kAttach,   // to the parent: `from` is its child; the body names the meeting
    kReady,    // to the parent: the whole subtree is attached
    kGo,       // from the parent: all ranks are attached
    // Between the ends of a connection that is to carry a group's data.
    kData,   // from the one that dials: `from` is here, for the group's `topic`
    kGiven,  // from the other: it has the connection
    // Between neighbours.
    kBeat,  // alive
    kBye,   // to the parent: the subtree has ended its work; to rank 0: the parent is reached
    // Along the tree.
    kMessage,   // from rank `from` to rank `to`
    kQuestion,  // the same, and the other rank answers
    kSurvey,  // to rank 0, which asks the ranks that the body names, and answers with what they say
    kAnswer,  // to the question with that number; topic 0: there is nobody who could answer
    kFail,    // to rank 0: the body is a failure
    kFailed,  // from rank 0 to all: the body is the failure that counts
    kPause,  // to the parent: the subtree's longest pause is what `from` does, in the body's words;
             // the body is empty if there is none any more
    kPaused,  // from rank 0 to all: the same, of all ranks
  };
  static constexpr Kind kLastKind = Kind::kPaused;
  static constexpr size_t kMaxBody = 2 * 1024 * 1024;  // bytes

  Kind kind = Kind::kBeat;
  int32_t from = 0, to = 0;
  // Whom a message or question concerns on the other rank, and a number for them.
  uint64_t topic = 0, number = 0;
  std::string body = {};

  bool operator==(const Frame&) const = default;
};

// The size of a frame without a body.
inline constexpr size_t kFrameHeader = 32;  // bytes
// Appends the frame's bytes.
void Encode(const Frame& frame, std::string* out);
// Reads the first frame of `bytes` into *frame. Returns how many bytes it takes, 0 if it is not yet
// complete, nullopt if no rank sends such bytes.
std::optional<size_t> Decode(std::string_view bytes, Frame* frame);

}  // namespace lockstep::dist
