"""Makes tests/golden/tokenizers: small self-trained tokenizers, lines of difficult text, and what Hugging Face's
tokenizers make of them: hashes of the ids and of the decoded texts, of samples of two texts, and of the decoded texts
of random ids.

Run:  python tests/golden/make/make_tokenizers.py              (transformers 5.24, tokenizers 0.23,
                                                                  sentencepiece 0.2; the output is committed)
      python tests/golden/make/make_tokenizers.py --sst2 DATA  (the hash of SST-2's ids alone, of DATA/sst2 and DATA/bert)
      python tests/golden/make/make_tokenizers.py --compare FOLDER TEXTS.json IDS.json   (ids and texts of another program)
"""
import argparse
import base64
import json
import pathlib
import random
import tempfile

import sentencepiece
from sentencepiece import sentencepiece_model_pb2 as sentencepiece_model
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import BertTokenizer, GPT2Tokenizer
from transformers.convert_slow_tokenizer import SpmConverter, TikTokenConverter, bytes_to_unicode

OUT = pathlib.Path(__file__).parents[1] / "tokenizers"
LINES = 500
LLAMA3_WORDS = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
                r"|\s+(?!\S)|\s+")
QWEN_WORDS = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
              r"|\s+(?!\S)|\s+")
ENGLISH = """The ship has three banks of oars, and they pull together when the drum is beaten slowly.
A slow film about nothing, and yet it's the best thing that I've seen this year; don't miss it!
She said: "we'll see", and didn't say what they'd do if he weren't there by 10:45 o'clock.
Weights are gathered block by block, so that a model of 7,000,000,000 parameters fits into 80 GB of memory.
Prices rose by 3.5 % in 2024, from $1,234.56 to $1,277.77 (see page 12/13) [note 4].
The quick brown fox jumps over the lazy dog, while the dog sleeps and the fox is gone.
def main(argc, argv):\n    if argc < 2:\n\t\treturn -1  # nothing to do\n    for i in range(10): print(i, i * i)
The café of Zoë and Señor Müller in Łódź sells crème brûlée, naïve façades and jalapeños.
Привет, мир: это короткий текст. 你好,世界。日本語のテキストです。한국어 문장입니다. مرحبا بالعالم שלום עולם
""".splitlines()
# Characters that Unicode had before Hugging Face's tables were made, so that all know them alike.
SPECIAL = """[MASK] [CLS] [SEP] [UNK] [PAD] [mask] <s> </s> <unk> <|endoftext|> <|begin_of_text|> <|end_of_text|> <mask> <pad>
word WORD [new] Ärger ##ing ▁ Ġ <0x0A> <0xE4>""".split()
SPACES = [" ", "  ", "\t", "\n", "\r\n", "\n\n", "\u00a0", "\u1680", "\u2003", "\u2028", "\u202f", "\u3000", "\x0b", "\x0c", "\x85", "   "]
ODD = ["\x00", "\x01", "\x1b", "\x7f", "\x80", "\x9f", "\u00ad", "\u200b", "\u200c", "\u200d", "\u200e", "\u202e", "\u2060",
       "\ufeff", "\ufffd", "\ufffe", "\uffff", "\ud7ff", "\ue000", "\uf8ff", "\U00010000", "\U0001f4a9", "\U000e0041",
       "\U000fffff", "\U0010ffff"]
MARKS = ["e\u0301", "\u00e9", "E\u0301\u0323", "\u1e9b\u0323", "a\u0323\u0307", "\u0041\u030a", "\u212b", "\u0301", "o\u0308\u0304", "\u0344",
         "\u0958", "\ufb01", "\ufb03", "\u2126", "\u017f", "\u0130", "\u0131", "\u00df", "\u1e9e", "\u03a3", "\u03c2", "\u01c5", "\u00bd", "\u2460", "\u00b2"]
