import os

import torch
from transformers import GPT2Config, GPT2LMHeadModel, HfArgumentParser, Trainer, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

(args,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
config = GPT2Config(vocab_size=16, n_positions=8, n_embd=16, n_layer=1, n_head=2)
model = GPT2LMHeadModel(config)  # made here, not loaded: nothing is asked of the hub
counting = [torch.arange(start, start + 8) % 16 for start in range(256)]
data = [{"input_ids": row, "labels": row} for row in counting]

trainer = Trainer(model, args, train_dataset=data)
last = get_last_checkpoint(args.output_dir) if os.path.isdir(args.output_dir) else None
trainer.train(resume_from_checkpoint=last)
if trainer.is_world_process_zero():
    for entry in trainer.state.log_history:
        if "loss" in entry:
            print(f"step {entry['step']} of {args.world_size} ranks, loss {entry['loss']:.4f}")
