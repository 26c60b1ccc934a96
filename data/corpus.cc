#include "data/corpus.h"

#include "data/corpus_text.h"

namespace lockstep::data {

std::string_view EmbeddedCorpus() { return {kCorpusText, sizeof(kCorpusText) - 1}; }

std::string_view EmbeddedCorpusSha256() { return std::string_view(kCorpusSha256).substr(0, 64); }

}  // namespace lockstep::data
