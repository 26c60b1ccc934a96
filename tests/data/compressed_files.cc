#include "tests/data/compressed_files.h"

#define ZLIB_CONST
#include <zlib.h>
#include <zstd.h>

#include <cstdint>

#include "core/error.h"

namespace lockstep::data {

std::string GzipOf(std::string_view text) {
  z_stream stream{};
  LS_INVARIANT(deflateInit2(&stream, 6, Z_DEFLATED, MAX_WBITS + 16, 8, Z_DEFAULT_STRATEGY) == Z_OK);
  std::string out(deflateBound(&stream, text.size()), '\0');
  stream.next_in = reinterpret_cast<const Bytef*>(text.data());
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  LS_INVARIANT(deflate(&stream, Z_FINISH) == Z_STREAM_END);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

std::string ZstdOf(std::string_view text, int window_log) {
  ZSTD_CCtx* const context = ZSTD_createCCtx();
  if (window_log > 0) ZSTD_CCtx_setParameter(context, ZSTD_c_windowLog, window_log);
  std::string out(ZSTD_compressBound(text.size()) + 64, '\0');
  ZSTD_outBuffer output{out.data(), out.size(), 0};
  // In two calls: the size is not known in advance, so the frame keeps its window.
  ZSTD_inBuffer first{text.data(), text.size() / 2, 0};
  ZSTD_inBuffer rest{text.data() + first.size, text.size() - first.size, 0};
  LS_INVARIANT(!ZSTD_isError(ZSTD_compressStream2(context, &output, &first, ZSTD_e_flush)));
  LS_INVARIANT(ZSTD_compressStream2(context, &output, &rest, ZSTD_e_end) == 0);
  out.resize(output.pos);
  ZSTD_freeCCtx(context);
  return out;
}

std::string SkippableFrame(std::string_view content) {
  std::string out = "\x50\x2a\x4d\x18";
  const auto size = static_cast<uint32_t>(content.size());
  out.append(reinterpret_cast<const char*>(&size), sizeof(size));
  return out.append(content);
}

}  // namespace lockstep::data