WORDS = ["hello", "World", "don't", "I'VE", "we'Ll", "it'ſ", "naïve", "CAFÉ", "cafe\u0301", "ΑΣΣ", "Straße", "İstanbul", "ﬁne",
         "你好", "世界!", "㐀", "𠀀𪜀", "豈", "日本語", "カタカナ", "ﾊﾝｶｸ", "ひらがな", "한국어", "\u1112\u1161\u11ab", "สวัสดี", "नमस्ते", "தமிழ்",
         "שָׁלוֹם", "مرحبا", "ﷺ", "👩‍👩‍👧‍👦", "🇩🇪🇫🇷", "👍🏽", "❤️", "🤷‍♀️", "123", "1234567", "3.14", "٣٤", "Ⅻ", "x²", "½", "１２３", "a_b", "C++",
         "http://a.b/c?d=e&f#g", "me@example.com", "...", "?!?!", "--", "—", "“quoted”", "«so»", "¿qué?", "$5", "€7", "100%", "§4", "~`^", "|<>=+", "'s", "n't", "do not", " .", " ,"]


def difficult_lines():
    """The texts; one that is a pair is its first element, repeated."""
    rng = random.Random(7)
    everything = [SPECIAL, SPACES, ODD, MARKS, WORDS]
    lines = ["", " ", "\n", "\u3000", "\x00", "\ufeff", *ENGLISH]
    lines += [item for group in everything for item in group]
    lines += [f"a{item}b" for group in (SPECIAL, SPACES, ODD, MARKS) for item in group]
    lines += [["a", 10000], ["ab c", 2500], ["é", 5000], ["你", 3000], ["'", 2000], [" ", 5000], ["\n", 3000], ["🇩", 1000],
              ["\u0301", 2000], ["hello world ", 400], ["1", 1000], ["x", 100], ["x", 101], ["[MASK]", 50]]
    lines += ["".join(chr(c) for c in range(start, start + 64)) for start in range(0x20, 0x600, 0x80)]
    while len(lines) < LINES:
        parts = [rng.choice(rng.choice(everything)) for _ in range(rng.randint(1, 14))]
        lines.append(rng.choice(["", " ", " ", " "]).join(parts))
    return lines


def expanded(line):
    return line if isinstance(line, str) else line[0] * line[1]


def fnv(data, state=14695981039346656037):
    for byte in data:
        state = (state ^ byte) * 1099511628211 & 0xFFFFFFFFFFFFFFFF
    return state


def short_hash(data):
    return f"{fnv(data) & 0xFFFFFFFF:08x}"


def id_bytes(ids):
    return b"".join(i.to_bytes(4, "little") for i in ids)


def corpus(lines):
    return ENGLISH * 20 + [line for line in map(expanded, lines) if len(line) < 300]


def word_piece(lines, lowercase):
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=300, limit_alphabet=110, show_progress=False,
                                        special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])
    tokenizer.train_from_iterator(corpus(lines), trainer)
    return tokenizer


def byte_level(lines, special):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=400, show_progress=False, special_tokens=special,
                                  initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.train_from_iterator(corpus(lines), trainer)
    return tokenizer


