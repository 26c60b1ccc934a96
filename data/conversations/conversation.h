// Conversations in files of JSONL.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/io/json.h"
#include "data/text/document_reader.h"

namespace lockstep::data {

// The input of a chat template, and which answers are learnt.
struct Conversation {
  // Objects with "role" (system, developer, user, assistant or tool) and "content", a text or a
  // list of parts {"type": "text", "text": "..."}; of an assistant that calls tools also, or only,
  // "tool_calls". Keys whose value is null, the marks for training, and empty messages of the
  // system are left out. The text of "reasoning_content", "thinking" or "reasoning" is in the first
  // two.
  OrderedJson messages = OrderedJson::array();
  // Variables of the template: "tools", and those in the row's "chat_template_kwargs".
  OrderedJson variables = OrderedJson::object();
  // For each message: whether it is an answer of the assistant to be learnt.
  std::vector<bool> learnt;
  // Whether a message other than the system's, or what should be a message, has no text, or an
  // answer only white space: such a row is left out.
  bool empty = false;
  std::string place;  // "chat.jsonl:17", for messages
};

// Whether a message calls tools, which may be all that it says.
bool CallsTools(const OrderedJson& message);

// Parses the object in a line of JSONL, which is well-formed UTF-8, and keeps the order of its
// keys. Throws InputError that begins with `place` if the line is not an object, is nested deeper
// than 100 levels, or has a key twice.
OrderedJson ParseRow(std::string_view line, const std::string& place);

// For messages: the fields of a row, and what to do if they are those of a pair of answers.
std::string FieldsOf(const OrderedJson& row);

// Whether a row has the keys of one of the formats that ToConversation knows.
bool LooksLikeConversation(const OrderedJson& row);

// Reads a row of the usual formats:
// - {"messages": [{"role": "user", "content": "..."}, ...], "tools": [...]}, as OpenAI's; an
//   answer with "train": false or "weight": 0 is not learnt;
// - {"conversations": [{"from": "human", "value": "..."}, ...]}, as ShareGPT's;
// - {"instruction": "...", "input": "...", "output": "..."}, as Alpaca's, and earlier turns in
//   "history": [["...", "..."], ...];
// - {"prompt": "...", "completion": "..."}; both may be lists of messages.
// All but the first may have "system". Throws InputError that begins with `place` for other rows,
// for roles that are missing or unknown, for messages without content or with parts other than
// text, and if there is no message of the assistant.
Conversation ToConversation(const OrderedJson& row, const std::string& place);

// The same for a "prompt", which may be missing, and its completion: a text or a list of messages
// in row[field].
Conversation ToCompletion(const OrderedJson& row, const std::string& field,
                          const std::string& place);

// Appends a text, which becomes a message of `role`, or a list of messages, in OpenAI's or
// ShareGPT's keys. `field` is its name in the row, for errors.
void AppendMessages(const OrderedJson& text_or_list, const std::string& role,
                    const std::string& field, Conversation* conversation);

// The conversations of JSONL files, one after the other, in memory bounded by the largest of them.
class ConversationReader {
 public:
  // `files` as ListTextFiles returns them; each line is a row.
  explicit ConversationReader(std::vector<std::string> files,
                              int64_t max_line_bytes = int64_t{16} << 20);

  // Reads the next row and its place; false at the end. Malformed UTF-8 and lone surrogates become
  // U+FFFD, and are counted. Throws as DocumentReader::Next does.
  bool NextLine(std::string* line, std::string* place);
  int64_t bad_utf8() const { return bad_utf8_; }

 private:
  const std::vector<std::string> files_;
  DocumentReader reader_;
  int64_t bad_utf8_ = 0;
};

}  // namespace lockstep::data
