"""Makes tests/golden/tokenizers/offsets.json: what Hugging Face's tokenizers make of the difficult lines, token by token:
ids and offsets in characters, with the special tokens around each line. A hash for each ten lines.

Run:  python tests/golden/make/make_offsets.py              (after make_tokenizers.py, with the same packages)
      python tests/golden/make/make_offsets.py NAME LINE    (prints those of one line)
"""
import json
import sys

from make_tokenizers import OUT, Reference, difficult_lines, expanded, id_bytes, short_hash

LINES_OF_HASH = 10


def numbers(encoding):
    """Of each token: id, begin, end; and -1 at the end."""
    spans = zip(encoding.ids, encoding.offsets)
    return [n for id, (begin, end) in spans for n in (id, begin, end)] + [-1 & 0xFFFFFFFF]


def main():
    texts = [expanded(line) for line in difficult_lines()]
    if len(sys.argv) > 1:
        encoding = Reference(OUT / sys.argv[1]).backend.encode(texts[int(sys.argv[2])])
        print(*zip(encoding.ids, encoding.tokens, encoding.offsets), sep="\n")
        return
    out = {}
    for name in json.loads((OUT / "expected.json").read_text()):
        backend = Reference(OUT / name).backend
        made = [numbers(backend.encode(text)) for text in texts]
        groups = [sum(made[i:i + LINES_OF_HASH], []) for i in range(0, len(made), LINES_OF_HASH)]
        out[name] = " ".join(short_hash(id_bytes(group)) for group in groups)
    (OUT / "offsets.json").write_text(json.dumps(out, indent=0) + "\n")


if __name__ == "__main__":
    main()