def sentence_piece(lines):
    """Like Llama 2's: the bytes are tokens, and spaces a visible character."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace("▁", "never", True)  # for the training alone
    special = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    tokenizer.train_from_iterator(corpus(lines), trainers.BpeTrainer(
        vocab_size=520, limit_alphabet=90, show_progress=False, special_tokens=special))
    made = json.loads(tokenizer.to_str())
    made["pre_tokenizer"] = None
    made["added_tokens"] = made["added_tokens"][:3]  # the bytes are tokens of the model alone
    tokenizer = Tokenizer.from_str(json.dumps(made))
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
                                           decoders.Strip(" ", 1, 0)])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s>:1 $B:1", special_tokens=[("<s>", 1)])
    return tokenizer


# Rules of a compiled normalization as SentencePiece's own have them: one character or a few, to others or to none.
CHAR_RULES = [("ﬁ", "fi"), ("ﬃ", "ffi"), ("½", "1⁄2"), ("²", "2"), ("Ⅻ", "XII"), ("\u3000", " "), ("\u00a0", " "), ("\t", " "),
              ("\n", " "), ("e\u0301", "é"), ("A\u030a", "Å"), ("\u212b", "Å"), ("\u200b", ""), ("\ufeff", ""), ("１", "1"),
              ("２", "2"), ("ﾊ", "ハ"), ("ﷺ", "صلى الله عليه وسلم"), ("\u1112\u1161", "하"), ("\r", ""), ("\u0301", "´")]


def piece_model(kind, **options):
    """SentencePiece's own file, trained with these rules."""
    with tempfile.TemporaryDirectory() as folder:
        rules = pathlib.Path(folder) / "rules.tsv"
        hexes = lambda text: " ".join(f"{ord(c):X}" for c in text)
        rules.write_text("".join(f"{hexes(a)}\t{hexes(b)}\n" for a, b in CHAR_RULES))
        texts = pathlib.Path(folder) / "texts.txt"
        texts.write_text("\n".join(t.replace("\n", " ").replace("\0", "") for t in ENGLISH * 20))
        sentencepiece.SentencePieceTrainer.train(
            input=str(texts), model_prefix=f"{folder}/out", model_type=kind, vocab_size=500, character_coverage=0.98,
            normalization_rule_tsv=str(rules), minloglevel=2, num_threads=1, hard_vocab_limit=False, **options)
        return (pathlib.Path(folder) / "out.model").read_bytes()


def of_pieces(file):
    """What T5's converter makes of a Unigram file."""
    proto = sentencepiece_model.ModelProto.FromString(file)
    vocabulary = [(piece.piece, piece.score) for piece in proto.pieces]
    tokenizer = Tokenizer(models.Unigram(vocabulary, proto.trainer_spec.unk_id, proto.trainer_spec.byte_fallback))
    tokenizer.normalizer = normalizers.Sequence([
        normalizers.Precompiled(proto.normalizer_spec.precompiled_charsmap), normalizers.Strip(False, True),
        normalizers.Replace(Regex(" {2,}"), "▁")])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace("▁", "always", True)
    tokenizer.decoder = decoders.Metaspace("▁", "always", True)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", tokenizer.token_to_id("</s>"))])
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    return tokenizer


def other_parts(lines):
    """{name: tokenizer} with the parts that the families above lack."""
    out = {}
    clip = Tokenizer(models.BPE(unk_token="<|endoftext|>", end_of_word_suffix="</w>"))
    clip.normalizer = normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents(), normalizers.Lowercase()])
    clip.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Whitespace(), pre_tokenizers.Digits(True)])
    clip.decoder = decoders.BPEDecoder("</w>")
    clip.train_from_iterator(corpus(lines), trainers.BpeTrainer(
        vocab_size=420, limit_alphabet=90, show_progress=False, special_tokens=["<|endoftext|>"], end_of_word_suffix="</w>"))
    out["word_ends"] = clip
    continued = Tokenizer(models.BPE(unk_token="[UNK]", continuing_subword_prefix="##"))
    continued.normalizer = normalizers.Sequence([normalizers.Nmt(), normalizers.Strip(True, False)])
    continued.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.CharDelimiterSplit("|"), pre_tokenizers.WhitespaceSplit(),
                                                       pre_tokenizers.Punctuation("contiguous")])
    continued.decoder = decoders.WordPiece("##", cleanup=True)
    continued.train_from_iterator(corpus(lines), trainers.BpeTrainer(
        vocab_size=420, limit_alphabet=90, show_progress=False, special_tokens=["[UNK]"], continuing_subword_prefix="##"))
    out["word_parts"] = continued
    words = Tokenizer(models.WordLevel(unk_token="<unk>"))
    words.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase(), normalizers.Strip()])
    words.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(False), pre_tokenizers.Punctuation("merged_with_previous"),
                                                   pre_tokenizers.WhitespaceSplit()])
    words.decoder = decoders.CTC("<pad>", "|", True)
    words.train_from_iterator(corpus(lines), trainers.WordLevelTrainer(
        vocab_size=200, show_progress=False, special_tokens=["<unk>", "<pad>", "|"]))
    out["words"] = words
    fixed = byte_level(lines, ["<|endoftext|>"])
    fixed.normalizer = normalizers.ByteLevel()
    fixed.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.FixedLength(7), pre_tokenizers.Split(Regex(r"\d"), "contiguous")])
    out["fixed_length"] = fixed
    return out


