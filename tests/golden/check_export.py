"""Loads a model folder that trireme wrote in transformers and prints its logits on an image of zeros.

  build/release/bin/trireme train configs/leaves_vit.toml
  python tests/golden/check_export.py runs/leaves_vit/model

Needs torch and transformers. Exit code 0: no missing and no unexpected key.
"""
import sys

import torch
from transformers import ViTForImageClassification

model, info = ViTForImageClassification.from_pretrained(sys.argv[1], output_loading_info=True)
faults = {key: value for key, value in info.items() if value}
print("loaded", sum(p.numel() for p in model.parameters()), "parameters; faults:", faults or "none")
size = model.config.image_size
with torch.no_grad():
    print("logits", model.eval()(torch.zeros(1, 3, size, size)).logits.tolist(), model.config.id2label)
sys.exit(1 if faults else 0)
