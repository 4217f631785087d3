#include <fmt/format.h>

#include <algorithm>

#include "tokenizers/json_parts.h"

namespace trireme::tokenizers {
namespace {

constexpr std::int64_t kMostTypes = 127;

Ids checked_ids(const JsonView& json, const TokenizerParts& parts) {
  Ids out;
  for (const auto& id : json.elements()) out.push_back(static_cast<std::int32_t>(id.number(parts.vocabulary() - 1)));
  return out;
}

/// One place of a template: {"SpecialToken": {...}} or {"Sequence": {...}}.
SamplePart read_place(const JsonView& json, const JsonView& special_tokens, const TokenizerParts& parts) {
  json.allow_only({"SpecialToken", "Sequence"});
  const bool is_text = !json.find("Sequence").is_null();
  const auto place = json.at(is_text ? "Sequence" : "SpecialToken");
  place.allow_only({"id", "type_id"});
  SamplePart out;
  out.type = static_cast<std::int8_t>(place.at("type_id").number(kMostTypes));
  const auto& name = place.at("id").text();
  if (is_text) {
    if (name != "A" && name != "B") place.at("id").refuse(fmt::format("\"{}\" is not A or B", name));
    out.text = name == "A" ? 0 : 1;
  } else {
    const auto token = special_tokens.at(name);
    token.allow_only({"id", "ids", "tokens"});
    out.ids = checked_ids(token.at("ids"), parts);
  }
  return out;
}

SampleTemplate read_template(const JsonView& json, const JsonView& special_tokens, bool is_pair,
                             const TokenizerParts& parts) {
  SampleTemplate out;
  for (const auto& place : json.elements()) out.push_back(read_place(place, special_tokens, parts));
  for (const int text : {0, 1}) {
    const auto times = std::count_if(out.begin(), out.end(), [&](const SamplePart& part) { return part.text == text; });
    const int wanted = text == 0 || is_pair ? 1 : 0;
    if (times != wanted)
      json.refuse(fmt::format("the text {} is expected {}, and is there {} times", text == 0 ? "A" : "B",
                              wanted == 1 ? "once" : "nowhere", times));
  }
  return out;
}

PostProcessor read_template_processing(const JsonView& json, const TokenizerParts& parts) {
  json.allow_only({"type", "single", "pair", "special_tokens"});
  const auto special_tokens = json.at("special_tokens");
  return {read_template(json.at("single"), special_tokens, false, parts),
          read_template(json.at("pair"), special_tokens, true, parts)};
}

/// ["[SEP]", 102]
Ids read_token(const JsonView& json, const TokenizerParts& parts) {
  if (json.array().size() != 2) json.refuse("a token and its id are expected");
  return {static_cast<std::int32_t>(json.element(1).number(parts.vocabulary() - 1))};
}

/// BERT's [CLS] A [SEP] B [SEP].
PostProcessor read_bert_processing(const JsonView& json, const TokenizerParts& parts) {
  json.allow_only({"type", "sep", "cls"});
  const auto sep = read_token(json.at("sep"), parts), cls = read_token(json.at("cls"), parts);
  return {{{{}, cls, 0}, {0, {}, 0}, {{}, sep, 0}}, {{{}, cls, 0}, {0, {}, 0}, {{}, sep, 0}, {1, {}, 1}, {{}, sep, 1}}};
}

/// Sets what becomes of the offsets of byte-level tokens.
void read_trimming(const JsonView& json, PostProcessor& out) {
  out.trims = json.find("trim_offsets").flag_or(true);
  out.keeps_first_space = json.find("add_prefix_space").flag_or(true);
}

/// RoBERTa's <s> A </s></s> B </s>, all of type 0.
PostProcessor read_roberta_processing(const JsonView& json, const TokenizerParts& parts) {
  json.allow_only({"type", "sep", "cls", "trim_offsets", "add_prefix_space"});
  const auto sep = read_token(json.at("sep"), parts), cls = read_token(json.at("cls"), parts);
  PostProcessor out{{{{}, cls, 0}, {0, {}, 0}, {{}, sep, 0}},
                    {{{}, cls, 0}, {0, {}, 0}, {{}, sep, 0}, {{}, sep, 0}, {1, {}, 0}, {{}, sep, 0}}};
  read_trimming(json, out);
  return out;
}

PostProcessor read_processor_sequence(const JsonView& json, const TokenizerParts& parts) {
  json.allow_only({"type", "processors"});
  PostProcessor out, trimming;
  bool adds_tokens = false;
  for (const auto& processor : json.at("processors").elements()) {
    const auto read = read_post_processor(processor, parts);
    if (read.trims) trimming = read;
    if (processor.is_null() || processor.at("type").text() == "ByteLevel") continue;
    if (adds_tokens) processor.refuse("a second post-processor that adds tokens is not supported");
    adds_tokens = true;
    out = read;
  }
  out.trims = trimming.trims;
  out.keeps_first_space = trimming.keeps_first_space;
  return out;
}

}  // namespace

PostProcessor read_post_processor(const JsonView& json, const TokenizerParts& parts) {
  if (json.is_null()) return {};
  const auto& type = json.at("type").text();
  if (type == "ByteLevel") {
    PostProcessor out;
    read_trimming(json, out);
    return out;
  }
  if (type == "TemplateProcessing") return read_template_processing(json, parts);
  if (type == "BertProcessing") return read_bert_processing(json, parts);
  if (type == "RobertaProcessing") return read_roberta_processing(json, parts);
  if (type == "Sequence") return read_processor_sequence(json, parts);
  json.at("type").refuse(
      fmt::format("the post-processor \"{}\" is not supported (known: BertProcessing, ByteLevel, RobertaProcessing, "
                  "Sequence, TemplateProcessing)",
                  type));
}

}  // namespace trireme::tokenizers