def copy(tokenizer):
    return Tokenizer.from_str(tokenizer.to_str())


def tokenizer_files(lines):
    """{name: {file: text}}"""
    out = {}

    def save(name, tokenizer):
        out[name] = {"tokenizer.json": json.dumps(json.loads(tokenizer.to_str()), ensure_ascii=False) + "\n"}

    for name, lowercase in (("bert_uncased", True), ("bert_cased", False)):
        tokenizer = word_piece(lines, lowercase)
        vocabulary = tokenizer.get_vocab()
        out[name] = {"vocab.txt": "".join(f"{token}\n" for token in sorted(vocabulary, key=vocabulary.get))}
        if not lowercase:
            out[name]["tokenizer_config.json"] = json.dumps({"do_lower_case": False, "tokenize_chinese_chars": False}) + "\n"
    # All flags of added tokens, accents that stay, and a model without clean-up.
    tokenizer = word_piece(lines, True)
    tokenizer.normalizer = normalizers.BertNormalizer(clean_text=False, strip_accents=False)
    tokenizer.decoder = decoders.WordPiece(cleanup=False)
    tokenizer.add_special_tokens([AddedToken("[MASK]", lstrip=True, normalized=False)])
    tokenizer.add_tokens([AddedToken("word", single_word=True), AddedToken("[new]", rstrip=True, normalized=False),
                          AddedToken("Ärger", lstrip=True, rstrip=True), AddedToken("hello", special=True)])
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    save("bert_json", tokenizer)

    gpt2 = byte_level(lines, ["<|endoftext|>"])
    model = json.loads(gpt2.to_str())["model"]
    out["gpt2"] = {"vocab.json": json.dumps(model["vocab"], ensure_ascii=False) + "\n",
                   "merges.txt": "#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in model["merges"])}
    save("gpt2_json", gpt2)
    roberta = byte_level(lines, ["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
    roberta.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    roberta.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    roberta.add_special_tokens([AddedToken("<mask>", lstrip=True, normalized=False)])
    save("roberta", roberta)
    llama3 = Tokenizer.from_str(json.dumps({**json.loads(gpt2.to_str()), "added_tokens": []}))
    llama3.model.ignore_merges = True
    llama3.add_special_tokens(["<|begin_of_text|>", "<|end_of_text|>"])
    llama3.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(LLAMA3_WORDS), "isolated"),
                                                    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    begin = llama3.token_to_id("<|begin_of_text|>")
    llama3.post_processor = processors.Sequence([processors.ByteLevel(), processors.TemplateProcessing(
        single="<|begin_of_text|> $A", pair="<|begin_of_text|> $A <|begin_of_text|>:1 $B:1",
        special_tokens=[("<|begin_of_text|>", begin)])])
    save("llama3", llama3)
    qwen = copy(gpt2)
    qwen.normalizer = normalizers.NFC()
    qwen.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(QWEN_WORDS), "removed", invert=True),
                                                  pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    save("qwen", qwen)

    llama2 = sentence_piece(lines)
    save("llama2", llama2)
    for scheme, split in (("first", False), ("always", True), ("never", True)):
        metaspace = copy(llama2)
        metaspace.normalizer = {"first": None, "always": normalizers.NFKC(), "never": normalizers.NFD()}[scheme]
        metaspace.pre_tokenizer = pre_tokenizers.Metaspace("▁", scheme, split)
        metaspace.decoder = decoders.Metaspace("▁", scheme, split)
        save(f"metaspace_{scheme}", metaspace)
    # No fallback: unknown characters; words that keep their spaces in another way; a regular expression that is replaced.
    plain = json.loads(llama2.to_str())
    plain["model"] |= {"byte_fallback": False, "fuse_unk": False}
    plain = Tokenizer.from_str(json.dumps(plain))
    plain.normalizer = normalizers.Sequence([normalizers.NFKD(), normalizers.Replace(Regex(r"\s+"), "▁")])
    plain.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_previous")
    plain.decoder = None
    save("unknowns", plain)
    save("unigram", of_pieces(piece_model("unigram")))
    save("unigram_bytes", of_pieces(piece_model("unigram", byte_fallback=True)))
    for name, tokenizer in other_parts(lines).items():
        save(name, tokenizer)
    out["pieces_unigram"] = {"tokenizer.model": piece_model("unigram", user_defined_symbols=["[MASK]", "hello"])}
    out["pieces_bpe"] = {"tokenizer.model": piece_model("bpe", byte_fallback=True, remove_extra_whitespaces=False),
                         "tokenizer_config.json": json.dumps({"add_bos_token": True}) + "\n"}
    bytes_of = {c: b for b, c in bytes_to_unicode().items()}
    out["ranks"] = {"tokenizer.model": "".join(
        base64.b64encode(bytes(bytes_of[c] for c in token)).decode() + f" {id - 1}\n"  # 0 is <|endoftext|>
        for token, id in sorted(model["vocab"].items(), key=lambda item: item[1]) if id > 0)}
    return out


def of_piece_file(path):
    """What transformers makes of a file of tiktoken, or of SentencePiece where it knows no class of its model."""
    file = path.read_bytes()
    if b" 0\n" in file[:40]:
        return TikTokenConverter(vocab_file=str(path)).converted()
    proto = sentencepiece_model.ModelProto.FromString(file)
    pieces = [(piece.piece, piece.score) for piece in proto.pieces]
    is_bpe = proto.trainer_spec.model_type == 2
    vocabulary = {piece: i for i, (piece, _) in enumerate(pieces)} if is_bpe else pieces
    tokenizer = SpmConverter.build_tokenizer_from_spm_proto(proto, vocabulary, legacy=True)
    tokenizer.add_special_tokens([AddedToken(p.piece, normalized=False) for p in proto.pieces if p.type in (2, 3)])
    if is_bpe:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A", pair="<s> $A <s>:1 $B:1", special_tokens=[("<s>", 1)])
    own = sentencepiece.SentencePieceProcessor(model_proto=file)
    texts = [t for t in map(expanded, difficult_lines()) if not any(s in t for s in ("<s>", "</s>", "<unk>")) and "\0" not in t]
    other = [t for t in texts if own.encode(t) != tokenizer.encode(t, add_special_tokens=False).ids]
    print(f"{path.parent.name}: of {len(texts)} texts, SentencePiece itself has other ids for {len(other)}: {other[:5]}")
    return tokenizer


class Reference:
    """Hugging Face's tokenizer of a folder."""

    def __init__(self, folder):
        names = {path.name for path in folder.iterdir()}
        self.whole = None  # transformers' tokenizer, where files are its own
        if "tokenizer.json" in names:
            self.backend = Tokenizer.from_file(str(folder / "tokenizer.json"))
            return
        if "tokenizer.model" in names:
            self.backend = of_piece_file(folder / "tokenizer.model")
            return
        config = json.loads((folder / "tokenizer_config.json").read_text()) if "tokenizer_config.json" in names else {}
        if "vocab.txt" in names:
            self.whole = BertTokenizer(vocab=str(folder / "vocab.txt"), **config)
        else:
            self.whole = GPT2Tokenizer(vocab=str(folder / "vocab.json"), merges=str(folder / "merges.txt"), **config)
        self.backend = self.whole.backend_tokenizer

    def encode(self, text):
        return self.backend.encode(text, add_special_tokens=False).ids

    def decode(self, ids):
        if self.whole is None:
            return self.backend.decode(ids, skip_special_tokens=True)
        return self.whole.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)

    def sample(self, text, pair, most):
        self.backend.enable_truncation(most, strategy="longest_first")
        encoded = self.backend.encode(text, pair)
        self.backend.no_truncation()
        return encoded.ids + [-1 & 0xFFFFFFFF] + encoded.type_ids


