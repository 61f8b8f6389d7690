"""Hugging Face's Trainer: a model of transformers made of its configuration, arguments, a data collator."""

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


class Tokens(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        tokens = torch.arange(index, index + 24) % 100
        return {"input_ids": tokens, "labels": tokens}


if __name__ == "__main__":
    config = GPT2Config(vocab_size=100, n_positions=24, n_embd=32, n_layer=2, n_head=4)
    arguments = TrainingArguments(
        "out",
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        num_train_epochs=1,
        logging_steps=1,
        save_steps=50,
        report_to="none",
        dataloader_num_workers=2,
        bf16=True,
    )
    trainer = Trainer(GPT2LMHeadModel(config), arguments, train_dataset=Tokens())
    trainer.train()
    trainer.save_model("out/last")
