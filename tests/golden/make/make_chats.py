"""Makes tests/golden/chats: conversations, a chat template, and the ids and labels that TRL's SFTTrainer makes of them
with the tokenizers of tests/golden/tokenizers.

Run:  python tests/golden/make/make_chats.py      (trl 1.16, transformers 5.24, datasets 5.2; the output is committed)
"""
import json
import pathlib
import tempfile

from datasets import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

GOLDEN = pathlib.Path(__file__).parents[1]
OUT = GOLDEN / "chats"
TOKENIZERS = {"qwen": "<|endoftext|>", "llama3": "<|end_of_text|>", "llama2": "</s>"}  # with the token that ends a text
# A line break before the answer, which some tokenizers merge with what follows; the end of an answer is learned.
TEMPLATE = """{{ bos_token }}{% for m in messages %}
    {{- '<' ~ m.role | upper ~ '>' }}
    {% if m.role == 'assistant' %}
        {%- generation %}{{ m.content | trim ~ eos_token }}{% endgeneration %}
    {% else %}
        {{- m.content ~ (tools | tojson if tools and loop.first) }}
    {% endif %}
{% endfor %}
{% if add_generation_prompt %}
    {{- '<ASSISTANT>' }}
{% endif %}
"""


def message(role, content):
    return {"role": role, "content": content}


def records():
    question, answer = message("user", "What's 2+2?"), message("assistant", " It's 4, isn't it?\n")
    more = [message("user", "Größe: 17 µm\n\nand 日本語?"), message("assistant", "naïve  spaces\t\"quotes\" {json: 1}")]
    system = message("system", "Be brief.")
    tools = [{"type": "function", "function": {"name": "add", "parameters": {"b": 1, "a": [True, None]}}}]
    return {
        "messages": [{"messages": [question, answer]}, {"messages": [system, question, answer, *more]},
                     {"messages": [answer, question, message("assistant", "")]}, {"messages": [question, answer], "tools": tools}],
        "pairs": [{"prompt": [question], "completion": [answer]},
                  {"prompt": [system, question, answer, more[0]], "completion": [more[1]]}],
        "texts": [{"prompt": "2+2=", "completion": "4"}, {"prompt": "Once upon a ti", "completion": "me there was"},
                  {"prompt": "a \n", "completion": "\nb"}, {"prompt": "", "completion": "alone"}],
    }


def trained_on(tokenizer, rows, assistant_only):
    """The ids and labels of SFTTrainer. TRL fills missing columns, so that records of one form go together."""
    config = GPT2Config(vocab_size=len(tokenizer), n_embd=4, n_layer=1, n_head=1)
    with tempfile.TemporaryDirectory() as folder:
        arguments = SFTConfig(output_dir=folder, assistant_only_loss=assistant_only, max_length=None, use_cpu=True,
                              bf16=False, report_to=[], gradient_checkpointing=False)
        trainer = SFTTrainer(model=GPT2LMHeadModel(config), args=arguments, processing_class=tokenizer,
                             train_dataset=Dataset.from_list(rows))
        return [{"ids": list(row["input_ids"]), "labels": list(row["labels"])} for row in trainer.train_dataset]


def main():
    OUT.mkdir(exist_ok=True)
    (OUT / "chat_template.jinja").write_text(TEMPLATE)
    expected = {}
    for name, end in TOKENIZERS.items():
        tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(GOLDEN / "tokenizers" / name / "tokenizer.json"),
                                            eos_token=end, pad_token=end, chat_template=TEMPLATE)
        expected[name] = {"end": end, "records": []}
        for form, rows in records().items():
            for row in rows:  # one by one, so that none gets another's columns
                made = trained_on(tokenizer, [row], form == "messages")[0]
                expected[name]["records"].append({"record": row, **made})
    (OUT / "expected.json").write_text(json.dumps(expected, ensure_ascii=False, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
