#include "data/text/decompressor.h"

#define ZLIB_CONST
#include <zlib.h>
#include <zstd.h>
#include <zstd_errors.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <new>

#include "core/error.h"

namespace lockstep::data {
namespace {

[[noreturn]] void ThrowDamaged(const RawInput& input, std::string_view format,
                               std::string_view reason) {
  throw InputError(StrCat(input.path(), ": damaged ", format, " data before byte ",
                          input.bytes_read(), ": ", reason, "; write or download the file again"));
}

[[noreturn]] void ThrowTruncated(const RawInput& input, std::string_view format) {
  throw InputError(StrCat(input.path(), ": the ", format, " data ends too early, after ",
                          input.bytes_read(),
                          " bytes: the file is truncated; write or download it again"));
}

class Plain : public Decompressor {
 public:
  explicit Plain(RawInput* input) : input_(*input) {}

  size_t Read(std::span<char> out) override {
    const std::span<const char> next = input_.Peek();
    const size_t n = std::min(out.size(), next.size());
    std::copy_n(next.begin(), n, out.begin());
    input_.Skip(n);
    return n;
  }

 private:
  RawInput& input_;
};

class Gzip : public Decompressor {
 public:
  explicit Gzip(RawInput* input) : input_(*input) {
    constexpr int kGzipOnly = 16;
    if (inflateInit2(&stream_, MAX_WBITS + kGzipOnly) != Z_OK) throw std::bad_alloc();
  }
  ~Gzip() override { inflateEnd(&stream_); }

  size_t Read(std::span<char> out) override {
    size_t n = 0;
    while (n == 0) {
      if (at_end_of_member_ && !BeginMember()) return 0;
      const std::span<const char> next = input_.Peek();
      if (next.empty()) ThrowTruncated(input_, "gzip");
      stream_.next_in = reinterpret_cast<const Bytef*>(next.data());
      stream_.avail_in = static_cast<uInt>(next.size());
      stream_.next_out = reinterpret_cast<Bytef*>(out.data());
      stream_.avail_out = static_cast<uInt>(std::min<size_t>(out.size(), 1 << 30));
      const uInt space = stream_.avail_out;
      const int rc = inflate(&stream_, Z_NO_FLUSH);
      if (rc == Z_MEM_ERROR) throw std::bad_alloc();
      if (rc != Z_OK && rc != Z_STREAM_END) {
        ThrowDamaged(input_, "gzip", stream_.msg != nullptr ? stream_.msg : "an invalid stream");
      }
      input_.Skip(next.size() - stream_.avail_in);
      n = space - stream_.avail_out;
      at_end_of_member_ = rc == Z_STREAM_END;
    }
    return n;
  }

 private:
  // False at the end of the input. Zeros may follow the last member, as on tapes.
  bool BeginMember() {
    std::span<const char> next = input_.Peek(2);
    while (!next.empty() && next[0] == '\0') {
      input_.Skip(std::ranges::find_if(next, [](char c) { return c != '\0'; }) - next.begin());
      next = input_.Peek(2);
    }
    if (next.empty()) return false;
    if (inflateReset(&stream_) != Z_OK) throw std::bad_alloc();
    return true;
  }

  RawInput& input_;
  z_stream stream_{};
  bool at_end_of_member_ = true;
};

class Zstd : public Decompressor {
 public:
  Zstd(RawInput* input, std::function<void(const std::string&)> warn)
      : input_(*input), warn_(std::move(warn)), context_(ZSTD_createDCtx()) {
    if (context_ == nullptr) throw std::bad_alloc();
  }
  ~Zstd() override { ZSTD_freeDCtx(context_); }

  size_t Read(std::span<char> out) override {
    ZSTD_outBuffer output{out.data(), out.size(), 0};
    while (output.pos == 0) {
      // A frame's header is read in one piece, so that it can be read again.
      const std::span<const char> next = input_.Peek(at_frame_ ? kMaxHeaderBytes : 1);
      if (next.empty() && at_frame_) return 0;
      ZSTD_inBuffer piece{next.data(), next.size(), 0};
      const size_t rc = ZSTD_decompressStream(context_, &output, &piece);
      if (ZSTD_isError(rc)) {
        if (AllowLargerWindow(rc)) continue;
        ThrowDamaged(input_, "Zstandard", ZSTD_getErrorName(rc));
      }
      if (next.empty() && output.pos == 0) ThrowTruncated(input_, "Zstandard");
      input_.Skip(piece.pos);
      at_frame_ = rc == 0;
    }
    return output.pos;
  }

 private:
  static constexpr size_t kMaxHeaderBytes = 18;
  static constexpr int kMaxWindowLog = 31;  // what `zstd --long=31` needs, the largest there is

  bool AllowLargerWindow(size_t error) {
    if (ZSTD_getErrorCode(error) != ZSTD_error_frameParameter_windowTooLarge) return false;
    if (!at_frame_ || large_window_) return false;
    large_window_ = true;
    ZSTD_DCtx_reset(context_, ZSTD_reset_session_only);
    ZSTD_DCtx_setParameter(context_, ZSTD_d_windowLogMax, kMaxWindowLog);
    if (warn_) {
      warn_(StrCat(input_.path(), ": compressed with a window of more than 128 MiB (zstd --long); ",
                   "decompressing it takes as much memory, up to 2 GiB"));
    }
    return true;
  }

  RawInput& input_;
  std::function<void(const std::string&)> warn_;
  ZSTD_DCtx* context_;
  bool at_frame_ = true;  // the next byte begins a frame
  bool large_window_ = false;
};

bool BeginsZstdFrame(std::span<const char> bytes) {
  if (bytes.size() < 4) return false;
  uint32_t magic;
  std::memcpy(&magic, bytes.data(), sizeof(magic));
  return magic == ZSTD_MAGICNUMBER ||
         (magic & ZSTD_MAGIC_SKIPPABLE_MASK) == ZSTD_MAGIC_SKIPPABLE_START;
}

}  // namespace

bool HasCompressedName(std::string_view path) {
  return path.ends_with(".gz") || path.ends_with(".zst");
}

std::string_view WithoutCompressedSuffix(std::string_view path) {
  return HasCompressedName(path) ? path.substr(0, path.rfind('.')) : path;
}

std::unique_ptr<Decompressor> Decompress(RawInput* input,
                                         std::function<void(const std::string&)> warn) {
  const std::span<const char> first = input->Peek(4);
  if (first.size() >= 2 && first[0] == '\x1f' && first[1] == '\x8b') {
    return std::make_unique<Gzip>(input);
  }
  if (BeginsZstdFrame(first)) return std::make_unique<Zstd>(input, std::move(warn));
  if (HasCompressedName(input->path())) {
    throw InputError(StrCat(input->path(), ": its name promises gzip or Zstandard, but ",
                            first.empty() ? "the file is empty" : "its first bytes are neither's",
                            "; rename it, or write or download it again"));
  }
  return std::make_unique<Plain>(input);
}

}  // namespace lockstep::data