def expected(reference, lines):
    texts = [expanded(line) for line in lines]
    ids = [reference.encode(text) for text in texts]
    rng = random.Random(11)
    some = [[rng.randrange(reference.backend.get_vocab_size()) for _ in range(12)] for _ in range(60)]
    samples = {}
    for first in ("", "a", "the ship", "the ship has three banks"):
        for second in (None, "", "of", "it is, and was"):
            special = reference.backend.num_special_tokens_to_add(second is not None)
            for most in [*range(max(1, special), 12), 100]:
                key = json.dumps([first, second, most])
                samples[key] = short_hash(id_bytes(reference.sample(first, second, most)))
    return {"vocabulary": max(reference.backend.get_vocab().values()) + 1,
            "ids": " ".join(short_hash(id_bytes(i)) for i in ids),
            "texts": " ".join(short_hash(reference.decode(i).encode()) for i in ids),
            "random_ids": some,
            "random_texts": " ".join(short_hash(reference.decode(i).encode()) for i in some),
            "samples": samples}


def sst2(data):
    """Of the sentences of train.tsv and dev.tsv with [CLS] and [SEP]: their ids, each sentence's followed by -1."""
    tokenizer = BertTokenizer(vocab=str(data / "bert" / "vocab.txt"))
    sentences = []
    for name in ("train.tsv", "dev.tsv"):
        lines = (data / "sst2" / name).read_text(encoding="utf-8").split("\n")[1:]
        sentences += [line.split("\t")[0] for line in lines if line]
    state = 14695981039346656037
    for ids in tokenizer(sentences)["input_ids"]:
        state = fnv(id_bytes([*ids, -1 & 0xFFFFFFFF]), state)
    return {"sentences": len(sentences), "hash": f"{state:016x}"}


