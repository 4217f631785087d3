// Files that are refused, each with the file and the place in it.
#include <gtest/gtest.h>

#include "core/base/error.h"
#include "tests/unit/tokenizers/fixtures.h"
#include "tokenizers/tokenizer.h"

namespace trireme::tokenizers {
namespace {

/// The message of the refusal; "" if the files make a tokenizer.
std::string refusal(const Files& files) {
  try {
    load_tokenizer(files);
    return "";
  } catch (const DataError& error) {
    return error.what();
  }
}

struct TextCase {
  const char* name;  ///< of the fixture
  const char* file;  ///< whose content is replaced
  std::string content;
  const char* message;  ///< a part of it
};

TEST(Refusals, OfTextFiles) {
  const std::string bert = "[UNK]\n[CLS]\n[SEP]\n";
  const TextCase cases[]{
      {"bert_uncased", "vocab.txt", "", "vocab.txt: the file is empty"},
      {"bert_uncased", "vocab.txt", "[CLS]\n[SEP]\n", "vocab.txt: there is no [UNK] (unk_token)"},
      {"bert_uncased", "vocab.txt", "[UNK]\n[SEP]\n", "vocab.txt: there is no [CLS] (cls_token)"},
      {"bert_uncased", "vocab.txt", bert + "a\xFF\n", "vocab.txt:4: byte 1 of the line is not valid UTF-8"},
      {"bert_uncased", "added_tokens.json", "{}", "added_tokens.json: tokens in a file of their own"},
      {"bert_uncased", "tokenizer_config.json", "{", "tokenizer_config.json: line 1, column 2: not valid JSON"},
      {"bert_uncased", "tokenizer_config.json", "[]", "tokenizer_config.json: an object is expected, not an array"},
      {"bert_uncased", "tokenizer_config.json", R"({"do_lower_case": "no"})",
       "tokenizer_config.json: do_lower_case: true or false is expected, not \"no\""},
      {"bert_uncased", "tokenizer_config.json", R"({"pad_token": "<gone>"})",
       "tokenizer_config.json: pad_token: the tokenizer has no token \"<gone>\""},
      {"gpt2", "merges.txt", "", "merges.txt: the file is empty"},
      {"gpt2", "merges.txt", "#version: 0.2\nt h\n\nh e\n", "merges.txt:3: two tokens with one space"},
      {"gpt2", "merges.txt", "t h e\n", "merges.txt:1: two tokens with one space"},
      {"gpt2", "merges.txt", "t \xE2\x82\xAC\n", "merges.txt:1: the token \"\xE2\x82\xAC\" is not in the vocabulary"},
      {"gpt2", "merges.txt", "q q\n", "merges.txt:1: the token \"qq\" is not in the vocabulary"},
      {"gpt2", "tokenizer_config.json", R"({"tokenizer_class": "RobertaTokenizer"})",
       "vocab.json: without tokenizer.json"},
      {"gpt2", "vocab.json", R"({"<s>": 0, "</s>": 1})", "vocab.json: without tokenizer.json"},
      {"gpt2", "vocab.json", "", "vocab.json: line 1, column 1: not valid JSON"},
      {"gpt2", "vocab.json", "{}", "vocab.json: there is no token"},
      {"gpt2", "vocab.json", R"({"a": 1, "b": 1})", "vocab.json: b: the id 1 is that of the token \"a\" too"},
      {"gpt2", "vocab.json", R"({"a": -1})", "vocab.json: a: a number from 0 to 16,777,215 is expected, not -1"},
      {"gpt2", "vocab.json", R"({"a": 2000000000})", "vocab.json: a: a number from 0 to 16,777,215"},
      {"gpt2", "vocab.json", "{\"\xFF\": 0}", "vocab.json: line 1, column 3: not valid JSON"},
      {"llama3", "tokenizer.json", std::string(100'000, '['), "tokenizer.json: line 1, column"},
      {"llama3", "tokenizer.json", "null", "tokenizer.json: an object is expected, not null"},
      {"llama3", "tokenizer.json", "{}", "tokenizer.json: \"model\" is missing"},
      {"pieces_bpe", "tokenizer_config.json", R"({"tokenizer_class": "T5Tokenizer"})",
       "tokenizer_class: T5Tokenizer does more than its .model says; save tokenizer.json"},
      {"pieces_bpe", "tokenizer_config.json", R"({"legacy": false})", "legacy: not supported; save tokenizer.json"},
      {"ranks", "tokenizer_config.json", R"({"extra_special_tokens": ["<|im_start|>"]})",
       "extra_special_tokens[0]: the tokenizer has no token \"<|im_start|>\""},
      {"pieces_bpe", "tokenizer.model",
       "\x0A\x05\x0A\x09"
       "abc",
       "tokenizer.model: neither a file of SentencePiece nor"},
      {"pieces_bpe", "tokenizer.model",
       "\x0A\x03\x0A\x01"
       "a\x0A\x03\x0A\x01"
       "a",
       "tokenizer.model: the piece \"a\" is there twice"},
      {"pieces_bpe", "tokenizer.model",
       std::string("\x0A\x08\x0A\x01"
                   "a\x15\0\0\xC0\x7F",
                   12),
       "or damaged"},
      {"pieces_bpe", "tokenizer.model",
       "\x0A\x03\x0A\x01"
       "a\x12\x02\x18\x04",
       "tokenizer.model: a model of words or characters is not supported"},
      {"ranks", "tokenizer.model", "YQ== 0\nYg== x\n", "tokenizer.model:2: a token in base64, a space and its rank"},
      {"ranks", "tokenizer.model", "YQ== 0\nYg== 0\n", "tokenizer.model: the rank 0 is that of two tokens"},
      {"ranks", "tokenizer.model", "YQ== 0\nYQ== 1\n", "tokenizer.model: the token of rank 1 is there twice"},
  };
  for (const auto& c : cases) {
    auto files = fixture_files(c.name);
    files[c.file] = c.content;
    EXPECT_NE(refusal(files).find(c.message), std::string::npos)
        << c.name << " with " << c.content.substr(0, 60) << ": " << refusal(files);
  }
  EXPECT_NE(refusal({}).find("no tokenizer here"), std::string::npos);
}

TEST(Refusals, OfPartsThatAreNestedTooDeeply) {
  for (const auto& [depth, says] :
       {std::pair{40, "the parts are nested too deeply"}, {50'000, "nested deeper than 128 levels"}}) {
    std::string json = R"({"normalizer": )";
    for (int i = 0; i < depth; ++i) json += R"({"type": "Sequence", "normalizers": [)";
    for (int i = 0; i < depth; ++i) json += "]}";
    EXPECT_NE(refusal({{"tokenizer.json", json + "}"}}).find(says), std::string::npos) << depth;
  }
}

struct JsonCase {
  const char* name;   ///< of the fixture
  const char* patch;  ///< of its tokenizer.json (RFC 6902)
  const char* message;
};

TEST(Refusals, OfPartsOfTokenizerJson) {
  const JsonCase cases[]{
      {"llama3", R"([{"op": "replace", "path": "/version", "value": "2.0"}])",
       "version: the version \"2.0\" is not supported"},
      {"llama3", R"([{"op": "add", "path": "/chat", "value": 1}])", "chat: this option is not known"},
      {"llama3", R"([{"op": "replace", "path": "/model/type", "value": "Chars"}])",
       "model.type: the model \"Chars\" is not supported (known: BPE, Unigram, WordLevel, WordPiece)"},
      {"unigram", R"([{"op": "replace", "path": "/model/vocab/3", "value": ["a", 1, 2]}])",
       "model.vocab[3]: a token and its score are expected"},
      {"unigram", R"([{"op": "replace", "path": "/model/vocab", "value": []}])", "model.vocab: there are 0 tokens"},
      {"unigram", R"([{"op": "replace", "path": "/model/unk_id", "value": 5000}])", "model.unk_id: a number from 0 to"},
      {"unigram", R"([{"op": "replace", "path": "/normalizer/normalizers/0/precompiled_charsmap", "value": "a-=="}])",
       "normalizer.normalizers[0].precompiled_charsmap: this is not base64"},
      {"unigram", R"([{"op": "replace", "path": "/normalizer/normalizers/0/precompiled_charsmap", "value": "AAA="}])",
       "precompiled_charsmap: it is too short"},
      {"unigram",
       R"([{"op": "replace", "path": "/normalizer/normalizers/0/precompiled_charsmap", "value": "CAAAAAAA"}])",
       "precompiled_charsmap: the size of its trie is wrong"},
      {"words", R"([{"op": "replace", "path": "/model/unk_token", "value": "none"}])",
       "model.unk_token: the token \"none\" is not in the vocabulary"},
      {"words", R"([{"op": "replace", "path": "/decoder/pad_token", "value": ""}])",
       "decoder.pad_token: the text is empty"},
      {"words", R"([{"op": "replace", "path": "/pre_tokenizer/pretokenizers/1/behavior", "value": "Kept"}])",
       "behavior: \"Kept\" is not supported (known: Removed, "},
      {"fixed_length", R"([{"op": "replace", "path": "/pre_tokenizer/pretokenizers/0/length", "value": 0}])",
       "length: a length of at least 1 is expected"},
      {"llama3", R"([{"op": "replace", "path": "/model/dropout", "value": 0.1}])",
       "model.dropout: this option is not supported"},
      {"llama3", R"([{"op": "replace", "path": "/model/merges/3", "value": ["a"]}])",
       "model.merges[3]: two texts are expected"},
      {"llama3", R"([{"op": "replace", "path": "/model/merges/3", "value": "a b c"}])",
       "model.merges[3]: two tokens with one space"},
      {"llama3", R"([{"op": "replace", "path": "/model/merges/3", "value": ["a", "\u20ac"]}])",
       "model.merges[3]: the token \"\xE2\x82\xAC\" is not in the vocabulary"},
      {"llama3", R"([{"op": "replace", "path": "/model/merges", "value": {}}])",
       "model.merges: an array is expected, not an object"},
      {"llama3", R"([{"op": "replace", "path": "/model/ignore_merges", "value": 1}])",
       "model.ignore_merges: true or false is expected, not 1"},
      {"llama3", R"([{"op": "replace", "path": "/pre_tokenizer/pretokenizers/0/pattern/Regex", "value": "(a"}])",
       "pre_tokenizer.pretokenizers[0].pattern.Regex: the expression (a is not valid"},
      {"llama3", R"([{"op": "replace", "path": "/pre_tokenizer/pretokenizers/0/pattern/Regex", "value": "\\w+"}])",
       "pattern.Regex: this escape at byte 0"},
      {"llama3", R"([{"op": "replace", "path": "/pre_tokenizer/pretokenizers/0/pattern/Regex", "value": "a.b"}])",
       "pattern.Regex: . at byte 1"},
      {"llama3", R"([{"op": "replace", "path": "/pre_tokenizer/pretokenizers/0/pattern/Regex", "value": "a{2}+"}])",
       "pattern.Regex: + behind a counted repetition at byte 4"},
      {"llama3", R"([{"op": "replace", "path": "/pre_tokenizer/pretokenizers/0/behavior", "value": "Joined"}])",
       "behavior: \"Joined\" is not supported"},
      {"llama3", R"([{"op": "replace", "path": "/pre_tokenizer", "value": {"type": "UnicodeScripts"}}])",
       "pre_tokenizer.type: the pre-tokenizer \"UnicodeScripts\" is not supported (known: "},
      {"llama3", R"([{"op": "replace", "path": "/pre_tokenizer", "value": {}}])", "pre_tokenizer: \"type\" is missing"},
      {"llama3", R"([{"op": "replace", "path": "/normalizer", "value": {"type": "Compiled"}}])",
       "normalizer.type: the normalizer \"Compiled\" is not supported"},
      {"llama3", R"([{"op": "replace", "path": "/decoder", "value": {"type": "Ctc"}}])",
       "decoder.type: the decoder \"Ctc\" is not supported"},
      {"llama3",
       R"([{"op": "replace", "path": "/post_processor/processors/1/single/0/SpecialToken/id", "value": "x"}])",
       "special_tokens: \"x\" is missing"},
      {"llama3", R"([{"op": "remove", "path": "/post_processor/processors/1/pair/1"}])",
       "post_processor.processors[1].pair: the text A is expected once, and is there 0 times"},
      {"llama3",
       R"([{"op": "replace", "path": "/post_processor/processors/1/special_tokens/<|begin_of_text|>/ids/0",
                        "value": 402}])",
       "ids[0]: a number from 0 to 401 is expected, not 402"},
      {"llama3", R"([{"op": "replace", "path": "/added_tokens/0/id", "value": 401}])",
       "added_tokens[0]: the token \"<|begin_of_text|>\" has the id 401, and Hugging Face's library gives it 400"},
      {"llama3", R"([{"op": "replace", "path": "/added_tokens/1/content", "value": "<|begin_of_text|>"}])",
       "added_tokens[1]: the token \"<|begin_of_text|>\" is added twice"},
      {"llama3", R"([{"op": "remove", "path": "/added_tokens/0/lstrip"}])", "added_tokens[0]: \"lstrip\" is missing"},
      {"llama2", R"([{"op": "replace", "path": "/model/unk_token", "value": "?unk"}])",
       "model.unk_token: the token \"?unk\" is not in the vocabulary"},
      {"llama2", R"([{"op": "replace", "path": "/normalizer/normalizers/1/pattern", "value": {"String": ""}}])",
       "normalizer.normalizers[1].pattern.String: an empty text matches everywhere"},
      {"metaspace_first", R"([{"op": "replace", "path": "/pre_tokenizer/replacement", "value": "ab"}])",
       "pre_tokenizer.replacement: one character is expected, not \"ab\""},
      {"metaspace_first", R"([{"op": "replace", "path": "/pre_tokenizer/prepend_scheme", "value": "last"}])",
       "pre_tokenizer.prepend_scheme: \"last\" is not supported"},
      {"bert_json", R"([{"op": "replace", "path": "/model/unk_token", "value": null}])",
       "model.unk_token: WordPiece needs"},
      {"bert_json", R"([{"op": "replace", "path": "/model/max_input_chars_per_word", "value": -1}])",
       "model.max_input_chars_per_word: a number from 0 to"},
      {"bert_json", R"([{"op": "replace", "path": "/normalizer/lowercase", "value": "yes"}])",
       "normalizer.lowercase: true or false is expected"},
  };
  for (const auto& c : cases) {
    auto files = fixture_files(c.name);
    auto& text = files.at("tokenizer.json");
    text = nlohmann::json::parse(text).patch(nlohmann::json::parse(c.patch)).dump();
    const auto message = refusal(files);
    EXPECT_NE(message.find(c.message), std::string::npos) << c.name << " with " << c.patch << ": " << message;
    EXPECT_TRUE(message.starts_with("tokenizer.json: ")) << message;
  }
}

}  // namespace
}  // namespace trireme::tokenizers
