"""Makes tests/golden/config_keys.json: every key of transformers' configuration classes of our models with its default,
and the other names that a class takes for a key, by the version of transformers. Replaces the installed version's part.

Run:  python tests/golden/make/make_config_keys.py      (once with transformers 5.24 and once with 4.57; the output is
                                                    committed)
"""
import json
import pathlib

import transformers

OUT = pathlib.Path(__file__).parents[1] / "config_keys.json"


def keys_of(config_class):
    return {"keys": config_class().to_dict(), "aliases": config_class.attribute_map}


def main():
    versions = json.loads(OUT.read_text()) if OUT.exists() else {}
    versions[transformers.__version__] = {
        name: keys_of(getattr(transformers, name))
        for name in ("BertConfig", "GPT2Config", "LlamaConfig", "Qwen3Config", "ResNetConfig", "ViTConfig")}
    OUT.write_text(json.dumps(versions, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