def compare(folder, texts, other):
    reference = Reference(folder)
    texts, other = json.loads(texts.read_text()), json.loads(other.read_text())
    wrong = 0
    for text, ids, decoded in zip(texts, other["ids"], other["texts"], strict=True):
        wanted = reference.encode(text)
        if (wanted, reference.decode(wanted)) != (ids, decoded):
            wrong += 1
            if wrong <= 5:
                print(f"{text[:80]!r}\n  {wanted[:30]}\n  {ids[:30]}\n  {reference.decode(wanted)[:80]!r}\n  {decoded[:80]!r}")
    print(f"{folder}: {len(texts)} texts, {wrong} differ")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--sst2", type=pathlib.Path)
    parser.add_argument("--compare", nargs=3, type=pathlib.Path)
    parser.add_argument("--only", nargs="+", help="make these folders; the others stay (training draws among equal words)")
    arguments = parser.parse_args()
    if arguments.compare:
        return compare(*arguments.compare)
    if arguments.sst2:
        (OUT / "sst2.json").write_text(json.dumps(sst2(arguments.sst2)) + "\n")
        return
    lines = difficult_lines()
    assert len(lines) == LINES
    (OUT).mkdir(exist_ok=True)
    (OUT / "lines.json").write_text("[\n" + ",\n".join(json.dumps(line) for line in lines) + "\n]\n")
    wanted = json.loads((OUT / "expected.json").read_text()) if arguments.only else {}
    for name, files in tokenizer_files(lines).items():
        if arguments.only and name not in arguments.only:
            continue
        folder = OUT / name
        folder.mkdir(exist_ok=True)
        for file, text in files.items():
            (folder / file).write_bytes(text if isinstance(text, bytes) else text.encode())
        wanted[name] = expected(Reference(folder), lines)
    (OUT / "expected.json").write_text(json.dumps(wanted, indent=0) + "\n")


if __name__ == "__main__":
    main()
